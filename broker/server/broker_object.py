"""The exposed object of the broker itself: create, list, delete, describe. On the admin daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.core.policy import Policy
from broker.remote.exposed import remote
from broker.wire import check_channel_name

if TYPE_CHECKING:
    from broker.server.service import Service


class BrokerObject:
    """What the name server knows as ``fairlead.broker``."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @remote
    def ping(self) -> dict[str, Any]:
        """Who answers."""
        return self._service.describe()

    @remote
    def channels(self) -> list[str]:
        """The names of the channels, in order of creation."""
        return self._service.channels()

    @remote
    def overview(self) -> list[dict[str, Any]]:
        """The statistics of every channel."""
        return self._service.overview()

    @remote
    def create_channel(self, name: str, policy: dict[str, Any] | None = None) -> dict[str, Any]:
        """Make a channel, or find it made; another policy than the existing one is an error."""
        checked = None if policy is None else Policy.from_dict(policy)
        return self._service.create_channel(check_channel_name(name), checked)

    @remote
    def delete_channel(self, name: str, force: bool = False) -> dict[str, Any]:
        """Remove a channel with its journal. Unsettled messages stand against it unless forced."""
        return self._service.delete_channel(check_channel_name(name), bool(force))
