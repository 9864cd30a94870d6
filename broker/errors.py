"""The one tree of errors. What lives here: every failure a caller of Fairlead can meet, as data.

Each class says three things that a program needs in order to go on:

- ``code``: a stable word, the same in Python, on the wire, in logs and in ``--json`` output.
- ``retriable``: the same request may succeed later, unchanged.
- ``definite``: the request surely had no effect. When it is False the outcome is unknown, and the
  only safe thing is to repeat the same request under the same sequence.

The wording of a message follows one rule: what was asked, what stands against it (with ids and
limits), what to do next. Nothing in this file may import from the rest of the project.
"""

from __future__ import annotations

from typing import Any, ClassVar


class BrokerError(Exception):
    """Base of everything Fairlead raises on purpose."""

    code: ClassVar[str] = "broker-error"
    retriable: ClassVar[bool] = False
    definite: ClassVar[bool] = True

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return self.message

    def to_dict(self) -> dict[str, Any]:
        """The error as builtin types, for the wire and for ``--json``."""
        return {
            "code": self.code,
            "message": self.message,
            "retriable": self.retriable,
            "definite": self.definite,
            "details": self.details,
        }


class BadRequest(BrokerError):
    """The request itself is malformed: a wrong type, an id with a forbidden character, an empty
    batch."""

    code = "bad-request"


class MessageTooLarge(BadRequest):
    """A body or a batch is larger than the channel's policy allows."""

    code = "message-too-large"


class ChannelNotFound(BrokerError):
    """No channel of that name is known to this broker or name server."""

    code = "channel-not-found"


class ChannelExists(BrokerError):
    """A channel of that name exists already, with another policy."""

    code = "channel-exists"


class ChannelFull(BrokerError):
    """The channel holds as many unacknowledged messages as its policy allows."""

    code = "channel-full"
    retriable = True


class QueuesDown(BrokerError):
    """The channel's queues crashed and are being restored from the backup queue."""

    code = "queues-down"
    retriable = True


class CallOvertaken(BrokerError):
    """A publisher's call arrived after a newer call of the same publisher: it comes too late."""

    code = "call-overtaken"
    retriable = True
    definite = False


class SequenceGap(BrokerError):
    """A run starts beyond the next sequence of its partition; the expected one is named."""

    code = "sequence-gap"


class PublisherFenced(BrokerError):
    """A newer publisher with the same id has opened the channel; this one must stop."""

    code = "publisher-fenced"


class TopicNotFound(BrokerError):
    """No topic of that name is known to this broker or name server."""

    code = "topic-not-found"


class TopicFull(BrokerError):
    """A topic holds as much for its slowest subscriber as its limits allow."""

    code = "topic-full"
    retriable = True


class RequestOvertaken(BrokerError):
    """A client's request about its subscription came after a newer one of the same client."""

    code = "request-overtaken"


class NumberReused(BrokerError):
    """A put carries a number that is taken, and is no repetition of the put that took it."""

    code = "number-reused"


class PutsLost(BrokerError):
    """A broker has lost puts that it had answered, and the client does not have them any more."""

    code = "puts-lost"


class StateBehind(BrokerError):
    """A client asks for messages that it has confirmed before: its state was put back."""

    code = "state-behind"


class BeyondEnd(BrokerError):
    """A client claims to have messages that its topic does not have."""

    code = "beyond-end"


class ClientElsewhere(BrokerError):
    """A client id belongs to another state directory."""

    code = "client-elsewhere"


class SubscriptionNotFound(BrokerError):
    """No subscription of that name exists on the channel."""

    code = "subscription-not-found"


class NotSubscribed(BrokerError):
    """The subscriber is unknown here: never subscribed, left, or declared inactive."""

    code = "not-subscribed"


class SubscriberReplaced(BrokerError):
    """A newer session with the same subscriber id has taken over."""

    code = "subscriber-replaced"


class CallbackRefused(BrokerError):
    """The callback object does not live on the host that subscribed."""

    code = "callback-refused"


class LimitReached(BrokerError):
    """A count limit (partitions, subscribers, subscriptions, channels) is reached."""

    code = "limit-reached"
    retriable = True


class FaultInjectionDisabled(BrokerError):
    """A fault hook was called on a broker that was started without ``--fault-injection``."""

    code = "fault-injection-disabled"


class StaleAssignment(BrokerError):
    """The assignment's epoch has been superseded: the work belongs to somebody else by now."""

    code = "stale-assignment"


class BrokerUnavailable(BrokerError):
    """No answer from the broker: the outcome is unknown. Repeat the same request."""

    code = "broker-unavailable"
    retriable = True
    definite = False


class BrokerStopping(BrokerError):
    """The broker is shutting down and takes no new work."""

    code = "broker-stopping"
    retriable = True


class PublisherClosed(BrokerError):
    """The publisher was closed before the message was confirmed; its outcome is unknown."""

    code = "publisher-closed"
    definite = False


class OutboxFull(BrokerError):
    """The publisher's own outbox is full and did not empty in time; nothing was taken."""

    code = "outbox-full"
    retriable = True


class JournalError(BrokerError):
    """The journal cannot be read or written."""

    code = "journal-error"
    definite = False


class JournalCorrupt(JournalError):
    """A journal record is damaged. The text names the channel, the sequence and the reason."""

    code = "journal-corrupt"


class JournalGap(JournalCorrupt):
    """A journal record is missing between two others, or at the end."""

    code = "journal-gap"


class JournalVersion(JournalError):
    """The store was written by a version of Fairlead with another format."""

    code = "journal-version"


class Deposed(JournalError):
    """Another broker has written to this channel's journal: this one must stop serving it."""

    code = "deposed"


class InternalError(BrokerError):
    """A bug in Fairlead. The broker's log has the traceback."""

    code = "internal-error"
    definite = False


def _tree(cls: type[BrokerError]) -> dict[str, type[BrokerError]]:
    found = {cls.code: cls}
    for child in cls.__subclasses__():
        found.update(_tree(child))
    return found


BY_CODE: dict[str, type[BrokerError]] = _tree(BrokerError)


def from_dict(fields: dict[str, Any]) -> BrokerError:
    """The error that :meth:`BrokerError.to_dict` described; BrokerError if the code is unknown."""
    cls = BY_CODE.get(str(fields.get("code")), BrokerError)
    return cls(str(fields.get("message", "no text")), **dict(fields.get("details") or {}))
