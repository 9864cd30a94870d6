"""The subscribing side: ``Subscriber``, and the ``Message`` that its handler is given."""

from subscriber.client import Subscriber
from subscriber.message import Message
from subscriber.once import make_table

__all__ = ["Message", "Subscriber", "make_table"]
