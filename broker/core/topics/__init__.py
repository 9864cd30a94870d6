"""Durable topics, the pure half: one line of messages, and a place in it for each client.

Everybody who subscribes gets every message that is accepted after that, exactly once and in the
order of acceptance, at its own pace. What may not live here is what may not live in
``broker.core``: a clock, a thread, a socket, a file, randomness.
"""

from broker.core.topics.policy import TopicPolicy
from broker.core.topics.topic import Topic

__all__ = ["Topic", "TopicPolicy"]
