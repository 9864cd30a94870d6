"""Service: the wiring of a broker process. Journal, channels, three daemons, name server, ticker.

Three daemons, each with a port and a pool of its own, so that no crowd can shut another one out:
``front`` carries publishing and plain scripts, ``settle`` acks and heartbeats, ``admin`` the broker
object. A Pyro5 connection holds one thread of its pool for life.
"""

from __future__ import annotations

import gc
import logging
import os
import secrets
import sys
import threading
from dataclasses import dataclass, field
from typing import Any, Literal

from broker import __version__
from broker.core.policy import Policy
from broker.core.topics import TopicPolicy
from broker.errors import (
    BadRequest,
    BrokerError,
    BrokerStopping,
    ChannelExists,
    ChannelNotFound,
    JournalError,
    LimitReached,
)
from broker.journal.bases import is_topic
from broker.journal.sqlite import SqliteJournal
from broker.pyro_setup import configure
from broker.remote.daemon import FairleadDaemon
from broker.remote.name_server import NameServer, Registrar
from broker.server.broker_object import BrokerObject
from broker.server.channel_host import ChannelHost
from broker.server.channel_object import ChannelObject, SettleObject
from broker.server.clock import Clock
from broker.server.topics_host import RELEASE_INTERVAL_S, TopicsHost
from broker.server.topics_object import TopicObject, TopicsObject
from broker.wire import check_channel_name, check_name

log = logging.getLogger("fairlead.broker")

BROKER_NAME = "fairlead.broker"
CHANNEL_PREFIX = "channel."
TOPICS_NAME = "fairlead.topics"
TOPIC_OBJECT_PREFIX = "topic."
CHANNEL_COUNT_MAX = 1_000
SWITCH_INTERVAL_S = 0.001


@dataclass(slots=True)
class Settings:
    """How a broker process is started."""

    store: str = "fairlead.db"
    durability: Literal["fsync", "flush"] = "fsync"
    host: str = "127.0.0.1"
    port: int = 0
    name_server_host: str = "127.0.0.1"
    name_server_port: int = 9090
    clients_max: int = 256
    comm_timeout_s: float = 30.0
    max_message_bytes: int = 16 << 20
    tick_s: float = 0.1
    fault_injection: bool = False
    channels: list[str] = field(default_factory=list)
    policy: Policy = field(default_factory=Policy)
    topics: list[str] = field(default_factory=list)
    topic_policy: TopicPolicy = field(default_factory=TopicPolicy)
    keep_topics: bool = False  # also what nobody is owed any more, for an audit
    remember_s: float = 7 * 86_400.0  # how long a topic that nobody uses is remembered


class Service:
    """A running broker."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.boot = secrets.token_hex(8)
        self.failure: BaseException | None = None
        self.stopped = threading.Event()
        self._clock = Clock()
        self._hosts: dict[str, ChannelHost] = {}
        self._topic_names: set[str] = set()  # those that are registered
        self._changing = threading.Lock()  # creating and deleting; never with a channel's lock
        self._ticking = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="fairlead-ticker", daemon=True)
        self._topics_ticker = threading.Thread(
            target=self._tick_topics, name="fairlead-topics", daemon=True
        )

    def start(self) -> Service:
        """Open the journal, recover every channel, and only then become reachable."""
        settings = self.settings
        configure(settings.max_message_bytes, settings.comm_timeout_s, settings.clients_max)
        # The journal's writer shares the interpreter with every worker; let it in more often.
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self.journal = SqliteJournal(
            settings.store, settings.durability, on_failure=self.fail
        )
        try:
            for name in self.journal.channels():
                if not is_topic(name):
                    self._hosts[name] = ChannelHost.recover(
                        name, self.boot, self.journal, self._clock, self.fail
                    )
            self.topics = TopicsHost(
                self.journal, self._clock, self.fail, policy=settings.topic_policy,
                release=not settings.keep_topics, remember_s=settings.remember_s,
            )  # fmt: skip
            self.topics.recover()
            # What recovery has built stays for long: take it out of the collector's sight.
            gc.collect()
            gc.freeze()
            # Messages are tuples and make no cycles; looking for some after every few hundred of
            # them showed up in the broker's profile.
            gc.set_threshold(50_000, 20, 50)
            self._open_daemons()
            self.names = NameServer.start_or_join(
                settings.name_server_host, settings.name_server_port
            )
            self.registrar = Registrar(self.names).start()
            self.registrar.add(BROKER_NAME, str(self._admin_uri), {"fairlead", "fairlead.broker"})
            for name in list(self._hosts):
                self._expose(name)
            self._expose_topics()
            for name in settings.channels:
                self.create_channel(check_channel_name(name), None)
            for name in settings.topics:
                self.topics.create(check_name(name, "topic name"))
        except BaseException:
            self.close()
            raise
        for daemon in (self.front, self.settle, self.admin):
            daemon.start()
        self._ticker.start()
        self._topics_ticker.start()
        log.info(
            "broker up: %d channels, store %s (%s), front %s, name server %s:%d",
            len(self._hosts), settings.store, settings.durability, self.front.locationStr,
            self.names.host, self.names.port,
        )  # fmt: skip
        return self

    def _open_daemons(self) -> None:
        settings = self.settings
        self.front = FairleadDaemon(
            settings.host, settings.port, settings.clients_max, name="front"
        )
        self.settle = FairleadDaemon(settings.host, 0, settings.clients_max * 2, name="settle")
        self.admin = FairleadDaemon(settings.host, 0, 16, name="admin")
        self._admin_uri = self.admin.register(BrokerObject(self), BROKER_NAME)

    def _expose(self, name: str) -> None:
        host = self._hosts[name]
        object_id = CHANNEL_PREFIX + name
        settle_uri = str(self.settle.register(SettleObject(host), object_id))
        exposed = ChannelObject(
            host, settle_uri, self.settings.fault_injection, self._clock.now_us
        )
        uri = str(self.front.register(exposed, object_id))
        self.registrar.add(
            object_id, uri, {"fairlead", "fairlead.channel", f"fairlead.version:{__version__}"}
        )

    # Topics.

    def _expose_topics(self) -> None:
        self._topics_object = TopicsObject(self.topics)
        uri = str(self.front.register(self._topics_object, TOPICS_NAME))
        self.registrar.add(TOPICS_NAME, uri, {"fairlead", "fairlead.topics"})
        for name in self.topics.topics():
            self._expose_topic(name)
        self.topics.on_created, self.topics.on_dropped = self._expose_topic, self._hide_topic

    def _expose_topic(self, name: str) -> None:
        with self._changing:
            object_id = TOPIC_OBJECT_PREFIX + name
            if name in self._topic_names or self.stopped.is_set():
                return
            self._topic_names.add(name)
            uri = str(self.front.register(TopicObject(self._topics_object, name), object_id))
            self.registrar.add(object_id, uri, {"fairlead", "fairlead.topic"})

    def _hide_topic(self, name: str) -> None:
        with self._changing:
            if name in self._topic_names:
                self._topic_names.discard(name)
                self.registrar.remove(TOPIC_OBJECT_PREFIX + name)
                self.front.unregister(TOPIC_OBJECT_PREFIX + name)

    # Channels.

    def channels(self) -> list[str]:
        """Their names, in order of creation."""
        return list(self._hosts)

    def overview(self) -> list[dict[str, Any]]:
        """The statistics of every channel."""
        return [host.statistics() for host in list(self._hosts.values())]

    def create_channel(self, name: str, policy: Policy | None) -> dict[str, Any]:
        """Make a channel; finding it made already is fine unless the policy differs."""
        with self._changing:
            self._refuse_when_stopping()
            host = self._hosts.get(name)
            if host is not None:
                if policy is not None and policy != host.policy:
                    raise ChannelExists(
                        f"channel {name} exists with another policy; delete it first, or leave the "
                        "policy out to use it as it is",
                        policy=host.policy.to_dict(),
                    )
                return {"created": False, "name": name}
            if len(self._hosts) >= CHANNEL_COUNT_MAX:
                raise LimitReached(
                    f"channel {name} cannot be created: this broker has {CHANNEL_COUNT_MAX} "
                    "channels, which is its limit; delete one first"
                )
            self._hosts[name] = ChannelHost.create(
                name, policy or self.settings.policy, self.journal, self._clock, self.fail
            )
            self._expose(name)
        log.info("channel %s created", name)
        return {"created": True, "name": name}

    def delete_channel(self, name: str, force: bool) -> dict[str, Any]:
        """Remove a channel from the name server, the daemons and the store."""
        with self._changing:
            self._refuse_when_stopping()
            host = self._hosts.get(name)
            if host is None:
                raise ChannelNotFound(
                    f"channel {name} cannot be deleted: there is none of that name; there are "
                    f"{', '.join(self._hosts) or 'none'}"
                )
            groups = host.statistics()["subscriptions"]
            left = sum(group["backup"] for group in groups.values())
            if left and not force:
                raise BadRequest(
                    f"channel {name} is not deleted: {left} messages in it are not acknowledged; "
                    "let them be handled, or delete with force"
                )
            self.registrar.remove(CHANNEL_PREFIX + name)
            self.front.unregister(CHANNEL_PREFIX + name)
            self.settle.unregister(CHANNEL_PREFIX + name)
            host.close()
            del self._hosts[name]
            self.journal.drop(name)
        log.info("channel %s deleted with %d unacknowledged messages", name, left)
        return {"deleted": name, "dropped": left}

    def describe(self) -> dict[str, Any]:
        """Who this broker is."""
        settings = self.settings
        return {
            "version": __version__,
            "boot": self.boot,
            "pid": os.getpid(),
            "store": os.path.abspath(settings.store),
            "durability": settings.durability,
            "front": self.front.locationStr,
            "settle": self.settle.locationStr,
            "admin": self.admin.locationStr,
            "name_server": f"{self.names.host}:{self.names.port}",
            "channels": self.channels(),
            "topics": self.topics.topics(),
            "fault_injection": settings.fault_injection,
            "journal": self.journal.statistics(),
        }

    def _refuse_when_stopping(self) -> None:
        if self.stopped.is_set():
            raise BrokerStopping("the broker is stopping; try again when it is back")

    # Life.

    def _tick_topics(self) -> None:
        """Trimming reads and writes the store, so channels must not wait for it."""
        while not self._ticking.wait(RELEASE_INTERVAL_S):
            try:
                self.topics.tick()
            except BrokerError as error:
                log.warning("topics are not trimmed for now: %s", error)
            except Exception as error:
                log.exception("trimming of topics failed")
                self.fail(error)
                return

    def _tick(self) -> None:
        while not self._ticking.wait(self.settings.tick_s):
            for host in list(self._hosts.values()):
                try:
                    host.tick()
                except JournalError as error:
                    self.fail(error)
                    return
                except BrokerError as error:
                    log.debug("tick of channel %s: %s", host.name, error)
                except Exception as error:
                    log.exception("tick of channel %s failed", host.name)
                    self.fail(error)
                    return

    def fail(self, error: BaseException) -> None:
        """The first failure stops the broker: recovery is the way back."""
        if self.failure is None:
            self.failure = error
            log.critical("the broker stops: %s", error)
        self.stopped.set()

    def stop(self) -> None:
        """Ask the broker to end; ``close`` does it."""
        self.stopped.set()

    def close(self) -> None:
        """Leave the name server, cut the clients, end the senders, commit and close the journal."""
        self.stopped.set()
        self._ticking.set()
        registrar = getattr(self, "registrar", None)
        if registrar is not None:
            names = [BROKER_NAME, TOPICS_NAME]
            names += [CHANNEL_PREFIX + name for name in self._hosts]
            names += [TOPIC_OBJECT_PREFIX + name for name in self._topic_names]
            for name in names:
                registrar.remove(name)
            registrar.stop()
        for host in self._hosts.values():
            host.close()
        if hasattr(self, "topics"):
            self.topics.close()
        for name in ("front", "settle", "admin"):
            daemon = getattr(self, name, None)
            if daemon is not None:
                daemon.close()
        if hasattr(self, "names"):
            self.names.close()
        for ticker in (self._ticker, self._topics_ticker):
            if ticker.is_alive():
                ticker.join(2.0)
        if hasattr(self, "journal"):
            self.journal.close()
