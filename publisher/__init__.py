"""The publishing side: ``Publisher`` and the ``Receipt`` that it answers with."""

from publisher.client import Publisher
from publisher.receipt import Accepted, Receipt

__all__ = ["Accepted", "Publisher", "Receipt"]
