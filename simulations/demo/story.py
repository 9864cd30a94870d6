"""What happens in the demonstration, in its order. Each part is timed under a name of its own."""

from __future__ import annotations

from simulations.demo import faults
from simulations.demo.stage import CHANNELS, CRASHED, SLOWED, Stage


def perform(stage: Stage) -> None:
    """All of it, from the first process to the last."""
    part = stage.screen.part
    with part("start"):
        stage.start_broker()
        stage.open_channels()
        stage.start_workers()
    with part("flow"):
        stage.start_flow()
    with part("crash"):
        faults.crash_subscriber(stage, "payments", CRASHED)
    with part("slow"):
        faults.slow_subscriber(stage, "orders", SLOWED)
    with part("queues"):
        faults.crash_queues(stage, "orders")
    with part("copies"):
        for channel in CHANNELS:
            faults.publish_copies(stage, channel)
    with part("flow"):
        stage.finish_flow()
    with part("end"):
        stage.wait_for_quiet()
        stage.close()
