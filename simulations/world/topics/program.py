"""What the user of a simulated client does with it: three threads of wishes, then the calm end.

A wish that a crash interrupts is gone, but for a request about a subscription that its user insists
on. What was wanted is known here over all lives of the client's process.
"""

from __future__ import annotations

from broker.errors import BrokerError, ClientElsewhere
from simulations.world.scheduler import MS_US, SECOND_US, Steps, World
from simulations.world.topics.client import TopicsClient
from simulations.world.topics.plan import Step, Wishes

CALM_COUNT = 10


class Program:
    """The user of one client."""

    def __init__(self, wishes: Wishes, topics: list[str], world: World, calm_us: int) -> None:
        self.name = wishes.name
        self.idle = {"puts": False, "gets": False, "requests": False}
        self.takes_over = False  # its directory was lost, and a new one is to go on
        self._wishes = wishes
        self._topics = topics
        self.calm = False  # the faults have stopped
        self._world, self._calm_us = world, calm_us
        self._at = {"puts": 0, "gets": 0, "requests": 0}  # the next wish of each thread
        self._bodies = 0
        self._wanted: dict[str, str] = {}  # the last request of each topic that was begun

    def busy_in_us(self, now_us: int) -> int:
        """How long it is until it next wants something about a subscription."""
        place = self._at["requests"]
        steps = self._wishes.requests
        return max(0, steps[place].at_us - now_us) if place < len(steps) else 0

    def run(self, client: TopicsClient) -> None:
        """A life of the client's process begins."""
        self.idle = dict.fromkeys(self.idle, False)
        client.world.spawn(client, self._live(client))

    def _live(self, client: TopicsClient) -> Steps:
        while self.takes_over:
            try:
                yield from client.take_over()
                self.takes_over = False
            except BrokerError as error:
                client.world.note(self.name, f"cannot take over yet: {error}")
                yield 300 * MS_US
        for thread in (self._puts, self._gets, self._requests):
            client.world.spawn(client, thread(client))

    def _next(self, client: TopicsClient, thread: str, steps: list[Step]) -> Steps:
        """The next wish when its time has come; None when there is none."""
        place = self._at[thread]
        if place == len(steps):
            return None
        if steps[place].at_us > client.world.now_us:
            yield steps[place].at_us - client.world.now_us
        return steps[place]

    def _calm(self) -> Steps:
        while not self.calm:
            yield max(MS_US, self._calm_us - self._world.now_us)

    def _tried(self, client: TopicsClient, topic: str, work: Steps) -> Steps:
        """Whether a call has done what was wanted."""
        try:
            yield from work
            return True
        except ClientElsewhere as error:
            client.world.note(self.name, str(error))
            if client.directory.life and client.directory.instance.endswith("+"):
                # A request of the lost directory came after it was taken over.
                yield from self._tried(client, topic, client.take_over_one(topic))
        except BrokerError as error:
            client.world.note(self.name, f"{error.code}: {error}")
        return False

    # Puts.

    def _puts(self, client: TopicsClient) -> Steps:
        while (step := (yield from self._next(client, "puts", self._wishes.puts))) is not None:
            self._at["puts"] += 1
            bodies = [self._body(step.topic) for _ in range(step.count)]
            yield from self._tried(client, step.topic, client.put(step.topic, bodies))
        yield from self._calm()
        for topic in self._topics:
            while not (yield from self._tried(client, topic, client.settle(topic))):
                yield 300 * MS_US
            # Whatever has happened, there is one more message for everybody.
            while not (yield from self._tried(client, topic, self._put_last(client, topic))):
                yield 300 * MS_US
        self.idle["puts"] = True

    def _put_last(self, client: TopicsClient, topic: str) -> Steps:
        yield from client.put(topic, [self._body(topic)])

    def _body(self, topic: str) -> bytes:
        self._bodies += 1
        return f"{self.name}/{topic}/{self._bodies}".encode()

    # Gets.

    def _gets(self, client: TopicsClient) -> Steps:
        while (step := (yield from self._next(client, "gets", self._wishes.gets))) is not None:
            self._at["gets"] += 1
            yield from self._tried(client, step.topic, self._get(client, step))
        yield from self._calm()
        while True:
            self.idle["gets"] = False
            topics = client.ledger.subscribed()
            step = Step(0, "any many", count=CALM_COUNT)
            done = yield from self._tried(client, "", self._get(client, step)) if topics else ()
            self.idle["gets"] = bool(done) or not topics
            yield SECOND_US // 5

    def _get(self, client: TopicsClient, step: Step) -> Steps:
        subscribed = client.ledger.subscribed()
        if step.want.startswith("any"):
            if subscribed:
                count = step.count if step.want == "any many" else 1
                yield from client.get(subscribed, count, step.wait_us)
            return
        if step.topic not in subscribed:
            return
        if step.want in ("one", "many"):
            count = step.count if step.want == "many" else 1
            yield from client.get([step.topic], count, step.wait_us)
            return
        messages = yield from client.receive(step.topic, step.count, step.wait_us)
        if messages and step.want == "two steps":
            yield from client.step()
            yield from client.confirm(messages[len(messages) // 2])

    # Requests.

    def _requests(self, client: TopicsClient) -> Steps:
        steps = self._wishes.requests
        while (step := (yield from self._next(client, "requests", steps))) is not None:
            self._wanted[step.topic] = step.want
            if not step.insist:
                self._at["requests"] += 1
            done = yield from self._tried(client, step.topic, self._request(client, step))
            if step.insist:
                if done or self.calm:
                    self._at["requests"] += 1
                else:
                    yield 100 * MS_US
        yield from self._calm()
        for topic in self._topics:
            # The last word: nothing that came before it may be done after it.
            want = self._wanted.get(topic, "unsubscribe")
            last = Step(0, want, topic)
            while not (yield from self._tried(client, topic, self._request(client, last))):
                yield 300 * MS_US
        self.idle["requests"] = True

    def _request(self, client: TopicsClient, step: Step) -> Steps:
        if step.want == "subscribe":
            yield from client.subscribe(step.topic)
        else:
            yield from client.unsubscribe(step.topic)
