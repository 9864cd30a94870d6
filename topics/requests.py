"""Requests: how a topic client reaches its broker. Tries, time-outs, addresses, connections.

A request is tried ``tries`` times at each known name server in turn, for ``timeout_s`` each. What
came of it is one of three things: an answer, a refusal after which it is sure that no copy of the
request was or will be done, or doubt. No verb is known here, but which refusals say something
about earlier copies too; what follows from an outcome is the caller's business.

A connection belongs to the thread that made it: a get that waits in one thread keeps no other
thread from putting.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Any, Callable, NamedTuple, Sequence

from broker.errors import (
    BadRequest,
    BrokerError,
    BrokerUnavailable,
    ChannelNotFound,
    LimitReached,
    SequenceGap,
    TopicFull,
)
from broker.pyro_setup import Proxy, ensure_configured, invoke, pyro_errors
from broker.remote.lookup import DEFAULT_NAME_SERVER, ENVIRONMENT, parse_address
from broker.remote.name_server import NameServer

OBJECT = "fairlead.topics"
TIMEOUT_S_MIN = 0.001  # what is left of a try when lookup and connecting took most of it

#: Refusals that the broker decides on after it has looked for an earlier copy, or would have given
#: to that copy just the same.
_OF_ALL_COPIES = (BadRequest, LimitReached, SequenceGap, TopicFull)


class Call(NamedTuple):
    """What is sent by one try, and how long the broker may take on purpose."""

    arguments: tuple[Any, ...]
    wait_s: float = 0.0


class NoSuccess(Exception):
    """A request has no good answer. ``doubtful``: a copy of it may have been done, or may be."""

    def __init__(self, error: BrokerError, doubtful: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.doubtful = doubtful


class Requests:
    """The way of one client to its broker; for any number of threads."""

    def __init__(
        self, name_server: str | Sequence[str] | None, timeout_s: float, tries: int
    ) -> None:
        if not 0 < timeout_s < float("inf") or tries < 1:
            raise BadRequest(
                f"timeout_s={timeout_s!r:.40} with tries={tries!r:.40} is refused: every request "
                "needs at least one try, and more than 0 s for it"
            )
        ensure_configured()
        self.timeout_s = timeout_s
        self.tries = tries
        self._names = [
            NameServer(*parse_address(address), timeout_s=timeout_s)
            for address in _addresses(name_server)
        ]
        self._uris: dict[int, str] = {}  # by the index of the name server
        self._best = 0  # the name server whose broker has answered last
        self._local = threading.local()
        # By id: proxies of one address are equal to Pyro5.
        self._proxies: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._closed = threading.Event()

    @property
    def addresses(self) -> str:
        """The known name servers, for a text."""
        return ", ".join(f"{names.host}:{names.port}" for names in self._names)

    def call(
        self, verb: str, prepare: Callable[[], Call], doubtful: bool = False, tries: int = 0
    ) -> Any:
        """The answer to a request; ``prepare`` is asked before each try. Raises NoSuccess.

        ``doubtful``: a copy was sent before.
        """
        refusal: BrokerError | None = None
        silence: BrokerError | None = None
        for left in range(tries or self.tries, 0, -1):
            started, stale = time.monotonic(), False
            for index in self._turn():
                try:
                    return self._once(index, verb, prepare())
                except BrokerError as error:
                    doubtful = _doubt(error, doubtful)
                    if not error.retriable:
                        raise NoSuccess(error, doubtful) from error
                    stale = self._local.reused and error.details.get("fault") == "closed"
                    if not error.definite:
                        silence = error
                    else:
                        refusal = error
            if left > 1 and not stale:
                # One that is refused at once has not had its time: a broker may be coming back.
                # Only an old connection that has ended says nothing about the broker of now.
                self._closed.wait(max(0.0, started + self.timeout_s - time.monotonic()))
        # Of one that was refused and then not answered, the silence is what leaves doubt.
        told = (silence or refusal) if doubtful else (refusal or silence)
        assert told is not None
        raise NoSuccess(told, doubtful)

    def _turn(self) -> list[int]:
        count = len(self._names)
        return [(self._best + offset) % count for offset in range(count)]

    def _once(self, index: int, verb: str, call: Call) -> Any:
        deadline = time.monotonic() + self.timeout_s
        proxy = self._connection(index, deadline)
        # After connecting: either we see that it is closed, or ``close`` sees the connection.
        if self._closed.is_set():
            raise BadRequest(f"{verb} is refused: the client is closed; open it anew")
        proxy._pyroTimeout = _left(deadline) + call.wait_s
        try:
            answer = invoke(proxy, verb, *call.arguments)
        except BrokerUnavailable as error:
            if "fault" in error.details:  # no answer; otherwise the broker has said it
                self._forget(index)
            raise
        self._best = index
        return answer

    def _connection(self, index: int, deadline: float) -> Any:
        """This thread's connection to the broker behind a name server."""
        proxies: dict[int, Any] = self._local.__dict__.setdefault("proxies", {})
        proxy = proxies.get(index)
        self._local.reused = proxy is not None
        if proxy is None:
            proxy = proxies[index] = Proxy(self._uri(index))
            self._proxies[id(proxy)] = proxy
        if proxy._pyroConnection is None:
            proxy._pyroTimeout = _left(deadline)
            try:
                proxy._pyroBind()
            except (pyro_errors.PyroError, OSError) as error:
                self._forget(index)
                raise BrokerUnavailable(
                    f"the broker at {proxy._pyroUri} cannot be reached ({error}); nothing was sent",
                    fault="unreachable", sent=False,
                ) from error  # fmt: skip
        return proxy

    def _uri(self, index: int) -> str:
        found = self._uris.get(index)
        if found is None:
            try:
                found = self._uris[index] = self._names[index].lookup(OBJECT)
            except (BrokerUnavailable, ChannelNotFound) as error:
                raise BrokerUnavailable(str(error), fault="lookup", sent=False) from error
        return found

    def _forget(self, index: int) -> None:
        """It did not answer: look it up anew, and let the connection go."""
        self._uris.pop(index, None)
        proxy = self._local.__dict__.get("proxies", {}).pop(index, None)
        if proxy is not None:
            proxy._pyroRelease()

    def close(self) -> None:
        """End every connection, those that other threads wait at, too."""
        self._closed.set()
        for proxy in list(self._proxies.values()):
            connection = proxy._pyroConnection
            if connection is not None:
                connection.close()


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), TIMEOUT_S_MIN)


def _addresses(name_server: str | Sequence[str] | None) -> list[str]:
    if name_server is None:
        name_server = os.environ.get(ENVIRONMENT) or DEFAULT_NAME_SERVER
    if isinstance(name_server, str):
        name_server = [part.strip() for part in name_server.split(",")]
    if not name_server:
        raise BadRequest("name_server names no address; give at least one host:port")
    return list(name_server)


def _doubt(error: BrokerError, doubtful: bool) -> bool:
    """Whether a copy of a request may have been done, after one more try of it."""
    if isinstance(error, _OF_ALL_COPIES):
        return False
    if error.definite:
        return doubtful
    return doubtful or bool(error.details.get("sent", True))


def said(error: BrokerError, doubtful: bool) -> type[BrokerError]:
    """The class of the error to raise: in doubt it must be one that says so."""
    if doubtful and (error.definite or error.retriable):
        return BrokerUnavailable
    return type(error)
