"""The audit as a job for a cluster: ``spark-submit --master URL spark/__main__.py STORE ...``.

The same as ``fairlead audit`` with the same options; the session is the one of spark-submit.
"""

from __future__ import annotations

import sys

from fairlead.command import run

if __name__ == "__main__":
    sys.exit(run(["audit", *sys.argv[1:]]))
