"""The faults of the demonstration. Each is brought about while messages flow, and then waited for
until its effect has been seen: a subscriber that dies, one that is slow, queues that crash,
messages that are published again.
"""

from __future__ import annotations

import time

from simulations.demo.flow import accepted_between
from simulations.demo.stage import POLICY, Stage

SLOW_S = 0.4
QUEUES_DOWN_S = 0.8
UNSTARTED_MIN = 10
COPIES = 25


def crash_subscriber(stage: Stage, channel: str, name: str) -> None:
    """SIGKILL in the middle of a message, with more in the buffer."""
    victim = stage.workers[name]
    victim.tell("hold")

    def loaded() -> bool:
        history = victim.history()
        return bool(history.in_hand) and history.unstarted >= UNSTARTED_MIN

    stage.wait(
        loaded,
        f"{name} is inside a message and has {UNSTARTED_MIN} more in its buffer",
        lambda: f"{len(victim.history().in_hand)} in hand, {victim.history().unstarted} more",
    )
    history = victim.crash()
    stage.seen.in_hand, stage.seen.unstarted = history.in_hand, history.unstarted
    stage.seen.crash_exit = victim.process.returncode
    stage.screen.step(
        "crash", f"killed {name} (SIGKILL) inside {len(history.in_hand)} message(s), with "
        f"{history.unstarted} more in its buffer",
    )  # fmt: skip
    other = next(w for w in stage.workers.values() if w.channel == channel and w is not victim)
    wanted = {run.message for run in history.in_hand}
    stage.wait(
        lambda: wanted <= other.history().finished(),
        f"what {name} had in hand is finished by {other.name}",
        lambda: f"{channel} has the subscribers {list(stage.broker.group(channel)['subscribers'])}",
    )
    stage.screen.step("crash", f"{other.name} has taken over, from the message that was running")


def slow_subscriber(stage: Stage, channel: str, name: str) -> None:
    """Three long delays; the spell ends when its unstarted work has been seen to move."""
    slow = stage.workers[name]
    before = stage.broker.group(channel)
    stage.seen.slow_session = before["subscribers"][name]["session"]
    moved_before: int = before["handover_total"].get("slow", 0)
    stage.seen.slow_from = begin = time.monotonic()
    slow.tell(f"slow {SLOW_S}")
    stage.screen.step("slow", f"{name} takes {SLOW_S * 1000:.0f} ms for each message from now on")

    def moved() -> int:
        total: int = stage.broker.group(channel)["handover_total"].get("slow", 0)
        return total - moved_before

    def delays() -> int:
        runs = slow.history().longer_than(POLICY["long_delay_ms"] / 1000)
        return sum(run.start > begin for run in runs)

    stage.wait(
        lambda: delays() >= POLICY["long_delays_max"] and moved(),
        f"three long delays of {name}, and its unstarted messages go to the other",
        lambda: f"{delays()} long delays, {moved()} messages moved",
    )
    slow.tell("normal")
    stage.seen.long_delays, stage.seen.slow_until = delays(), time.monotonic()
    stage.screen.step(
        "slow", f"after {delays()} long delays {moved()} unstarted messages moved to the other"
    )
    stage.wait(
        lambda: any(run.start > stage.seen.slow_until for run in slow.history().runs),
        f"{name} gets new work",
        stage.handled,
    )


def crash_queues(stage: Stage, channel: str) -> None:
    """Lose the global queue and all sub-queues while publishing goes on."""
    lost = stage.broker.call(channel, "kill_queues", QUEUES_DOWN_S)["killed"]
    begin = end = time.monotonic()
    stage.screen.step("queues", f"crashed all queues of {channel}; {lost} messages were in them")

    def restored() -> bool:
        nonlocal end
        asked_at = time.monotonic()
        if stage.broker.statistics(channel)["queues_down"]:
            end = asked_at
            return False
        return True

    stage.wait(restored, f"the backup has restored the queues of {channel}", lambda: "still down")
    stage.seen.queues_lost, stage.seen.queues_down = lost, (begin, end)
    pumps = stage.pumps[channel]
    stage.seen.while_down = sent, accepted = accepted_between(pumps, begin, end)
    stage.screen.step(
        "queues", f"restored from the backup; {accepted} of {sent} messages that were published "
        "meanwhile are accepted",
    )  # fmt: skip


def publish_copies(stage: Stage, channel: str) -> None:
    """The same ids again, and old sequences again by a plain remote call."""
    copies = [copy for pump in stage.pumps[channel] for copy in pump.repeat_ids(COPIES)]
    stage.wait(
        lambda: all(copy.receipt.done() for copy in copies),
        f"the copies for {channel} are answered",
        lambda: f"{sum(copy.receipt.done() for copy in copies)} of {len(copies)} answered",
    )
    sent = dropped = accepted = 0
    for pump in stage.pumps[channel]:
        partition, count = pump.confirmed_in_first_partition(COPIES)
        bodies = [{"body": {"number": n, "copy": True}} for n in range(1, count + 1)]
        reply = stage.broker.call(
            channel, "publish", pump.name_of_publisher, partition, bodies, 1
        )
        sent += len(bodies)
        dropped += reply["duplicates"]
        accepted += reply["accepted"]
    stage.seen.plain_sent[channel] = sent
    stage.seen.plain_dropped[channel] = dropped
    stage.seen.plain_accepted[channel] = accepted
    stage.screen.step(
        "copies", f"published again to {channel}: {len(copies)} messages with ids of their own, "
        f"{sent} with old sequences",
    )  # fmt: skip
