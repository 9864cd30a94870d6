"""Pyro5 made safe, for both sides: the daemon, the exposed methods, the name server. No channels."""
