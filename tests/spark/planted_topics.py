"""A good journal of a topic, the histories of its clients, and one fault at a time put into them.

The records are what the real core decides in a short story that has a bit of everything: resent and
refused puts, a client that is killed, one that leaves and comes back, one that loses its state
directory, one without any history. No test lives here.
"""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable
from zlib import crc32

from broker.core.topics import Topic, TopicPolicy
from broker.core.topics import commands as c
from broker.core.topics import records as t

Records = list[Any]
Line = dict[str, Any]
#: The lines of each life of a client, by (client, instance, life).
Histories = dict[tuple[str, str, int], list[Line]]
Plant = Callable[[Records, Histories], None]


def checksum(bodies: list[bytes]) -> int:
    """CRC-32 over the bodies in order."""
    return crc32(b"".join(bodies))


class Client:
    """A client of a topic that writes a history: what it does, and what it writes of it."""

    def __init__(self, story: Story, name: str, instance: str) -> None:
        self.story, self.name, self.instance = story, name, instance
        self.life = self.number = self.request = self.ticket = self.position = 0
        self.open()

    def open(self) -> None:
        """A new life begins; the one before it may have been killed."""
        self.life += 1
        self.story.files[self.name, self.instance, self.life] = self._lines = []
        self._add("opened")

    def _add(self, event: str, **fields: Any) -> None:
        self._lines.append({
            "client": "topic", "name": self.name, "session": str(self.life), "channel": "topics",
            "instance": self.instance, "event": event, **fields,
        })  # fmt: skip

    def _say(self, event: str, **fields: Any) -> None:
        self._add(event, topic=self.story.topic.name, **fields)

    def close(self) -> None:
        """A clean end."""
        self._add("closed")

    def subscribe(self) -> None:
        self.request += 1
        self._say("requested", request=self.request, ask="subscribe", ticket=0)
        reply = self.story.do(c.Subscribe(self.name, self.instance, self.request))
        self.ticket, self.position = reply["ticket"], reply["position"]
        self._say(
            "subscribed", request=self.request, ticket=self.ticket, position=self.position,
            new=reply["new"], born=reply["born"],
        )  # fmt: skip

    def unsubscribe(self) -> None:
        self.request += 1
        self._say("requested", request=self.request, ask="unsubscribe", ticket=self.ticket)
        self.story.do(c.Unsubscribe(self.name, self.instance, self.request, self.ticket))
        self._say("unsubscribed", request=self.request, ticket=self.ticket, was=True)

    def put(self, *bodies: bytes, lost: int = 0, refused: bool = False) -> None:
        """``lost``: how many answers got lost before one came."""
        call = {"number": self.number + 1, "count": len(bodies)}
        crc = self.story.crc_of(bodies)
        for sending in range(lost + 1):
            self._say("tried", **call, crc=crc, again=sending > 0)
            if sending == 0 and lost:
                self.story.put(self.name, self.instance, call["number"], bodies)
            if sending:
                self._say("unknown", **call)
        if refused:
            self._say("refused", **call, reason="topic-full")
            return
        reply = self.story.put(self.name, self.instance, call["number"], bodies)
        self.number += len(bodies)
        self._say(
            "answered", **call, position=reply["position"], again=reply["again"],
            born=reply["born"],
        )  # fmt: skip

    def _stretch(self, count: int) -> Line:
        first = self.position + 1
        bodies = self.story.bodies(first, count)
        return {"ticket": self.ticket, "first": first, "count": count, "crc": checksum(bodies)}

    def get(self, count: int, killed: bool = False) -> None:
        """Confirms what came before; ``killed``: after it was written down, before the line."""
        self.tell()
        if not killed:
            self._say("got", **self._stretch(count))
        self.position += count

    def tell(self) -> None:
        """A get that finds nothing."""
        self.story.do(c.Confirm(self.name, self.instance, self.ticket, self.position))

    def receive(self, count: int) -> None:
        self.tell()
        self._say("received", **self._stretch(count))

    def confirm(self, count: int) -> None:
        self.position += count
        self._say("confirmed", ticket=self.ticket, position=self.position)
        self.tell()

    def take_over(self) -> None:
        reply = self.story.do(c.TakeOver(self.name, self.instance))
        self.number, self.request = reply["number"], reply["request"]
        self.ticket, self.position = reply["ticket"], reply["position"]
        self._say("taken_over", number=self.number, ticket=self.ticket, position=self.position)


class Story:
    """A topic, its journal, and the histories of its clients."""

    def __init__(self, name: str, born: int = 1) -> None:
        self.topic = Topic(name)
        self.records: Records = []
        self.files: Histories = {}
        self._now_ms, self._stamp = 1_000, born - 1
        self._take(Topic.birth(name, TopicPolicy(), born, self._now_ms))

    def _take(self, records: Records) -> None:
        for record in records:
            self.topic.apply(record)
        self.records += records
        self._stamp = max(self._stamp, self.topic.stamp)

    def do(self, command: Any) -> dict[str, Any]:
        self._now_ms += 5
        if isinstance(command, c.PutMessages):
            command.stamp = self._stamp + 1
        elif isinstance(command, c.Subscribe):
            command.ticket = self._stamp + 1
        decision = self.topic.decide(command, self._now_ms)
        self._take(decision.records)
        return decision.reply

    def put(
        self, client: str, instance: str, number: int | None, bodies: Any
    ) -> dict[str, Any]:
        bodies = list(bodies)
        size = sum(map(len, bodies))
        crc = self.crc_of(bodies)
        return self.do(c.PutMessages(client, instance, number, 0, bodies, size, crc))

    @staticmethod
    def crc_of(bodies: Any) -> int:
        """Stands for the checksum of a call; any function of its bodies will do."""
        return crc32(repr([bytes(body) for body in bodies]).encode())

    def bodies(self, first: int, count: int) -> list[bytes]:
        every = [body for item in self.records if isinstance(item, t.Put) for body in item.bodies]
        return every[first - 1 : first - 1 + count]


def story(name: str, drained: bool = True, born: int = 1) -> Story:
    """A run in which every promise was kept."""
    told = Story(name, born)
    told.put("script", "", None, [b"before anybody was there"])
    ann, bob, carol = (Client(told, who, who + "-1") for who in ("ann", "bob", "carol"))
    bob.subscribe()
    ann.put(b"a1")
    carol.subscribe()
    ann.put(b"a2", b"", b"a4", lost=2)
    told.put("script", "", None, [b"s2"])
    bob.get(2)
    bob.get(2)
    carol.receive(2)
    carol.receive(3)
    carol.confirm(2)
    ann.put(b"full", refused=True)
    ann.put(b"full", refused=True)
    ann.put(b"full")
    ann.put(b"other", refused=True)
    ann.put(b"a6", b"a7")
    bob.get(1, killed=True)
    bob.open()
    bob.get(1)
    carol.unsubscribe()
    ann.put(b"a8")
    carol.subscribe()
    ann.put(b"a9", b"a10")
    carol.receive(2)
    carol.confirm(1)
    bob.get(3)
    _lose_directory(told)
    ann.put(b"a11")
    if drained:
        for client in (bob, carol):
            client.get(told.topic.log.last - client.position)
            client.tell()
    for client in (ann, bob, carol):
        client.close()
    return told


def _lose_directory(told: Story) -> None:
    """What dan got and did not confirm comes again to the directory that takes its id over."""
    old = Client(told, "dan", "dan-1")
    old.subscribe()
    told.put("script", "", None, [b"s3"])
    old.get(1)
    new = Client(told, "dan", "dan-2")
    new.take_over()
    new.get(1)
    new.unsubscribe()
    new.close()


def nth(records: Records, kind: type[Any], nth: int = -1) -> Any:
    """The nth record of a kind."""
    return [item for item in records if isinstance(item, kind)][nth]


def change(records: Records, record: Any, **values: Any) -> None:
    """One record says something else."""
    at = next(index for index, item in enumerate(records) if item is record)
    records[at] = replace(record, **values)


def of(records: Records, kind: type[Any], client: str, nth: int = -1) -> Any:
    """The nth record of a kind that a client has."""
    who = "publisher" if kind is t.Put else "subscriber"
    return [i for i in records if isinstance(i, kind) and getattr(i, who) == client][nth]


def _again(records: Records, files: Histories) -> None:
    """The last put of ann was accepted twice, under two numbers that are the same."""
    put = of(records, t.Put, "ann")
    last = nth(records, t.Put)
    records.append(replace(put, position=last.position + len(last.bodies), stamp=put.stamp + 90))


def _number_skipped(records: Records, files: Histories) -> None:
    put = of(records, t.Put, "script")
    change(records, put, number=put.number + 1)


def _position_skipped(records: Records, files: Histories) -> None:
    put = nth(records, t.Put)
    records.append(replace(put, publisher="new", instance="", number=1,
                           position=put.position + len(put.bodies) + 1,
                           stamp=put.stamp + 90))  # fmt: skip


def _old_stamp(records: Records, files: Histories) -> None:
    put = of(records, t.Put, "script")
    change(records, put, stamp=put.stamp - 3)


def _confirmed_again(records: Records, files: Histories) -> None:
    found = of(records, t.Confirmed, "bob")
    change(records, found, first=found.first - 1, count=found.count + 1)


def _confirmed_hole(records: Records, files: Histories) -> None:
    found = of(records, t.Confirmed, "bob")
    change(records, found, first=found.first + 1, count=found.count - 1)


def _confirmed_missing(records: Records, files: Histories) -> None:
    records.remove(of(records, t.Confirmed, "bob", 1))


def _confirmed_beyond(records: Records, files: Histories) -> None:
    found = of(records, t.Confirmed, "bob")
    change(records, found, count=found.count + 1)


def _confirmed_early(records: Records, files: Histories) -> None:
    """Before the last message was put."""
    put = nth(records, t.Put)
    records.remove(put)
    records.append(put)


def _confirmed_after_leaving(records: Records, files: Histories) -> None:
    found = of(records, t.TopicUnsubscribed, "carol")
    at = records.index(found) + 1
    records.insert(at, t.Confirmed(found.at_ms, "carol", found.ticket, found.position + 1, 1))


def _confirmed_other_ticket(records: Records, files: Histories) -> None:
    change(records, of(records, t.Confirmed, "carol"), ticket=2)


def _confirmed_by_nobody(records: Records, files: Histories) -> None:
    records.append(t.Confirmed(9_000, "zoe", 5, 1, 1))


def _old_ticket(records: Records, files: Histories) -> None:
    """Carol's second subscription has the ticket of its first one, and keeps it."""
    first = of(records, t.TopicSubscribed, "carol", 0).ticket
    at = records.index(of(records, t.TopicSubscribed, "carol"))
    for record in records[at:]:
        if getattr(record, "subscriber", "") == "carol":
            change(records, record, ticket=first)


def _off_beginning(records: Records, files: Histories) -> None:
    found = of(records, t.TopicSubscribed, "dan")
    change(records, found, position=found.position - 1)


def _subscribed_twice(records: Records, files: Histories) -> None:
    found = of(records, t.TopicSubscribed, "bob")
    last = nth(records, t.Put)
    records.append(replace(found, request=found.request + 1, ticket=900,
                           position=last.position + len(last.bodies) - 1))  # fmt: skip


def _left_elsewhere(records: Records, files: Histories) -> None:
    found = of(records, t.TopicUnsubscribed, "dan")
    change(records, found, position=found.position - 1, count=found.count + 1)


def _left_miscounted(records: Records, files: Histories) -> None:
    found = of(records, t.TopicUnsubscribed, "dan")
    change(records, found, count=found.count + 1)


def _left_twice(records: Records, files: Histories) -> None:
    found = of(records, t.TopicUnsubscribed, "dan")
    records.append(replace(found, request=found.request + 1, count=found.count + 1))


def _late_request(records: Records, files: Histories) -> None:
    found = of(records, t.TopicUnsubscribed, "carol")
    change(records, found, request=1)


PUT, GET, COMPLETE = "exactly-once-put", "exactly-once-get", "topic-completeness"

JOURNAL_PLANTS: dict[str, tuple[str, Plant]] = {
    "accepted-again": (PUT, _again),
    "number-skipped": (PUT, _number_skipped),
    "position-skipped": (PUT, _position_skipped),
    "old-stamp": (PUT, _old_stamp),
    "confirmed-again": (GET, _confirmed_again),
    "confirmed-beyond": (GET, _confirmed_beyond),
    "confirmed-early": (GET, _confirmed_early),
    "confirmed-after-leaving": (GET, _confirmed_after_leaving),
    "confirmed-other-ticket": (GET, _confirmed_other_ticket),
    "confirmed-by-nobody": (GET, _confirmed_by_nobody),
    "old-ticket": (GET, _old_ticket),
    "confirmed-hole": (COMPLETE, _confirmed_hole),
    "confirmed-missing": (COMPLETE, _confirmed_missing),
    "off-beginning": (COMPLETE, _off_beginning),
    "subscribed-twice": (COMPLETE, _subscribed_twice),
    "left-elsewhere": (COMPLETE, _left_elsewhere),
    "left-miscounted": (COMPLETE, _left_miscounted),
    "left-twice": (COMPLETE, _left_twice),
    "late-request": (COMPLETE, _late_request),
}
"""Topic -> (the anomaly it must be found by, the change to the good story)."""


# What is planted in the histories, or shows only against them.


def line_of(files: Histories, client: str, event: str, nth: int = -1) -> Line:
    """The nth line of an event in the last life of a client that has one."""
    lines = [lines for key, lines in sorted(files.items()) if key[0] == client]
    return [line for life in lines for line in life if line["event"] == event][nth]


def _told_elsewhere(records: Records, files: Histories) -> None:
    line_of(files, "ann", "answered")["position"] += 1


def _told_but_missing(records: Records, files: Histories) -> None:
    lines = files["ann", "ann-1", 1]
    at = lines.index(line_of(files, "ann", "answered"))
    tried, answered = deepcopy(lines[at - 1 : at + 1])
    for line in (tried, answered):
        line["number"] += 1
    answered["position"] += 1
    lines[at + 1 : at + 1] = [tried, answered]


def _other_call(records: Records, files: Histories) -> None:
    """What is in the journal under the number is another call than the one that was answered."""
    line_of(files, "ann", "tried")["crc"] += 1


def _never_tried(records: Records, files: Histories) -> None:
    lines = files["ann", "ann-1", 1]
    for event in ("answered", "tried"):
        lines.remove(line_of(files, "ann", event))


def _only_refused(records: Records, files: Histories) -> None:
    line = line_of(files, "ann", "answered")
    for name in ("position", "again", "born"):
        del line[name]
    line.update(event="refused", reason="topic-full")


def _got_again(records: Records, files: Histories) -> None:
    lines = files["bob", "bob-1", 2]
    lines.insert(-1, dict(line_of(files, "bob", "got", -2)))


def _got_after_restart_again(records: Records, files: Histories) -> None:
    lines = files["bob", "bob-1", 2]
    lines.insert(1, dict(line_of(files, "bob", "got", 1)))


def _got_after_leaving(records: Records, files: Histories) -> None:
    lines = files["carol", "carol-1", 1]
    line = line_of(files, "carol", "unsubscribed", 0)
    late = {**line_of(files, "carol", "received", 0), "first": 5, "count": 1}
    late["crc"] = checksum([b"a4"])
    lines.insert(lines.index(line) + 1, late)


def _confirmed_unread(records: Records, files: Histories) -> None:
    """It confirmed three of its second subscription, and was handed two."""
    line = line_of(files, "carol", "confirmed")
    line["position"] += 2
    for got in files["carol", "carol-1", 1]:
        if got["event"] == "got":
            got.update(first=got["first"] + 2, count=got["count"] - 2)
            got["crc"] = checksum([b"s3", b"a11"][-got["count"] :])


def _received_other(records: Records, files: Histories) -> None:
    """The same two messages came twice, once with other content."""
    lines = files["carol", "carol-1", 1]
    line = line_of(files, "carol", "received", 0)
    lines.insert(lines.index(line), {**line, "crc": line["crc"] ^ 1})


def _got_other(records: Records, files: Histories) -> None:
    line_of(files, "bob", "got")["crc"] ^= 1


def _put_other(records: Records, files: Histories) -> None:
    """The journal has another body than the one that everybody got."""
    change(records, of(records, t.Put, "script"), bodies=[b"s?"])


def _got_beyond(records: Records, files: Histories) -> None:
    lines = files["bob", "bob-1", 2]
    line = line_of(files, "bob", "got")
    lines.insert(-1, {**line, "first": line["first"] + line["count"], "count": 1, "crc": 0})


def _got_before_subscribing(records: Records, files: Histories) -> None:
    lines = files["bob", "bob-1", 1]
    line_of(files, "bob", "subscribed", 0)["position"] -= 1
    first = line_of(files, "bob", "got", 0)
    crc = checksum([b"before anybody was there"])
    lines.insert(lines.index(first), {**first, "first": 1, "count": 1, "crc": crc})


def _got_unsubscribed(records: Records, files: Histories) -> None:
    """Under a ticket that the journal never gave."""
    lines = files["bob", "bob-1", 2]
    subscribed = line_of(files, "bob", "subscribed", 0)
    got = {**line_of(files, "bob", "got"), "ticket": 777}
    before = {**subscribed, "session": "2", "ticket": 777, "position": got["first"] - 1}
    lines[-1:-1] = [before, got]


def _got_hole(records: Records, files: Histories) -> None:
    lines = files["bob", "bob-1", 2]
    lines.remove(line_of(files, "bob", "got", -2))


def _hole_after_close(records: Records, files: Histories) -> None:
    """The life whose last line is missing was closed: then none can be missing."""
    lines = files["bob", "bob-1", 1]
    lines.append({**lines[0], "event": "closed"})


def _never_got(records: Records, files: Histories) -> None:
    """The broker took the last messages off the line of bob, who never had them."""
    lines = files["bob", "bob-1", 2]
    lines.remove(line_of(files, "bob", "got"))


def _not_drained(records: Records, files: Histories) -> None:
    put = of(records, t.Put, "script")
    last = nth(records, t.Put)
    records.append(replace(put, number=put.number + 1, stamp=last.stamp + 90,
                           position=last.position + len(last.bodies)))  # fmt: skip


HISTORY_PLANTS: dict[str, tuple[str, Plant]] = {
    "told-elsewhere": (PUT, _told_elsewhere),
    "told-but-missing": (PUT, _told_but_missing),
    "other-call": (PUT, _other_call),
    "never-tried": (PUT, _never_tried),
    "only-refused": (PUT, _only_refused),
    "got-again": (GET, _got_again),
    "got-after-restart-again": (GET, _got_after_restart_again),
    "got-after-leaving": (GET, _got_after_leaving),
    "confirmed-unread": (GET, _confirmed_unread),
    "received-other": (GET, _received_other),
    "got-other": (GET, _got_other),
    "put-other": (GET, _put_other),
    "got-beyond": (GET, _got_beyond),
    "got-before-subscribing": (GET, _got_before_subscribing),
    "got-unsubscribed": (GET, _got_unsubscribed),
    "got-hole": (COMPLETE, _got_hole),
    "hole-after-close": (COMPLETE, _hole_after_close),
    "never-got": (COMPLETE, _never_got),
    "not-drained": (COMPLETE, _not_drained),
}
"""Topic -> (the anomaly it must be found by, the change to the good story and its histories)."""


def planted(name: str, plant: Plant, drained: bool = True) -> Story:
    """The story of a topic with one fault in it."""
    told = story(name, drained)
    plant(told.records, told.files)
    return told


def records_of(told: Story) -> Records:
    """The records as they are written: with state directories that no other topic's clients have.

    A client has one history for all its topics; here each topic has clients of its own.
    """
    return [
        replace(item, instance=_own(told, item.instance)) if hasattr(item, "instance") else item
        for item in told.records
    ]


def _own(told: Story, instance: str) -> str:
    return instance and f"{told.topic.name}-{told.topic.born}-{instance}"


def write_histories(folder: Path, told: Story) -> None:
    """Each life's lines as a file, numbered."""
    folder.mkdir(exist_ok=True)
    for (name, instance, life), lines in told.files.items():
        own = _own(told, instance)
        numbered = [{**line, "instance": own, "n": n, "at_us": n} for n, line in enumerate(lines)]
        text = "".join(json.dumps(line) + "\n" for line in numbered)
        (folder / f"topic-{name}-{own}-{life}.jsonl").write_text(text)
