"""Time axes with round steps. Pure."""

from __future__ import annotations

from spark.figures.columns import Scale

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000

#: Bucket widths that people can read, in milliseconds.
WIDTHS = (
    100, 200, 500, _SECOND, 2 * _SECOND, 5 * _SECOND, 10 * _SECOND, 15 * _SECOND, 30 * _SECOND,
    _MINUTE, 2 * _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE,
    _HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY,
)  # fmt: skip


def scale_for(start_ms: int, end_ms: int, buckets_max: int) -> Scale:
    """The finest round axis from ``start_ms`` to ``end_ms`` with at most so many buckets.

    >>> scale_for(10_050, 12_000, 240)
    Scale(origin_ms=10000, width_ms=100, count=21)
    >>> scale_for(0, 3_600_000, 240).width_ms
    30000
    """
    for width in WIDTHS:
        scale = _of_width(start_ms, end_ms, width)
        if scale.count <= buckets_max:
            return scale
    days = -(-(end_ms - start_ms + 1) // (_DAY * max(1, buckets_max - 1)))
    return _of_width(start_ms, end_ms, days * _DAY)


def _of_width(start_ms: int, end_ms: int, width: int) -> Scale:
    origin = start_ms // width * width
    return Scale(origin, width, (end_ms - origin) // width + 1)
