"""Pyro5 made safe, for both sides: daemon, exposed methods, name server. No channels."""
