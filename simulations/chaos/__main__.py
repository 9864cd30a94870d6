"""``python -m simulations.chaos``: the same as ``fairlead chaos``."""

from __future__ import annotations

import sys

from fairlead.command import run

if __name__ == "__main__":
    sys.exit(run(["chaos", *sys.argv[1:]]))
