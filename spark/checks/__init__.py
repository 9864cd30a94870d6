"""The checks, one small file per anomaly: a frame in, a frame of violations out.

A check is built from Spark's own column functions and windows: no Python function runs per row,
and no data row is collected. All give the same columns (:data:`spark.checks.check.VIOLATION`), so
their results are one frame in the end. ``ALL`` is the list; a new file is added there.
"""

from __future__ import annotations

from spark.checks import (
    aborted_read,
    conservation,
    delivery_limit,
    delivery_within_ownership,
    duplicate,
    exactly_once_get,
    exactly_once_put,
    fenced_ack,
    inconsistent_offsets,
    late_unrecorded,
    log_integrity,
    lost_write,
    no_resurrection,
    nonmonotonic_poll,
    nonmonotonic_send,
    poll_skip,
    producer_fencing,
    publisher_gap,
    reassign_causality,
    single_owner,
    topic_completeness,
    unexpected,
    unseen,
)
from spark.checks.check import Check

ALL: tuple[Check, ...] = (
    *log_integrity.CHECKS,
    *publisher_gap.CHECKS,
    *producer_fencing.CHECKS,
    *lost_write.CHECKS,
    *unseen.CHECKS,
    *unexpected.CHECKS,
    *aborted_read.CHECKS,
    *duplicate.CHECKS,
    *inconsistent_offsets.CHECKS,
    *nonmonotonic_send.CHECKS,
    *late_unrecorded.CHECKS,
    *poll_skip.CHECKS,
    *nonmonotonic_poll.CHECKS,
    *single_owner.CHECKS,
    *delivery_within_ownership.CHECKS,
    *fenced_ack.CHECKS,
    *no_resurrection.CHECKS,
    *delivery_limit.CHECKS,
    *reassign_causality.CHECKS,
    *conservation.CHECKS,
    *exactly_once_put.CHECKS,
    *exactly_once_get.CHECKS,
    *topic_completeness.CHECKS,
)
