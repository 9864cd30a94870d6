"""A client subscribes, subscribes again, unsubscribes, and does so again; requests come late.

It is told each time whether that changed something. It gets what is put while it is subscribed,
nothing from before and nothing from after, and a second subscription knows nothing of the first. A
request that got stuck on its way and arrives after a newer one is not done.
"""

from __future__ import annotations

import sys

from broker.errors import BrokerError, NotSubscribed
from simulations.stage.proxy import UP, Weather
from simulations.stage.script import Script, main
from simulations.stage.topic_processes import TOPIC, TopicBroker, TopicGateway, open_client
from topics import Topics

SHORT_S = 0.1


def story(script: Script) -> None:
    """What happens."""
    broker = TopicBroker(script)
    source = open_client(script, "source", broker.name_server)
    reader = open_client(script, "reader", broker.name_server)
    source.put(TOPIC, "before")
    told = [reader.subscribe(TOPIC), reader.subscribe(TOPIC)]
    source.put_many(TOPIC, ["one", "two"])
    script.expect("subscribe, and again: new", [True, False], told)
    script.expect("got: nothing from before", ["one", "two"], _all(reader))

    source.put(TOPIC, "never read")
    told = [reader.unsubscribe(TOPIC), reader.unsubscribe(TOPIC)]
    script.expect("unsubscribe, and again: was subscribed", [True, False], told)
    script.expect("messages that wait for somebody", 0, broker.topic()["backlog"])
    script.expect("get after that is refused with", NotSubscribed.code, _refusal(reader))
    source.put(TOPIC, "between")
    reader.subscribe(TOPIC)
    source.put(TOPIC, "three")
    script.expect("subscribed anew: nothing from between", ["three"], _all(reader))
    script.step("verbs", "subscribe and unsubscribe, each twice, and once more")

    _late(script, broker)
    source.put(TOPIC, "four")
    script.expect("got after all", ["four"], _all(reader))


def _late(script: Script, broker: TopicBroker) -> None:
    """A copy of an unsubscribe is held up on its way, and arrives after a newer subscribe."""
    gateway = TopicGateway(script, broker)
    late = open_client(script, "late", gateway.name_server, timeout_s=1.0)
    late.subscribe(TOPIC)
    late.close()
    late = open_client(script, "late", gateway.name_server, timeout_s=SHORT_S, tries=1)
    script.wait(lambda: _answers(late), "the client is connected")
    gateway.proxy.set(up=Weather(held=True))
    try:
        late.unsubscribe(TOPIC)
        text = "no error"
    except BrokerError as error:
        text = str(error)
    late.close()
    script.expect_true("unsubscribe that is held up: told", "outcome is unknown", text,
                       "outcome is unknown" in text)  # fmt: skip
    again = open_client(script, "late", broker.name_server)
    script.expect("subscribe by another way, meanwhile: new", False, again.subscribe(TOPIC))
    again.unsubscribe(TOPIC)
    script.expect("left and subscribed anew: new", True, again.subscribe(TOPIC))
    before, answers = _ticket(broker), gateway.proxy.count.passed_bytes["down"]
    passed = gateway.proxy.count.passed_bytes[UP]
    gateway.proxy.heal()
    script.wait(
        lambda: gateway.proxy.count.passed_bytes[UP] > passed
        and gateway.proxy.count.passed_bytes["down"] > answers,
        "the late request has come and was answered",
    )  # fmt: skip
    script.step("late", "the first unsubscribe arrives after the newest subscribe")
    script.expect("the late request changed nothing", before, _ticket(broker))
    again.unsubscribe(TOPIC)
    again.close()


def _ticket(broker: TopicBroker) -> list[str]:
    return sorted(row["client"] for row in broker.topic(clients=9)["subscriptions"])


def _answers(client: Topics) -> bool:
    try:
        client.get(TOPIC)
    except BrokerError:
        return False
    return True


def _all(client: Topics) -> list[str]:
    found = [message.body for message in client.get_many(TOPIC, 100)]
    client.get(TOPIC)  # it says that they have come
    return found


def _refusal(client: Topics) -> str:
    try:
        client.get(TOPIC)
    except BrokerError as error:
        return error.code
    return "not refused"


if __name__ == "__main__":
    sys.exit(main(story, "Topics: subscribe and unsubscribe", __doc__ or ""))
