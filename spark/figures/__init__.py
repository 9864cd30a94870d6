"""The figures of the report: one file per figure, the frame of records in, a small frame out.

Rules of this folder: only Spark's own column functions and windows, so that everything runs in the
JVM; nothing is collected here; what is returned is bounded by the limits that the caller passes,
whatever the size of the journal. What is over time is computed from whole records (``count``,
``at_ms``). Runs are taken apart only for the partitions of the swim lanes, for a sample of the
messages (latency) and for the assignments that ended in a nack.
"""
