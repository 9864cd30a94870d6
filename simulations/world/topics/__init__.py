"""The simulated world of durable topics: the real topics, host and ledger, and clients that fail.

What lives where: ``disk`` (the journals of all topics, one writer), ``broker``, ``directory`` (what
a client keeps), ``client`` and ``program`` (what a client does, and what its user wants),
``plan`` (what one seed is made of), ``faults``, ``cast``, and ``run`` (one run of one seed). Time,
processes and network are those of ``simulations.world``.

What may not live here: a real clock, a thread, a socket, a choice that is not drawn from the seed.
"""
