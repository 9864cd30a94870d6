"""A user's own handler in the simulator: what its messages go through, and what then must hold.

Every message is published and, in the end, handled. On the way subscribers crash before and after
the handler's effect and at the points that it names, the handler seems to fail before and after its
effect, answers get lost, so that messages come again, there are slow spells, and partitions move
between subscribers. What the handler did to its own world is the user's to check.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Callable, Iterable, Sequence

from broker.core.policy import Policy
from broker.errors import BadRequest
from broker.wire import check_id, encode_body
from simulations.world.handling import PlannedHandling, place_of
from simulations.world.profile import (
    TRIAL,
    Plan,
    draw_faults,
    draw_weather,
    find_profile,
    stream,
)
from simulations.world.run import Result, Run
from simulations.world.scheduler import MS_US, SECOND_US
from simulations.world.subscriber import SimulatedSubscriber
from subscriber.message import Message

PROFILE = find_profile(TRIAL)

#: (partition, body), or (publisher, partition, body)
Given = Sequence[Any]
Handler = Callable[[Message], Any]
#: Called when a process starts; what its handler remembers is gone when the process ends.
Start = Callable[[], Handler]
Make = Callable[[], "tuple[Start, Callable[[], Any]]"]

FAIL_SHARE = 0.06  # of handlings, for each of the four kinds of failure around the effect
STORY_LINES = 40


class Crashed(BaseException):
    """The process of the handler ends here. Only a bare ``except`` catches it by accident."""


class Failed(Exception):
    """What the handler called has failed, as far as the broker can tell."""


@dataclass(slots=True)
class Trial:
    """What became of one seed: the run, and what the user's check said."""

    seed: int
    result: Result
    complaint: BaseException | None
    story: list[str]

    @property
    def ok(self) -> bool:
        """Whether the run and the check are fine."""
        return self.result.ok and self.complaint is None


class TrialHandling(PlannedHandling):
    """Calls the user's handler, and lets things go wrong around it."""

    start: Start
    seed_random: Random
    story: list[str]
    handlers: dict[SimulatedSubscriber, Handler]
    error: BaseException | None = None

    def handle(self, subscriber: SimulatedSubscriber, message: Message) -> None:
        """Before the effect, inside it, after it: each may be the end."""
        self.running.pop(place_of(subscriber, message), None)
        self._fail("before", subscriber, message)
        if subscriber not in self.handlers:
            self.handlers[subscriber] = self.start()
        try:
            self.handlers[subscriber](message)
        except Crashed:
            self._tell(subscriber, message, "its process was killed inside the handler")
            self._kill(subscriber, "killed inside its handler")
            return
        except Exception as error:
            self.error = error
            self._tell(subscriber, message, f"raised {type(error).__name__}: {error}")
            raise
        self.handled += 1
        if message.verdict is not None:
            self._tell(subscriber, message, f"left the verdict {message.verdict[2]!r}")
            return
        self._fail("after", subscriber, message)
        if not subscriber.dead:
            self._tell(subscriber, message, "done")

    def crash_point(self) -> None:
        """Called by the handler: the process may end here."""
        if not self.calm and self.seed_random.random() < FAIL_SHARE:
            raise Crashed

    def _fail(self, when: str, subscriber: SimulatedSubscriber, message: Message) -> None:
        if self.calm:
            return
        luck = self.seed_random.random()
        if luck < FAIL_SHARE:
            self._tell(subscriber, message, f"its process was killed {when} the effect")
            self._kill(subscriber, f"killed {when} the effect of its handler")
            if when == "before":
                raise Failed("dead")
        elif luck < 2 * FAIL_SHARE:
            self._tell(subscriber, message, f"failed {when} the effect")
            raise Failed(f"failed {when} the effect")

    def _tell(self, subscriber: SimulatedSubscriber, message: Message, what: str) -> None:
        self.story.append(
            f"{subscriber.world.now_us / SECOND_US:9.3f} s  {subscriber.name:4} "
            f"{message.publisher}/{message.partition} sequence {message.sequence} attempt "
            f"{message.attempt}: {what}"
        )


def run_trial(seed: int, make: Make, messages: Iterable[Given]) -> Trial:
    """One seed: a fresh handler, all messages, and the check at the end."""
    start, check = make()
    story: list[str] = []
    random = stream(seed, "trial")

    class Ours(TrialHandling):
        pass

    Ours.start = staticmethod(start)
    Ours.seed_random, Ours.story, Ours.handlers = random, story, {}
    run = Run(_plan(seed, messages), handling=Ours)
    global _current
    assert isinstance(run.handling, TrialHandling)
    _current = run.handling
    try:
        result = run.perform()
    finally:
        _current = None
    if not result.ok and result.kind == "liveness" and run.handling.error is not None:
        result.text = f"the handler never succeeds: {run.handling.error!r}"
    complaint: BaseException | None = None
    if result.ok:
        try:
            check()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # pytest.fail raises no Exception
            complaint = error
    return Trial(seed, result, complaint, story)


_current: TrialHandling | None = None


def crash_point() -> None:
    """A place in a handler at which its process may die, in a trial; elsewhere it does nothing."""
    if _current is not None:
        _current.crash_point()


def _plan(seed: int, messages: Iterable[Given]) -> Plan:
    random = stream(seed, "plan")
    given = [_checked(item) for item in messages]
    if not given:
        raise BadRequest("there is nothing to handle; give at least one (partition, body)")
    duration_us = random.randint(10, 40) * SECOND_US
    times = sorted(random.randrange(duration_us) for _ in given)
    publishers: list[dict[str, Any]] = [
        {"name": name, "refuse": False, "batch": random.choice((1, 5, 50)), "partitions": []}
        for name in dict.fromkeys(publisher for publisher, _, _, _ in given)
    ]
    subscribers = [
        {"name": f"s{index}", "prefetch": random.choice((1, 3, 10, 100)),
         "concurrency": random.choice((1, 1, 2)), "subscription": "default"}
        for index in range(1, random.randint(1, 4) + 1)
    ]  # fmt: skip
    return Plan(
        seed, PROFILE.name, duration_us, _policy(random),
        draw_weather(stream(seed, "weather"), PROFILE), 4 * MS_US, publishers, subscribers, False,
        [
            (at_us, publisher, [(partition, body, 0, 0, None, kind)])
            for at_us, (publisher, partition, kind, body) in zip(times, given)
        ],
        {}, draw_faults(stream(seed, "faults"), PROFILE, duration_us), bodies_tell=False,
    )  # fmt: skip


def _checked(item: Given) -> tuple[str, str, int, bytes]:
    if isinstance(item, (str, bytes)) or not 2 <= len(item) <= 3:
        raise BadRequest(
            f"{item!r:.80} is no message: give (partition, body) or (publisher, partition, body)"
        )
    publisher, partition, body = item if len(item) == 3 else ("publisher", *item)
    kind, encoded = encode_body(body)
    return check_id(publisher, "publisher id"), check_id(partition, "partition id"), kind, encoded


def _policy(random: Random) -> Policy:
    """Nothing is ever set aside: what fails is tried again until it is done."""
    return Policy(
        poison="block", lease_ms=random.choice((1_000, 3_000)), sends_max=2, send_timeout_ms=500,
        send_backoff_ms=50, recall_after_ms=50, backoff_ms=50, backoff_ms_max=500,
        run_count_max=random.choice((1, 3, 256)), long_delay_ms=500, long_delays_max=2,
    )  # fmt: skip
