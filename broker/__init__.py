"""The broker. Public names: the message's key, the policy, the errors. Clients import no more."""

from broker import errors
from broker.core.message import PartitionKey
from broker.core.policy import Policy

__all__ = ["PartitionKey", "Policy", "errors"]
__version__ = "0.1.0"
