"""Puts: how messages get into a topic exactly once.

A put is written down, sent until its outcome is known, and then written off. One whose outcome is
unknown stays written down and goes first next time. The numbers are the ledger's business, the
tries those of ``Requests``; here is what follows from the outcome.
"""

from __future__ import annotations

from typing import Any, Iterable

from broker import wire
from broker.errors import BadRequest, BrokerError, SequenceGap
from topics.ledger import PutCall, is_final
from topics.message import Receipt
from topics.opened import Opened
from topics.requests import Call, NoSuccess

#: How often a broker may name another last number while one put is under way.
GAPS_MAX = 3
#: A number that cannot be next: the refusal names the last one, and changes nothing.
NEVER_NEXT = 1 << 61


def encode(messages: Iterable[Any]) -> tuple[list[int] | int, list[bytes]]:
    """Formats, one number if all are the same, and bodies."""
    encoded = [wire.encode_body(message) for message in messages]
    if not encoded:
        raise BadRequest("a put of no messages is refused: give at least one")
    formats = [form for form, _ in encoded]
    same = formats.count(formats[0]) == len(formats)
    return formats[0] if same else formats, [body for _, body in encoded]


class Puts:
    """The puts of one client."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    def put(self, topic: str, messages: Iterable[Any]) -> Receipt:
        """Put messages, all or none, after what is pending."""
        formats, bodies = encode(messages)
        with self._opened.numbered(topic):
            self._settle_earlier(topic)
            try:
                return self._put_new(topic, formats, bodies)
            except BrokerError as error:
                if not self._opened.taken_over_after(error, topic):
                    raise
            return self._put_new(topic, formats, bodies)

    def resume(self) -> list[Receipt]:
        """Settle what is pending, topic by topic, until an error."""
        found = []
        with self._opened.lock:
            topics = list(self._opened.ledger.accounts)
        for topic in topics:
            with self._opened.numbered(topic):
                receipt = self.settle(topic)
            if receipt is not None:
                found.append(receipt)
        return found

    def settle(self, topic: str) -> Receipt | None:
        """Send the pending put of a topic, if there is one."""
        if self._opened.account(topic).pending is None:
            return None
        return self._send(topic, earlier=True)

    def forget(self, topic: str) -> None:
        """Go on from the broker's number; what is pending or kept is not sent any more."""
        opened = self._opened
        with opened.numbered(topic):
            last, born = self._last_number(topic)
            with opened.lock:
                account = opened.ledger.account(topic)
                if account.pending is not None:
                    opened.history.unknown(topic, account.pending)
                known = {
                    "born": born, "number": last, "request": account.request,
                    "ticket": account.ticket, "position": account.position,
                }  # fmt: skip
                opened.ledger.taken_over(topic, known)

    # One put.

    def _settle_earlier(self, topic: str) -> None:
        try:
            self.settle(topic)
        except BrokerError as error:
            raise type(error)(
                f"the new put to topic {topic} was not sent, since an earlier one comes first, "
                f"and of that one: {error}",
                **{**error.details, "earlier": True},
            ) from error

    def _put_new(self, topic: str, formats: list[int] | int, bodies: list[bytes]) -> Receipt:
        with self._opened.lock:
            self._opened.ledger.begin_put(topic, formats, bodies)
        return self._send(topic, earlier=False)

    def _send(self, topic: str, earlier: bool) -> Receipt:
        """Send what is pending; fill the gap first if the broker has lost something."""
        doubtful = earlier
        for left in range(GAPS_MAX, -1, -1):
            call = self._pending(topic)
            try:
                return self._accepted(topic, call, self._request(topic, call, doubtful))
            except NoSuccess as failure:
                if not isinstance(failure.error, SequenceGap) or not left:
                    raise self._failed(topic, call, failure, earlier) from failure.error
                self._fill(topic, failure.error, earlier)
                doubtful = False
        raise AssertionError("the last round returns or raises")

    def _pending(self, topic: str) -> PutCall:
        call = self._opened.account(topic).pending
        assert call is not None
        return call

    def _request(self, topic: str, call: PutCall, again: bool) -> dict[str, Any]:
        opened = self._opened
        sent = again
        crc = wire.call_checksum(call.formats, call.bodies)

        def prepare() -> Call:
            nonlocal sent
            with opened.lock:
                opened.history.tried(topic, call, crc, sent)
                sent = True
                order = opened.next_order()
            return Call(
                (topic, opened.client, opened.instance, call.number, call.formats, call.bodies,
                 order)
            )  # fmt: skip

        reply: dict[str, Any] = opened.requests.call("put_bodies", prepare, again)
        return reply

    def _accepted(self, topic: str, call: PutCall, reply: dict[str, Any]) -> Receipt:
        with self._opened.lock:
            self._opened.ledger.end_put(topic, reply)
            self._opened.history.answered(topic, call, reply)
        last = reply["position"] + reply["count"] - 1
        return Receipt(topic, call.last, last, reply["again"])

    def _fill(self, topic: str, gap: SequenceGap, earlier: bool) -> None:
        """Send again what the broker was told before and does not have any more."""
        opened = self._opened
        call = self._pending(topic)
        try:
            with opened.lock:
                calls = opened.ledger.after_gap(topic, gap)
            for lost in calls[:-1]:
                reply = self._request(topic, lost, True)
                with opened.lock:
                    opened.history.answered(topic, lost, reply)
        except BrokerError as error:  # PutsLost
            raise self._failed(topic, call, NoSuccess(error, False), earlier) from gap
        except NoSuccess as failure:
            # Whatever became of that one: the pending put is not done, the gap was before it.
            raise self._failed(topic, call, NoSuccess(failure.error, False), earlier) from gap

    def _failed(
        self, topic: str, call: PutCall, failure: NoSuccess, earlier: bool
    ) -> BrokerError:
        """Write off what is decided, keep the rest, and say which it is."""
        opened = self._opened
        drop = is_final(failure.error) or not (failure.doubtful or earlier)
        with opened.lock:
            if drop:
                opened.ledger.drop_put(topic)
            if failure.doubtful:
                opened.history.unknown(topic, call)
            elif drop:
                opened.history.refused(topic, call, failure.error.code)
        advice = (
            "it is not kept, put it again if it is still wanted"
            if drop
            else "it stays written down, and is sent again before the next put, or by resume"
        )
        asked = f"put number {call.number} to topic {topic}"
        if len(call.bodies) > 1:
            asked += f" (and {len(call.bodies) - 1} more with it)"
        return opened.told(failure, asked, advice)

    def _last_number(self, topic: str) -> tuple[int, int]:
        """The last number that the broker has of this client, and of which topic."""
        opened = self._opened
        arguments = (topic, opened.client, opened.instance, NEVER_NEXT, 0, [b""])
        try:
            opened.requests.call("put_bodies", lambda: Call(arguments))
        except NoSuccess as failure:
            if isinstance(failure.error, SequenceGap):
                details = failure.error.details
                return int(details["last"]), int(details["born"])
            raise opened.told(
                NoSuccess(failure.error, False), f"forget_put of topic {topic}", "try again"
            ) from failure.error
        raise AssertionError("a number that cannot be next was accepted")
