"""What goes wrong in a run, one function per kind of fault. Each says what it did.

A fault draws its details from its own salt, so that leaving another one out does not change it.
It returns a line for the trace, or None when there was nothing to do it to; then it does not count.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Callable

from simulations.world.network import Weather
from simulations.world.scheduler import MS_US, SECOND_US, Process

if TYPE_CHECKING:
    from simulations.world.cast import Cast


def inject(run: Cast, kind: str, salt: int) -> str | None:
    """Let a fault happen now."""
    return _FAULTS[kind](run, Random(salt))


def _broker_crash(run: Cast, random: Random) -> str | None:
    if run.broker.dead:
        return None
    lost = run.crash_broker("killed", random.randrange(20 * MS_US, 3 * SECOND_US))
    return f"broker killed, {lost} written records lost"


def _broker_crash_in_recovery(run: Cast, random: Random) -> str | None:
    if run.broker.dead:
        return None
    run.crash_in_recovery_us = random.randrange(1, 3 * MS_US)
    lost = run.crash_broker("killed", random.randrange(20 * MS_US, SECOND_US))
    return f"broker killed, {lost} written records lost; to be killed again as it starts"


def _broker_hang(run: Cast, random: Random) -> str | None:
    return _hang(run, random, run.broker)


def _hang(run: Cast, random: Random, process: Process) -> str | None:
    for_us = random.randrange(50 * MS_US, random.choice((500, 5_000, 20_000)) * MS_US)
    return run.freeze(process, for_us)


def _subscriber_crash(run: Cast, random: Random) -> str | None:
    subscriber = run.pick_subscriber(random)
    if subscriber is None:
        return None
    run.restart_after_us[subscriber.name] = random.randrange(10 * MS_US, 8 * SECOND_US)
    run.kill_subscriber(subscriber, "killed")
    return f"{subscriber.name} killed"


def _subscriber_hang(run: Cast, random: Random) -> str | None:
    subscriber = run.pick_subscriber(random)
    return None if subscriber is None else _hang(run, random, subscriber)


def _subscriber_leaves(run: Cast, random: Random) -> str | None:
    subscriber = run.pick_subscriber(random)
    if subscriber is None or subscriber.leaving or subscriber.frozen:
        return None
    run.restart_after_us[subscriber.name] = random.randrange(10 * MS_US, 8 * SECOND_US)
    subscriber.leave()
    return f"{subscriber.name} is asked to leave"


def _subscriber_twin(run: Cast, random: Random) -> str | None:
    subscriber = run.pick_subscriber(random)
    if subscriber is None or subscriber.leaving or run.is_guest(subscriber):
        return None
    run.start_subscriber(subscriber.name)
    return f"a second {subscriber.name} is started while the first one lives"


def _subscriber_joins(run: Cast, random: Random) -> str | None:
    name = run.join(random.choice((1, 5, 100)), random.randrange(SECOND_US, 20 * SECOND_US))
    return f"{name} joins for a while"


def _publisher_crash(run: Cast, random: Random) -> str | None:
    publisher = run.pick_publisher(random)
    if publisher is None:
        return None
    run.restart_after_us[publisher.name] = random.randrange(10 * MS_US, 5 * SECOND_US)
    run.kill_publisher(publisher)
    return f"{publisher.name} killed"


def _publisher_hang(run: Cast, random: Random) -> str | None:
    publisher = run.pick_publisher(random)
    return None if publisher is None else _hang(run, random, publisher)


def _publisher_twin(run: Cast, random: Random) -> str | None:
    publisher = run.pick_publisher(random)
    if publisher is None:
        return None
    run.start_publisher(publisher.name)
    return f"a second {publisher.name} is started while the first one lives"


def _queue_crash(run: Cast, random: Random) -> str | None:
    if run.broker.dead or run.broker.frozen:
        return None
    return run.kill_queues(random.randrange(20, 1_500))


def _journal_failure(run: Cast, random: Random) -> str | None:
    if run.broker.dead:
        return None
    run.disk.fail_next(OSError("fsync failed"))
    return "the next sync of the journal fails"


def _journal_slow(run: Cast, random: Random) -> str | None:
    for_us = random.randrange(SECOND_US, 8 * SECOND_US)
    run.disk.sync_us_max = random.choice((200, 1_500)) * MS_US
    run.later(for_us, lambda: setattr(run.disk, "sync_us_max", run.plan.sync_us_max))
    return f"syncs take up to {run.disk.sync_us_max // MS_US} ms for {for_us / SECOND_US:.1f} s"


def _journal_trimmed(run: Cast, random: Random) -> str | None:
    count = run.disk.trim_durable()
    return f"{count} records archived and trimmed" if count else None


def _clock_jump(run: Cast, random: Random) -> str | None:
    jump_s = random.choice((-3_600, -30, 30, 3_600, 10 * 365 * 86_400))
    run.world.wall_offset_us += jump_s * SECOND_US
    return f"the wall clock jumps by {jump_s} s"


def _link_cut(run: Cast, random: Random) -> str | None:
    names = [*run.subscribers, *run.publishers]
    name = random.choice(names)
    ways = random.choice(
        ([(name, "broker")], [("broker", name)], [(name, "broker"), ("broker", name)])
    )
    for_us = random.randrange(100 * MS_US, 10 * SECOND_US)
    for way in ways:
        run.network.cut(*way)

    def mend() -> None:
        for way in ways:
            run.network.mend(*way)

    run.later(for_us, mend)
    shown = " and ".join(f"{source} to {target}" for source, target in ways)
    return f"nothing gets from {shown} for {for_us / SECOND_US:.1f} s"


def _storm(run: Cast, random: Random) -> str | None:
    for_us = random.randrange(SECOND_US, 10 * SECOND_US)
    run.network.weather = Weather(
        random.choice((0.0, 0.1, 0.3)), random.choice((0.0, 0.1, 0.3)),
        random.choice((0.1, 0.4)), random.choice((100, 3_000)) * MS_US,
    )  # fmt: skip

    def end() -> None:
        run.network.weather = run.plan.weather

    run.later(for_us, end)
    return f"a storm of {for_us / SECOND_US:.1f} s: {run.network.weather}"


def _slow_spell(run: Cast, random: Random) -> str | None:
    subscriber = run.pick_subscriber(random)
    if subscriber is None:
        return None
    for_us = random.randrange(SECOND_US, 10 * SECOND_US)
    run.handling.slow_until_us[subscriber.name] = run.world.now_us + for_us
    return f"handlers of {subscriber.name} are slow for {for_us / SECOND_US:.1f} s"


def _redrive(run: Cast, random: Random) -> str | None:
    drop = random.random() < 0.2
    run.ask_broker("redrive", "default", None, drop)
    return "what is parked is given up" if drop else "what is parked goes again"


def _subscription_anew(run: Cast, random: Random) -> str | None:
    return run.make_second_anew(random.randrange(10 * MS_US, 2 * SECOND_US))


_FAULTS: dict[str, Callable[[Cast, Random], str | None]] = {
    "broker crash": _broker_crash,
    "broker crash in recovery": _broker_crash_in_recovery,
    "broker hang": _broker_hang,
    "subscriber crash": _subscriber_crash,
    "subscriber hang": _subscriber_hang,
    "subscriber leaves": _subscriber_leaves,
    "subscriber joins": _subscriber_joins,
    "subscriber twin": _subscriber_twin,
    "publisher crash": _publisher_crash,
    "publisher hang": _publisher_hang,
    "publisher twin": _publisher_twin,
    "queue crash": _queue_crash,
    "journal failure": _journal_failure,
    "journal slow": _journal_slow,
    "journal trimmed": _journal_trimmed,
    "clock jump": _clock_jump,
    "link cut": _link_cut,
    "storm": _storm,
    "slow spell": _slow_spell,
    "redrive": _redrive,
    "subscription anew": _subscription_anew,
}
