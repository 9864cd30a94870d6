"""The way from a command to a broker: name server, look-up, one call. It keeps no state.

Every failure leaves here as a ``Problem`` or a ``BrokerError`` whose text says what to do next.
"""

from __future__ import annotations

from typing import Any

from broker.errors import BrokerUnavailable, ChannelNotFound
from broker.pyro_setup import Proxy, configure, invoke
from broker.remote.name_server import NameServer, locate
from fairlead.options import parse_address
from fairlead.problems import Problem

BROKER_NAME = "fairlead.broker"
CHANNEL_PREFIX = "channel."
NAME_SERVER_TIMEOUT_S = 2.0
TIMEOUT_S = 30.0


class Connection:
    """What can be reached through one name server."""

    def __init__(self, name_server: str, timeout_s: float = TIMEOUT_S) -> None:
        host, port = parse_address(name_server)
        configure(comm_timeout_s=timeout_s)
        self.name_server = name_server
        self._timeout_s = timeout_s
        try:
            self.names: NameServer = locate(host, port, min(NAME_SERVER_TIMEOUT_S, timeout_s))
        except BrokerUnavailable as error:
            raise Problem(
                f"no name server answers at {name_server} ({error.details.get('fault')})",
                "start a broker with 'fairlead up', or say where it is with --name-server "
                "HOST:PORT or FAIRLEAD_NAME_SERVER",
            ) from None

    def broker(self, method: str, *args: Any) -> Any:
        """Call the broker itself."""
        try:
            uri = self.names.lookup(BROKER_NAME)
        except ChannelNotFound:
            raise Problem(
                f"no broker is registered at the name server {self.name_server}",
                "start one with 'fairlead up'",
            ) from None
        return self._call(uri, method, *args)

    def channel(self, name: str, method: str, *args: Any) -> Any:
        """Call a channel."""
        return self._call(self.channel_uri(name), method, *args)

    def channel_uri(self, name: str) -> str:
        """Where a channel is, or a Problem when there is none of that name."""
        try:
            return self.names.lookup(CHANNEL_PREFIX + name)
        except ChannelNotFound:
            raise Problem(
                f"there is no channel {name!r} at the name server {self.name_server}",
                f"'fairlead ls' shows those there are, 'fairlead create {name}' makes it",
            ) from None

    def _call(self, uri: str, method: str, *args: Any) -> Any:
        with Proxy(uri) as proxy:
            proxy._pyroTimeout = self._timeout_s
            return invoke(proxy, method, *args)
