"""The command ``fairlead``: the broker, its name server and its channels from a shell.

One file per group of commands; ``command.py`` puts them together. Nothing here decides anything
about messages: every command is a few calls of ``broker``, ``publisher`` or ``subscriber``, and the
text around them. Nobody imports this package; it is the outermost layer.
"""
