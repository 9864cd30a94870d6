"""The faults of a chaos run, one function each, by the name that the plan gives them.

A function is a generator: what is before its ``yield`` brings the fault about, what is after it
ends the fault when its time is over; it yields what was done, in words. If the one to be hit is not
there, it raises Missed: another fault came before. Nothing here waits for an effect, and nothing
here judges.
"""

from __future__ import annotations

from typing import Callable, Iterator

from simulations.chaos.actors import KILLED_BY_MESSAGE
from simulations.chaos.cluster import SLOW_S, Client, Cluster
from simulations.chaos.plan import Fault
from simulations.demo.wait import Failure
from simulations.stage.proxy import BLACK_HOLE, FAIR, Weather

DELAY = Weather(delay_s=(0.0, 0.2))
RESETS = Weather(reset_chance=0.1)
LEAVE_S = 20.0

Course = Iterator[str]


class Missed(Exception):
    """The fault could not be brought about; the text says why."""


def _running(client: Client) -> Client:
    if not client.alive:
        raise Missed(f"{client.name} is not running")
    return client


def kill_subscriber(cluster: Cluster, fault: Fault) -> Course:
    """kill -9; later it is started again under its id."""
    worker = _running(cluster.subscribers[fault.target])
    worker.kill9()
    yield f"kill -9 of {worker.name}, started again after {fault.span_s:g} s"
    worker.start()


def kill_publisher(cluster: Cluster, fault: Fault) -> Course:
    """kill -9; later it is started again under its id."""
    source = _running(cluster.publishers[fault.target])
    source.kill9()
    yield f"kill -9 of {source.name}, started again after {fault.span_s:g} s"
    source.start()


def kill_broker(cluster: Cluster, fault: Fault) -> Course:
    """kill -9; later it is started again on its store and ports."""
    cluster.broker.kill9()
    yield f"kill -9 of the broker, started again after {fault.span_s:g} s"
    cluster.broker.start()


def freeze_subscriber(cluster: Cluster, fault: Fault) -> Course:
    """SIGSTOP until the lease is over, then SIGCONT."""
    worker = _running(cluster.subscribers[fault.target])
    worker.freeze()
    yield f"SIGSTOP of {worker.name} for {fault.span_s:g} s"
    worker.thaw()


def freeze_broker(cluster: Cluster, fault: Fault) -> Course:
    """SIGSTOP for a moment."""
    cluster.broker.freeze()
    yield f"SIGSTOP of the broker for {fault.span_s:g} s"
    cluster.broker.thaw()


def restart_name_server(cluster: Cluster, fault: Fault) -> Course:
    """kill -9; later another one without memory is there."""
    cluster.names.kill9()
    yield f"kill -9 of the name server, a new one after {fault.span_s:g} s"
    cluster.names.start()


def crash_queues(cluster: Cluster, fault: Fault) -> Course:
    """All queues of the channel are lost; the backup restores them."""
    killed = cluster.broker.call("kill_queues", fault.span_s)["killed"]
    yield f"all queues are lost, with {killed} messages, for {fault.span_s:g} s"


def slow_spell(cluster: Cluster, fault: Fault) -> Course:
    """A subscriber takes too long for every message for a while."""
    worker = _running(cluster.subscribers[fault.target])
    worker.tell(f"slow {SLOW_S}")
    yield f"{worker.name} takes {SLOW_S * 1000:.0f} ms for each message for {fault.span_s:g} s"
    worker.tell("quick")


def raising_message(cluster: Cluster, fault: Fault) -> Course:
    """A message whose handler always raises."""
    source = _running(cluster.publishers[fault.target])
    source.tell(f"raises {fault.number}")
    yield f"{source.name} publishes a message whose handler raises"


def killing_message(cluster: Cluster, fault: Fault) -> Course:
    """A message that ends the process of whoever handles it."""
    source = _running(cluster.publishers[fault.target])
    source.tell(f"kills {fault.number}")
    yield f"{source.name} publishes a message that kills its subscriber"


def twin_publisher(cluster: Cluster, fault: Fault) -> Course:
    """A second process under the id of one that lives."""
    source = _running(cluster.publishers[fault.target])
    source.start_twin()
    yield f"a second process publishes as {source.name}; the first is to be fenced"


def join_and_leave(cluster: Cluster, fault: Fault) -> Course:
    """A subscriber more for a while."""
    guest = cluster.invite(fault.number)
    yield f"{guest.name} joins for {fault.span_s:g} s"
    if guest.alive:
        guest.leave()


def leave_and_return(cluster: Cluster, fault: Fault) -> Course:
    """A subscriber ends in good order; later it is started again."""
    worker = _running(cluster.subscribers[fault.target])
    worker.leave()
    yield f"{worker.name} leaves, and is started again after {fault.span_s:g} s"
    code = worker.wait_end(LEAVE_S)
    if code not in (0, KILLED_BY_MESSAGE):
        raise Failure(f"{worker.name} left with exit code {code}; its log ends: {worker.tail()}")
    worker.start()


def delay(cluster: Cluster, fault: Fault) -> Course:
    """Every packet of a network takes its time."""
    network = cluster.networks[fault.target]
    network.set(DELAY, DELAY)
    yield f"{fault.target}: 0 to {DELAY.delay_s[1] * 1000:.0f} ms a packet for {fault.span_s:g} s"
    network.heal()


def cut(cluster: Cluster, fault: Fault) -> Course:
    """Every connection of a network is reset."""
    network = cluster.networks[fault.target]
    count = network.connections
    network.cut()
    yield f"{fault.target}: {count} connections are reset"


def black_hole(cluster: Cluster, fault: Fault) -> Course:
    """A network swallows everything, and ends no connection."""
    network = cluster.networks[fault.target]
    network.set(BLACK_HOLE, BLACK_HOLE)
    yield f"{fault.target}: everything is swallowed for {fault.span_s:g} s"
    network.heal()


def lost_answers(cluster: Cluster, fault: Fault) -> Course:
    """A network carries everything to the broker and nothing back."""
    network = cluster.networks[fault.target]
    network.set(FAIR, BLACK_HOLE)
    yield f"{fault.target}: all from the broker is swallowed for {fault.span_s:g} s"
    network.heal()


def resets(cluster: Cluster, fault: Fault) -> Course:
    """In a network one packet of ten is the end of its connection."""
    network = cluster.networks[fault.target]
    network.set(RESETS, RESETS)
    yield f"{fault.target}: one packet of ten resets its connection for {fault.span_s:g} s"
    network.heal()


FAULTS: dict[str, Callable[[Cluster, Fault], Course]] = {
    "kill subscriber": kill_subscriber,
    "kill publisher": kill_publisher,
    "kill broker": kill_broker,
    "freeze subscriber": freeze_subscriber,
    "freeze broker": freeze_broker,
    "restart name server": restart_name_server,
    "queue crash": crash_queues,
    "slow spell": slow_spell,
    "raising message": raising_message,
    "killing message": killing_message,
    "twin publisher": twin_publisher,
    "join and leave": join_and_leave,
    "leave and return": leave_and_return,
    "delay": delay,
    "cut": cut,
    "black hole": black_hole,
    "lost answers": lost_answers,
    "resets": resets,
}
