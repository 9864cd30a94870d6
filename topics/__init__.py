"""Durable topics, the client: subscribe, unsubscribe, put, get. Each exactly once."""

from topics.client import Topic, Topics
from topics.message import Receipt, TopicMessage
from topics.state import StateUnusable

__all__ = ["Receipt", "StateUnusable", "Topic", "TopicMessage", "Topics"]
