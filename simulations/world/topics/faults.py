"""What goes wrong in the world of topics, one function per kind of fault. Each says what it did.

A fault draws its details from its own salt, so that leaving another one out does not change it.
It returns a line for the trace, or None when there was nothing to do it to; then it does not count.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Callable

from simulations.world.broker import ADDRESS
from simulations.world.network import Weather
from simulations.world.scheduler import MS_US, SECOND_US, Process

if TYPE_CHECKING:
    from simulations.world.topics.cast import TopicsCast


def inject(run: TopicsCast, kind: str, salt: int) -> str | None:
    """Let a fault happen now."""
    return _FAULTS[kind](run, Random(salt))


def _broker_crash(run: TopicsCast, random: Random) -> str | None:
    if run.broker.dead:
        return None
    restart_us = random.randrange(20 * MS_US, 3 * SECOND_US)
    if random.random() < 0.5:
        # Soon after one of the next records is written, so that it may or may not be there.
        run.crash_at_append = (random.randint(1, 8), random.randrange(3 * MS_US), restart_us)
        return "the broker is to be killed soon after a record is written"
    return f"broker killed, {run.crash_broker('killed', restart_us)} appends lost"


def _client_crash(run: TopicsCast, random: Random) -> str | None:
    client = run.pick(random)
    if client is None:
        return None
    run.restart_after_us[client.name] = random.randrange(10 * MS_US, 5 * SECOND_US)
    if random.random() < 0.7:
        client.steps_left = random.randint(1, 12)
        return f"{client.name} is to be killed {client.steps_left} steps from here"
    run.kill_client(client)
    return f"{client.name} killed"


def _client_away(run: TopicsCast, random: Random) -> str | None:
    client = run.pick(random)
    if client is None:
        return None
    away_us = random.randrange(SECOND_US, max(2 * SECOND_US, run.plan.duration_us // 2))
    run.restart_after_us[client.name] = away_us
    run.kill_client(client)
    return f"{client.name} is away for {away_us / SECOND_US:.0f} s"


def _directory_lost(run: TopicsCast, random: Random) -> str | None:
    client = run.pick(random)
    if client is None:
        return None
    run.restart_after_us[client.name] = random.randrange(10 * MS_US, 5 * SECOND_US)
    run.lose_directory(client)
    return f"{client.name} is killed and loses its directory; it is to take over its id"


def _second_directory(run: TopicsCast, random: Random) -> str | None:
    client = run.pick(random)
    topic = random.choice(run.plan.topics)
    if client is None or not run.knows(client.name, topic):
        return None
    run.start_second(client.name, topic, random.choice(("put", "subscribe", "unsubscribe")))
    return f"a second directory of {client.name} is used for {topic}"


def _broker_hang(run: TopicsCast, random: Random) -> str | None:
    return _hang(run, random, run.broker)


def _client_hang(run: TopicsCast, random: Random) -> str | None:
    client = run.pick(random)
    return None if client is None else _hang(run, random, client)


def _hang(run: TopicsCast, random: Random, process: Process) -> str | None:
    return run.freeze(process, random.randrange(50 * MS_US, random.choice((1, 5)) * SECOND_US))


def _journal_failure(run: TopicsCast, random: Random) -> str | None:
    if run.broker.dead:
        return None
    run.disk.fail_next(OSError("fsync failed"))
    return "the next sync of the journal fails"


def _journal_slow(run: TopicsCast, random: Random) -> str | None:
    for_us = random.randrange(SECOND_US, 8 * SECOND_US)
    run.disk.sync_us_max = random.choice((80, 200, 1_500)) * MS_US
    run.later(for_us, lambda: setattr(run.disk, "sync_us_max", run.plan.sync_us_max))
    return f"syncs take up to {run.disk.sync_us_max // MS_US} ms for {for_us / SECOND_US:.1f} s"


def _trimmed(run: TopicsCast, random: Random) -> str | None:
    if run.broker.dead or run.broker.frozen:
        return None
    if random.random() < 0.5:
        # When something is written, so that the state in the base is not durable yet.
        count = run.trim_at_append = random.randint(1, 4)
        if random.random() < 0.5:
            run.crash_at_append = (count, random.randrange(3 * MS_US), SECOND_US)
        return f"all is to be trimmed {count} records from here"
    count = run.broker.trim()
    return f"the journals of {count} topics are trimmed" if count else None


def _clock_jump(run: TopicsCast, random: Random) -> str | None:
    jump_s = random.choice((-3_600, -30, 30, 3_600, 8 * 86_400))
    run.world.wall_offset_us += jump_s * SECOND_US
    return f"the wall clock jumps by {jump_s} s"


def _link_cut(run: TopicsCast, random: Random) -> str | None:
    name = random.choice(list(run.programs))
    ways = random.choice(
        ([(name, ADDRESS)], [(ADDRESS, name)], [(name, ADDRESS), (ADDRESS, name)])
    )
    for_us = random.randrange(100 * MS_US, 5 * SECOND_US)
    for way in ways:
        run.network.cut(*way)

    def mend() -> None:
        for way in ways:
            run.network.mend(*way)

    run.later(for_us, mend)
    shown = " and ".join(f"{source} to {target}" for source, target in ways)
    return f"nothing gets from {shown} for {for_us / SECOND_US:.1f} s"


def _stuck(run: TopicsCast, random: Random) -> str | None:
    name = random.choice(list(run.programs))
    # At a time when the client wants something.
    after_us = run.programs[name].busy_in_us(run.world.now_us)
    for_us = random.randrange(SECOND_US, 4 * SECOND_US)
    run.network.stick(name, run.world.now_us + after_us + for_us, for_us)
    return f"calls of {name} get stuck for up to {for_us / SECOND_US:.1f} s"


def _storm(run: TopicsCast, random: Random) -> str | None:
    for_us = random.randrange(SECOND_US, 10 * SECOND_US)
    run.network.weather = Weather(
        random.choice((0.0, 0.1, 0.3)), random.choice((0.0, 0.1, 0.3)),
        random.choice((0.1, 0.4)), random.choice((200, 1_000, 3_000)) * MS_US,
    )  # fmt: skip

    def end() -> None:
        run.network.weather = run.plan.weather

    run.later(for_us, end)
    return f"a storm of {for_us / SECOND_US:.1f} s: {run.network.weather}"


_FAULTS: dict[str, Callable[[TopicsCast, Random], str | None]] = {
    "broker crash": _broker_crash,
    "broker hang": _broker_hang,
    "client crash": _client_crash,
    "client away": _client_away,
    "client hang": _client_hang,
    "directory lost": _directory_lost,
    "second directory": _second_directory,
    "journal failure": _journal_failure,
    "journal slow": _journal_slow,
    "topics trimmed": _trimmed,
    "clock jump": _clock_jump,
    "link cut": _link_cut,
    "calls stuck": _stuck,
    "storm": _storm,
}
