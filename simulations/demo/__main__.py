"""``python -m simulations.demo``: what ``run_demo.sh`` starts."""

from __future__ import annotations

import sys

from simulations.demo.command import main

if __name__ == "__main__":
    sys.exit(main())
