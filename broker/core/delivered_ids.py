"""DeliveredIds: what has been accepted before. The dedup set of a channel.

For the numbers that publishers count themselves the set is one integer per partition
(``Partition.next_sequence``): gaps are refused, so everything below it was accepted and nothing
above it, and no sparse set is needed. For ids that users choose there is a window, bounded in
count, that forgets the oldest first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Iterable, Iterator


class DeliveredIds:
    """The window of user-chosen ids.

    >>> ids = DeliveredIds(2)
    >>> ids.add(["a", "b", "c"])
    >>> "a" in ids, "c" in ids, len(ids)
    (False, True, 2)
    """

    __slots__ = ("count_max", "_ids")

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self._ids: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def add(self, message_ids: Iterable[str]) -> None:
        """Remember ids; the oldest beyond the window are forgotten."""
        ids = self._ids
        for message_id in message_ids:
            ids[message_id] = None
        while len(ids) > self.count_max:
            ids.popitem(last=False)
