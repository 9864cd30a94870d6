"""The deterministic simulator: the real core, host, outbox and session in a world made of one seed.

One thread, a virtual clock, and a network, a disk and processes that fail on purpose. What lives
where: ``scheduler`` (time, processes, tasks), ``network``, ``disk``; who plays (``cast``,
``broker``, ``link``, ``publisher``, ``subscriber``, ``handling``); what goes wrong (``profile``,
``faults``); one run of one seed (``run``, ``trace``), and what is made of many (``shrink``,
``campaign``, ``ledger``). ``topics`` has a world of its own for durable topics, and ``seeds``
chooses between the two. ``mutants`` breaks the product on purpose, to see that all this can
fail; ``trial`` puts a user's handler in.

What may not live here: a real clock, a thread, a socket, a choice that is not drawn from the seed.
"""

from simulations.world.run import Result
from simulations.world.seeds import simulate

__all__ = ["Result", "simulate"]
