"""Names for objects: start or join a Pyro5 name server, and keep our registrations in it.

What lives here: ``NameServer``, a handle on the name server at one host and port, started in this
process or found there; ``locate``, the same for clients; and ``Registrar``, which holds the names
that a broker wants to be found by and writes them again when the name server has forgotten them.

The name server is a convenience, not an authority: it has no authentication, keeps its entries in
memory, and anybody may overwrite a name. So it listens on loopback unless told otherwise, never
answers broadcasts, and nothing that matters for correctness may depend on it.

What may not live here: channels, retry policies of clients.
"""

from __future__ import annotations

import errno
import logging
import os.path
import threading
import time
from contextlib import suppress
from typing import Any, Iterable

from broker.errors import BrokerError, BrokerUnavailable, ChannelNotFound
from broker.pyro_setup import (
    Proxy,
    core,
    direct_uri,
    ensure_configured,
    invoke,
    pyro_errors,
    pyro_nameserver,
    pyro_server,
)
from broker.remote.daemon import FairleadDaemon

log = logging.getLogger("fairlead.names")

NAMES_COUNT_MAX = 100_000
POOL_SIZE = 128
IDLE_TIMEOUT_S = 60.0
JOIN_PATIENCE_S = 3.0


class _Names(pyro_nameserver.NameServer):  # type: ignore[misc]
    """Pyro5's name server with a limit to what it holds."""

    @pyro_server.expose  # type: ignore[untyped-decorator]
    def register(
        self, name: str, uri: Any, safe: bool = False, metadata: Iterable[str] | None = None
    ) -> None:
        """Register a name, as in Pyro5."""
        if self.count() >= NAMES_COUNT_MAX and name not in self.storage:
            raise pyro_errors.NamingError(
                f"cannot register {name}: all {NAMES_COUNT_MAX} names are in use; remove some"
            )
        super().register(name, uri, safe, metadata)


class NameServer:
    """A handle on the name server at ``host`` and ``port``. Any thread may use it.

    Every call opens a connection of its own and closes it, waits ``timeout_s`` at most, and raises
    BrokerUnavailable when no name server answers.
    """

    def __init__(
        self, host: str, port: int, timeout_s: float = 2.0, daemon: FairleadDaemon | None = None
    ) -> None:
        ensure_configured()
        self.host = host
        self.port = port
        self.timeout_s = timeout_s
        self.uri = direct_uri(core.NAMESERVER_NAME, host, port)
        self._daemon = daemon

    @classmethod
    def start_or_join(
        cls, host: str = "127.0.0.1", port: int = 9090, timeout_s: float = 2.0
    ) -> NameServer:
        """Join the name server that answers at the address, or start one there in this process.

        Port 0 always starts one. Two processes may try at once: one starts, the other joins.
        """
        deadline = time.monotonic() + JOIN_PATIENCE_S
        pause = threading.Event()
        while True:
            joined = cls(host, port, timeout_s)
            if port and joined.answers():
                return joined
            try:
                return cls._start(host, port, timeout_s)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                    raise BrokerUnavailable(
                        f"name server at {host}:{port}: cannot start ({error}) and none answers "
                        "there; choose another port, or stop what uses it",
                        fault="unreachable",
                    ) from error
            pause.wait(0.05)

    @classmethod
    def _start(cls, host: str, port: int, timeout_s: float) -> NameServer:
        daemon = FairleadDaemon(
            host, port, POOL_SIZE, name="names", idle_timeout_s=IDLE_TIMEOUT_S
        )
        names = _Names(pyro_nameserver.MemoryStorage())
        uri = daemon.register(names, core.NAMESERVER_NAME)
        names.register(core.NAMESERVER_NAME, uri, metadata={"class:Pyro5.nameserver.NameServer"})
        daemon.start()
        log.info("name server started at %s", daemon.locationStr)
        return cls(host, daemon.port, timeout_s, daemon)

    @property
    def owned(self) -> bool:
        """Whether it runs in this process."""
        return self._daemon is not None

    def answers(self) -> bool:
        """Whether a name server answers at the address."""
        try:
            self._call("ping")
        except BrokerError:
            return False
        return True

    def register(self, name: str, uri: str, metadata: Iterable[str] = ()) -> None:
        """Enter ``name``; an entry of that name is replaced."""
        self._call("register", name, str(uri), False, sorted(metadata))

    def unregister(self, name: str) -> bool:
        """Remove ``name``; False when it was not there."""
        return bool(self._call("remove", name))

    def registered(self, prefix: str = "") -> dict[str, str]:
        """Every name that starts with ``prefix``, with its URI."""
        return {str(name): str(uri) for name, uri in self._call("list", prefix or None).items()}

    def lookup(self, name: str) -> str:
        """The URI of ``name``. Raises ChannelNotFound."""
        try:
            return str(self._call("lookup", name))
        except BrokerUnavailable as error:
            if not isinstance(error.__cause__, pyro_errors.NamingError):
                raise
            raise ChannelNotFound(
                f"{name} is not registered at the name server {self.host}:{self.port}; "
                "is its broker running?", name=name,
            ) from None

    def close(self) -> None:
        """Stop the name server if it runs in this process."""
        if self._daemon is not None:
            self._daemon.close()

    def _call(self, method: str, *args: Any) -> Any:
        # Serpent, because a plain Pyro5 name server need not have msgpack.
        with Proxy(self.uri) as proxy:
            proxy._pyroTimeout = self.timeout_s
            proxy._pyroSerializer = "serpent"
            return invoke(proxy, method, *args)


def locate(host: str = "127.0.0.1", port: int = 9090, timeout_s: float = 2.0) -> NameServer:
    """The name server at the address, which must answer. Raises BrokerUnavailable."""
    found = NameServer(host, port, timeout_s)
    found._call("ping")
    return found


class Registrar:
    """Keeps a set of names registered for as long as it runs.

    Every ``interval_s`` it asks which of its names are there and enters the missing ones again. A
    name that shows another address is left alone: the last one to register it on purpose owns it,
    for instance the broker that took the channel over. ``lost`` lists such names.
    """

    def __init__(self, names: NameServer, interval_s: float = 2.0) -> None:
        self._names = names
        self._interval_s = interval_s
        self._lock = threading.Lock()  # held over the calls: each is short, and order matters
        self._wanted: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._lost: frozenset[str] = frozenset()
        self._outage = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def lost(self) -> frozenset[str]:
        """The names that somebody else has registered since."""
        return self._lost

    def start(self) -> Registrar:
        """Watch in a thread of its own."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._watch, name="fairlead-registrar", daemon=True
            )
            self._thread.start()
        return self

    def stop(self) -> None:
        """Stop watching and take our names out, as far as the name server answers."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._lock, suppress(BrokerError):
            for name in list(self._wanted):
                self._withdraw(name)

    def add(self, name: str, uri: str, metadata: Iterable[str] = ()) -> bool:
        """Register ``name`` and keep it registered. False: not yet, it is tried again later."""
        with self._lock:
            self._wanted[name] = (str(uri), tuple(metadata))
            self._lost -= {name}
            try:
                self._names.register(name, *self._wanted[name])
            except BrokerError as error:
                self._failed(error)
                return False
        return True

    def remove(self, name: str) -> None:
        """Take ``name`` out, unless it belongs to somebody else by now."""
        with self._lock:
            try:
                self._withdraw(name)
            except BrokerError as error:
                self._failed(error)

    def check(self) -> bool:
        """One round: enter what is missing. True when the name server answered."""
        with self._lock:
            if not self._wanted:
                return True
            try:
                self._restore_missing()
            except BrokerError as error:
                self._failed(error)
                return False
        return True

    def _restore_missing(self) -> None:
        present = self._names.registered(os.path.commonprefix(list(self._wanted)))
        missing = [name for name in self._wanted if name not in present]
        for name in missing:
            self._names.register(name, *self._wanted[name])
        lost = frozenset(n for n, (uri, _) in self._wanted.items() if present.get(n, uri) != uri)
        for name in lost - self._lost:
            log.warning("%s now belongs to %s; it is left alone", name, present[name])
        self._lost = lost
        if missing:
            log.info("name server: %d of %d names registered again",
                     len(missing), len(self._wanted))
        if self._outage:
            self._outage = False
            log.info("name server at %s:%d answers again", self._names.host, self._names.port)

    def _withdraw(self, name: str) -> None:
        uri, _ = self._wanted.pop(name, ("", ()))
        if uri and self._names.registered(name).get(name) == uri:
            self._names.unregister(name)

    def _failed(self, error: BrokerError) -> None:
        if not self._outage:
            self._outage = True
            log.warning("name server does not answer, trying every %s s: %s",
                        self._interval_s, error)

    def _watch(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self.check()
            except Exception:
                log.exception("registrar: a check failed, the next one follows")
