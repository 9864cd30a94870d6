"""PublisherHistory: what a publisher tried and what it heard of it, as lines. Pure.

No file, clock or thread here: lines go through the ``append`` that is handed in, that of a
``broker.history.HistoryFile`` or ``MemoryHistory``. The sender reports what it sends (``tried``,
``refused_whole``); the outbox reports the rest as its ``Watcher``.

Each line has the members ``client``, ``name``, ``session`` (the epoch as text), ``channel``, ``n``
(dense from 0), ``at_us`` (wall clock) and ``event``. The arrays are parallel, one item per run.

- ``opened``: ``epoch``. The first line. A Publisher opens its id once in its life, so a file has
  one epoch and one ``opened``.
- ``tried``: ``epoch``, ``call``, ``partitions``, ``firsts``, ``counts``, ``crc``, ``resent``.
  Written before the call is sent, each time it is; if then no connection can be made, it was
  tried all the same. ``call`` numbers the calls as they are formed.
  A call that is sent again keeps its number and its sequences; if part of it was refused before,
  only the accepted part goes again, and what was refused goes in a call of its own. ``crc`` is
  CRC-32 over the bodies, run after run.
- ``answered``: ``call``, ``record``, ``partitions``, ``firsts``, ``counts``, ``duplicates``. The
  accepted part is durable. ``record`` is the journal sequence that the last answer named;
  ``duplicates`` how many of the messages the broker reported as known before.
- ``refused``: ``call``, ``partitions``, ``firsts``, ``counts``, ``reason`` (the code of an error).
  Surely not accepted; the sequences are given back. One line for each reason.
- ``unknown``: ``calls``. They were sent, and have no answer or no confirmation. That is also the
  outcome when the broker could not decide for now (queues down, stopping): the call goes again.
  A call that is unknown and then refused as a whole stays unknown: its first sending may count.
  So does a call whose publisher is fenced: a copy of it may have been done before that.
- ``closed``: ``open``, the messages that were taken and are neither answered nor refused. The last
  line of a clean end. If the sender outlives ``close``, it writes the line when it ends; it is
  missing if the process ended first.
"""

from __future__ import annotations

from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Callable, Iterable, Sequence
from zlib import crc32

from publisher.batch import Call

#: Why the broker refuses a run, in its answer -> the code of the error for it.
REASONS = {"full": "channel-full", "gap": "sequence-gap", "partition-limit": "limit-reached"}

# CRC-32 of more than 5 KiB gives up Python's global lock, and a busy process lets up to 5 ms pass
# until it comes back. In pieces it does not; what is really long is worth the wait.
CRC_PIECE_BYTES = 5 << 10
CRC_WHOLE_BYTES = 256 << 10


def publisher_identity(publisher: str, epoch: int | None, channel: str) -> dict[str, str]:
    """What every line of a publisher's history says about whose it is; None: not opened yet."""
    session = "" if epoch is None else str(epoch)
    return {"client": "publisher", "name": publisher, "session": session, "channel": channel}


class PublisherHistory:
    """Turns what happens to a publisher's calls into lines. Not for several threads at a time."""

    def __init__(self, append: Callable[[str, str], None], epoch: int) -> None:
        self._append = append
        self._epoch = epoch
        self._sent: dict[int, None] = {}  # calls that wait for their outcome
        self._doubtful: set[int] = set()  # calls that were unknown and have no outcome since
        self._given_up = 0
        append("opened", f',"epoch":{epoch}')

    def tried(self, call: Call) -> None:
        """A call is about to be sent."""
        number = call.number
        resent = "true" if number in self._doubtful or number in self._sent else "false"
        crc = checksum(call.column(call.batch.bodies))
        self._append(
            "tried",
            f',"epoch":{self._epoch},"call":{number}'
            f'{_runs(call.partitions, call.firsts, call.counts)},"crc":{crc},"resent":{resent}',
        )
        self._sent[number] = None

    def refused_whole(self, call: Call, reason: str) -> None:
        """The answer to a call was an error that is final and definite."""
        if call.number in self._doubtful:
            return
        self._sent.pop(call.number, None)
        self._given_up -= sum(call.counts)  # the outbox is about to give it up with the rest
        self._refuse(call, call.partitions, call.firsts, call.counts, reason)

    # What the outbox reports.

    def refused(self, call: Call, runs: Sequence[Sequence[Any]]) -> None:
        """Part of a call, or all of it, was not accepted; ``runs`` as in the broker's answer."""
        through_total = 0
        found: dict[str, tuple[list[str], list[int], list[int]]] = {}
        for name, first, count, run in zip(call.partitions, call.firsts, call.counts, runs):
            through, reason = run[0], run[2]
            through_total += through
            if through < count:
                partitions, firsts, counts = found.setdefault(reason, ([], [], []))
                partitions.append(name)
                firsts.append(first + through)
                counts.append(count - through)
        for reason, (partitions, firsts, counts) in found.items():
            self._refuse(call, partitions, firsts, counts, REASONS.get(reason, reason))
        if not through_total:
            self._end(call)

    def answered(self, call: Call) -> None:
        """What was accepted of a call is durable."""
        self._end(call)
        if call.counts:
            self._append(
                "answered",
                f',"call":{call.number},"record":{call.record}'
                f"{_runs(call.partitions, call.firsts, call.counts)}"
                f',"duplicates":{call.duplicate_count}',
            )

    def unknown(self) -> None:
        """The connection is gone, and with it the outcome of all that has none."""
        if self._sent:
            calls = list(self._sent)
            self._doubtful.update(calls)
            self._sent.clear()
            self._append("unknown", f',"calls":{_ints(calls)}')

    def gave_up(self, count: int) -> None:
        """So many messages will not be sent again."""
        self._given_up += count
        self._doubtful.clear()

    def closed(self) -> None:
        """The publisher has ended."""
        self._append("closed", f',"open":{self._given_up}')

    def _end(self, call: Call) -> None:
        self._sent.pop(call.number, None)
        self._doubtful.discard(call.number)

    def _refuse(
        self,
        call: Call,
        partitions: list[str],
        firsts: list[int],
        counts: list[int],
        reason: str,
    ) -> None:
        runs = _runs(partitions, firsts, counts)
        self._append("refused", f',"call":{call.number}{runs},"reason":{quoted(reason)}')


def checksum(bodies: Iterable[bytes]) -> int:
    """CRC-32 over the bodies, one after the other."""
    joined = b"".join(bodies)
    if not CRC_PIECE_BYTES < len(joined) <= CRC_WHOLE_BYTES:
        return crc32(joined)
    view = memoryview(joined)
    crc = 0
    for at in range(0, len(joined), CRC_PIECE_BYTES):
        crc = crc32(view[at : at + CRC_PIECE_BYTES], crc)
    return crc


def _runs(partitions: list[str], firsts: list[int], counts: list[int]) -> str:
    names = ",".join(map(quoted, partitions))
    return f',"partitions":[{names}],"firsts":{_ints(firsts)},"counts":{_ints(counts)}'


def _ints(values: list[int]) -> str:
    return str(values).replace(" ", "")
