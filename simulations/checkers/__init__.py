"""The simulator's own oracle: plain Python that judges records as they come, in one pass.

It shares the names of the anomalies with the Spark audit, and no code: not with the audit, and not
with the channel whose records it judges. Two oracles that share code share mistakes. What may be
imported of the project is therefore only its words: records, anomalies, message, policy, errors.

- ``judge.py``: :class:`Judge`, which hands every record and line to those whom it concerns;
- ``anomaly.py``: what was found;
- ``lives.py``, ``line.py``: the lives of subscriptions, and how far each has come in a partition;
- ``publishing.py``, ``delivery.py``, ``settling.py``, ``attempts.py``, ``order.py``,
  ``conservation.py``: one subject each, as a fold of the records;
- ``publisher_histories.py``, ``subscriber_histories.py``: the clients' own word against them.

The rules are those of the audit. A line is judged up to its first fault in ownership or progress:
after that its state cannot be trusted. Nothing is judged after a missing record. Where the two
differ:

- A redriven message that is passed over is found here (as nonmonotonic-send if it is handed out in
  the end, else as lost-write); the audit does not look at what was redriven.
- An answer is held against what was accepted by the time it was heard; the audit looks at the end.
- What is wrong about single messages is said at once; the audit says nothing of a line's messages
  if the line turns out to be doubtful, even later.
- Checksums are the store's: :meth:`Judge.damaged` takes its word.
"""

from simulations.checkers.anomaly import Anomaly
from simulations.checkers.judge import Judge

__all__ = ["Anomaly", "Judge"]
