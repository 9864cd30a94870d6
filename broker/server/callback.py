"""How the broker calls a subscriber back: only the host that subscribed, with a timeout.

A proxy belongs to the sender thread that uses it, and is opened in that thread at its first call.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from broker.errors import BadRequest, CallbackRefused
from broker.pyro_setup import Proxy, core, invoke, protocol, pyro_errors


def checked_uri(callback: Any, caller: str | None) -> str:
    """The direct address of a callback object, if it lives on the caller's host.

    Without this a subscriber could make the broker connect to any address of its choice.
    """
    uri = getattr(callback, "_pyroUri", callback)
    try:
        parsed = core.URI(str(uri))
    except (pyro_errors.PyroError, TypeError, ValueError):
        raise BadRequest(f"callback {uri!r:.120} is refused: it is no Pyro address") from None
    if parsed.protocol != "PYRO" or parsed.sockname:
        raise CallbackRefused(
            f"callback {parsed} is refused: only a direct PYRO:object@host:port is called back"
        )
    if caller is None or not _same_host(parsed.host, caller):
        raise CallbackRefused(
            f"callback {parsed} is refused: the subscriber called from {caller}, and only that "
            "host is called back; let its daemon listen there, or use fetch"
        )
    return str(parsed)


def _same_host(host: str, caller: str) -> bool:
    if host == "localhost":
        host = "127.0.0.1"
    try:
        left, right = ipaddress.ip_address(host), ipaddress.ip_address(caller)
    except ValueError:
        return False
    return left == right or (left.is_loopback and right.is_loopback)


class PyroCallback:
    """A subscriber's callback object, called over Pyro5."""

    def __init__(self, uri: str, serializer: str, timeout_s: float) -> None:
        self._uri = uri
        self._serializer = serializer
        self.takes_bytes = serializer != "json"
        self._timeout_s = timeout_s
        self._proxy: Any = None

    def _opened(self) -> Any:
        if self._proxy is None:
            self._proxy = Proxy(self._uri)
            self._proxy._pyroTimeout = self._timeout_s
            self._proxy._pyroSerializer = self._serializer
        return self._proxy

    def receive(self, batch: Any) -> None:
        """Hand a batch over."""
        invoke(self._opened(), "receive", batch)

    def recall(self, epochs: list[int]) -> list[int]:
        """Ask for unstarted work back."""
        answer = invoke(self._opened(), "recall", epochs)
        if (
            not isinstance(answer, (list, tuple))
            or len(answer) != len(epochs)
            or not all(type(item) is int for item in answer)
        ):
            raise BadRequest("the answer to a recall must be one whole number per epoch")
        return list(answer)

    def ping(self, nothing: None = None) -> None:
        """Look whether the subscriber's daemon answers; no method of the object is called."""
        proxy = self._opened()
        try:
            if proxy._pyroConnection is None:
                proxy._pyroBind()
            protocol.SendingMessage.ping(proxy._pyroConnection)
        except (pyro_errors.PyroError, OSError):
            proxy._pyroRelease()
            raise

    def close(self) -> None:
        """Let the connection go; called by the thread that used it."""
        if self._proxy is not None:
            self._proxy._pyroRelease()
