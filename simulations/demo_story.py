"""What happens in the demonstration, in its order."""

from __future__ import annotations

from simulations import demo_faults
from simulations.demo_stage import CHANNELS, CRASHED, SLOWED, Stage


def perform(stage: Stage) -> None:
    """All of it, from the first process to the last."""
    stage.start_broker()
    stage.open_channels()
    stage.start_workers()
    stage.start_flow()
    demo_faults.crash_subscriber(stage, "payments", CRASHED)
    demo_faults.slow_subscriber(stage, "orders", SLOWED)
    demo_faults.crash_queues(stage, "orders")
    for channel in CHANNELS:
        demo_faults.publish_copies(stage, channel)
    stage.finish_flow()
    stage.wait_for_quiet()
    stage.close()
