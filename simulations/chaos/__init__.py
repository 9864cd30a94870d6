"""Chaos: the faults of the stories, mixed by a seed, over a cluster of processes under load.

``fairlead chaos --minutes M --seed S``, or ``python -m simulations.chaos``. ``CHAOS.md`` tells how
to read it.

- ``plan.py``: which fault comes when, drawn from the seed. Pure: the same seed, the same plan;
- ``cluster.py``: the processes that run, and ``actors.py``, what runs in those that are ours;
- ``faults.py``: one function per fault; ``director.py``: brings them about when they are due;
- ``figures.py``: what happened, in numbers, out of journal and histories;
- ``report.py``: how it is told; ``command.py``: a whole run, from the folder to the exit code.
"""
