"""The names of everything that can be wrong, with one sentence each. Only words live here.

The audit (Spark) and the checkers of a simulation share these names, never their code: two oracles
that share code share mistakes. Names that are established elsewhere keep their meaning.
"""

from __future__ import annotations

from typing import Final

VALID: Final = "valid"
INVALID: Final = "invalid"
UNKNOWN: Final = "unknown"

ANOMALIES: Final[dict[str, str]] = {
    "log-integrity": (
        "A record is missing, damaged, or does not continue the checksum of the one before it."
    ),
    "publisher-gap": "A batch was accepted that leaves out sequences of its partition.",
    "duplicate": (
        "One message was accepted, placed or handled twice where once was promised: the same "
        "sequence accepted again, one message at two positions of a line, or a handler run twice "
        "by one living subscriber."
    ),
    "lost-write": (
        "A message that was accepted, or that its publisher was told is accepted, is not in the "
        "journal, or was left out while messages after it were handed out."
    ),
    "unseen": (
        "A message was acknowledged without having been handled, or the run is over and it was "
        "neither settled nor parked."
    ),
    "unexpected": (
        "A message was handed out, handled or accepted that nobody had published, or not with "
        "this content."
    ),
    "aborted-read": "A batch that its publisher was told is refused was accepted all the same.",
    "inconsistent-offsets": "One position of a line stands for two different messages.",
    "nonmonotonic-send": (
        "Messages that waited together got positions against their order (timestamp, sequence)."
    ),
    "late-unrecorded": (
        "A message older than one handed out before it is not recorded as late, or another is."
    ),
    "poll-skip": "A batch handed out a position beyond the next one of its line.",
    "nonmonotonic-poll": "A batch handed out a position that was handed out and not taken back.",
    "int-poll-skip": "Inside one batch the positions of a line leave one out.",
    "int-nonmonotonic-poll": "Inside one batch the positions of a line go back.",
    "single-owner": (
        "A line was handed to a second subscriber, or under a second or an older epoch, while "
        "messages of it were in flight."
    ),
    "delivery-within-ownership": "Messages were given to a subscriber that was not subscribed.",
    "fenced-ack": (
        "An ack or nack was accepted that did not come from the line's owner under its epoch, or "
        "spoke of messages that were not in flight."
    ),
    "no-resurrection": "A settled message was handed out, settled or parked again.",
    "delivery-limit": (
        "A message was tried more often than the policy allows, its attempts do not count up with "
        "its failures, or it was parked while it was in flight."
    ),
    "reassign-causality": "Messages were taken back from a subscriber that did not hold them.",
    "conservation": (
        "The messages that a record counts are not those that were accepted and not yet settled."
    ),
    "producer-fencing": "A batch was accepted under an epoch older than one opened before it.",
    "exactly-once-put": (
        "A put is in a topic not at all, twice, or not where its client was told; or it is there "
        "though it was refused, or nobody had tried it; or the numbers of a client, the positions "
        "or the stamps of a topic do not run on."
    ),
    "exactly-once-get": (
        "A client of a topic got or confirmed a message again, with other content, from before or "
        "after its subscription, or one that was never put."
    ),
    "topic-completeness": (
        "A message was left out of what a subscription to a topic is owed, from where it begins to "
        "where it ends; or the run is over and an open subscription has not confirmed all."
    ),
}
"""Anomaly -> its definition."""

TOPIC_ANOMALIES: Final = frozenset(
    {"exactly-once-put", "exactly-once-get", "topic-completeness"}
)
"""Those that only a topic can have. A topic can also lack log-integrity, and nothing else."""
