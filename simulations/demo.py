"""The demonstration: ``python -m simulations.demo``, or ``./run_demo.sh``, which sets itself up.

What lives here: the options, the folder, signals and exit codes. What happens is in ``demo_story``,
what it means in ``demo_check`` and ``demo_report``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

from broker.errors import BrokerError
from simulations import demo_report, demo_story
from simulations.demo_screen import Screen
from simulations.demo_stage import Stage
from simulations.demo_wait import Failure


class Interrupted(BaseException):
    """A signal asks for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main(arguments: list[str] | None = None) -> int:
    """Run it; the exit code is 0 only if everything is as promised."""
    options = _options(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    screen = Screen()
    folder = Path(tempfile.mkdtemp(prefix="fairlead-demo-"))
    code = 1
    try:
        code = _run(folder, options, screen)
    except Interrupted as interrupted:
        code = 128 + interrupted.number
    finally:
        if options.keep or code == 1:
            screen.step("kept", f"store, logs and histories are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return code


def _run(folder: Path, options: argparse.Namespace, screen: Screen) -> int:
    stage = Stage(folder, options.seed, screen)
    try:
        demo_story.perform(stage)
    except (Failure, BrokerError) as error:
        screen.quiet()
        screen.step("FAILED", str(error))
        _write(options, screen, {"ok": False, "failed": str(error)})
        return 1
    except Interrupted as interrupted:
        screen.quiet()
        name = signal.Signals(interrupted.number).name
        screen.step("stop", f"{name}: ending all processes; once more ends them at once")
        raise
    finally:
        stage.close()
    report = demo_report.make(stage)
    _write(options, screen, report.to_dict())
    demo_report.show(report, screen)
    good = sum(check.ok for check in report.checks)
    verdict = "all is as promised" if report.ok else "NOT as promised"
    screen.step("verdict", f"{verdict}: {good} of {len(report.checks)} checks hold")
    return 0 if report.ok else 1


def _write(options: argparse.Namespace, screen: Screen, told: dict[str, Any]) -> None:
    if options.json is not None:
        whole = {"seed": options.seed, "seconds": round(screen.seconds, 1), **told}
        options.json.write_text(json.dumps(whole, indent=2) + "\n")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="run_demo.sh",
        description="Starts a broker, publishes to two channels with two subscriber processes "
        "each, crashes and slows things while messages flow, and proves from what the subscribers "
        "really received that every promise was kept.",
        epilog="Exit code: 0 all is as promised; 1 something is not, or a step failed; "
        "128 + the signal's number when interrupted.",
    )
    parser.add_argument("--seed", type=int, default=1, help="what is published (default: 1)")
    parser.add_argument(
        "--keep", action="store_true", help="keep the folder with store, logs and histories"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write figures and checks there"
    )
    return parser.parse_args(arguments)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise Interrupted(number)


if __name__ == "__main__":
    sys.exit(main())
