"""Reads topics as other consumers see them, for the tests of the sink."""

from __future__ import annotations

from confluent_kafka import Message
from tests.support.exactness import read_committed

from perkey.broker import LocalBroker

#: A whole topic is there within this, also where an open transaction has to time out first.
READ_S = 120.0


def messages(broker: LocalBroker, topic: str) -> list[Message]:
    """Every message that is in the topic now, as a read_committed reader sees it."""
    return read_committed(broker.bootstrap, topic, READ_S)


def values(broker: LocalBroker, topic: str) -> list[str]:
    """The values of all messages, sorted."""
    return sorted((m.value() or b"").decode() for m in messages(broker, topic))
