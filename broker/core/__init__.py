"""The pure core of a channel. The rules of this folder:

1. No clock, no thread, no socket, no file, no randomness, no logging, no Pyro5. Time is an argument
   (``now_ms``), ids come from the caller.
2. ``Channel.decide(command, now_ms)`` looks and changes nothing. ``Channel.apply(record)`` changes
   and decides nothing. Whatever happened is a record; the state is the fold of the records.
3. Everything is bounded by ``Policy``. Going over a limit is an error with a code.
4. Work is done per batch. What runs once per message is a dictionary look-up, a comparison and an
   append, and nothing else may be added to those loops without a measurement.

The same code runs under the server, in recovery, in the simulator and in property tests.
"""
