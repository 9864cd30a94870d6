"""How a client finds its channel: by the name server, by bounded and jittered retries.

``ChannelAddress`` is shared by publisher and subscriber. It knows no verbs of a channel.
"""

from __future__ import annotations

import os
import random
from typing import Any

from broker.errors import BadRequest, BrokerError, ChannelNotFound
from broker.pyro_setup import Proxy, ensure_configured, invoke
from broker.remote.name_server import NameServer

DEFAULT_NAME_SERVER = "127.0.0.1:9090"
ENVIRONMENT = "FAIRLEAD_NAME_SERVER"


def parse_address(text: str) -> tuple[str, int]:
    """"host:port" as a pair.

    >>> parse_address("127.0.0.1:9090")
    ('127.0.0.1', 9090)
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 <= int(port) < 65536:
        raise BadRequest(f"address {text!r:.80} is refused: write it as host:port")
    return host, int(port)


class ChannelAddress:
    """Where a channel is. The answer of the name server is kept until ``forget``."""

    def __init__(self, channel: str, name_server: str | None, timeout_s: float) -> None:
        ensure_configured()
        self.channel = channel
        text = name_server or os.environ.get(ENVIRONMENT) or DEFAULT_NAME_SERVER
        self.names = NameServer(*parse_address(text), timeout_s=min(timeout_s, 5.0))
        self.timeout_s = timeout_s
        self._uri: str | None = None

    def uri(self, create: bool = False, policy: dict[str, Any] | None = None) -> str:
        """The channel's address; asks the broker to make the channel if it may and must."""
        if self._uri is None:
            try:
                self._uri = self.names.lookup("channel." + self.channel)
            except ChannelNotFound:
                if not create:
                    raise
                self._create(policy)
                self._uri = self.names.lookup("channel." + self.channel)
        return self._uri

    def _create(self, policy: dict[str, Any] | None) -> None:
        with Proxy(self.names.lookup("fairlead.broker")) as proxy:
            proxy._pyroTimeout = self.timeout_s
            invoke(proxy, "create_channel", self.channel, policy)

    def forget(self) -> None:
        """The address did not answer: ask the name server again next time."""
        self._uri = None


def pause_s(attempt: int, error: BrokerError | None = None) -> float:
    """How long to wait before retry number ``attempt`` (from 0): doubling to 1 s, jittered."""
    hinted = (error.details.get("retry_after_ms") if error is not None else None) or 0
    base = max(min(0.05 * (1 << min(attempt, 6)), 1.0), hinted / 1000)
    return base * random.uniform(0.5, 1.0)
