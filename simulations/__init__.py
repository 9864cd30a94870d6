"""Fairlead broken on purpose: the simulator, one story per fault, the demonstration."""
