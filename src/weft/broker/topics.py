"""Asking a running broker: is it there, and create or delete topics, each within a limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic

from weft.broker.process import BrokerError, wait_until

ANSWER_TIMEOUT_S = 30.0
_ASK_TIMEOUT_S = 2.0


def admin_client(bootstrap: str) -> AdminClient:
    """An admin client that keeps quiet: a broker that is not up yet is no news here."""
    return AdminClient(
        {"bootstrap.servers": bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 200}
    )


def wait_for_brokers(bootstrap: str, count: int, timeout_s: float, alive: Callable[[], bool]) -> bool:
    """Wait until metadata lists `count` brokers and a controller; give up early when not alive."""
    admin = admin_client(bootstrap)
    deadline = time.monotonic() + timeout_s
    while alive() and time.monotonic() < deadline:
        metadata = _metadata(admin)
        if metadata and len(metadata.brokers) >= count and metadata.controller_id >= 0:
            return True
        time.sleep(0.02)
    return False


def _metadata(admin: AdminClient, topic: str | None = None) -> ClusterMetadata | None:
    try:
        return admin.list_topics(topic, timeout=_ASK_TIMEOUT_S) if topic else admin.list_topics(
            timeout=_ASK_TIMEOUT_S
        )
    except KafkaException:
        return None


def create_topic(
    bootstrap: str, name: str, *, partitions: int, replication: int, config: Mapping[str, Any] | None
) -> None:
    """Create a topic and wait until every partition has a leader; raises BrokerError."""
    admin = admin_client(bootstrap)
    settings = {key: str(value) for key, value in (config or {}).items()}
    topic = NewTopic(name, num_partitions=partitions, replication_factor=replication, config=settings)
    _finish(admin.create_topics([topic])[name], f"topic {name} could not be created")

    def led() -> bool:
        found = _metadata(admin)
        topics = found.topics if found else {}
        return name in topics and sum(p.leader >= 0 for p in topics[name].partitions.values()) == partitions

    if not wait_until(led, ANSWER_TIMEOUT_S):
        raise BrokerError(f"topic {name} was created but has no leaders after {ANSWER_TIMEOUT_S:.0f} s")


def delete_topic(bootstrap: str, name: str) -> None:
    """Delete a topic and wait until metadata no longer lists it; raises BrokerError."""
    admin = admin_client(bootstrap)
    _finish(admin.delete_topics([name])[name], f"topic {name} could not be deleted")

    def gone() -> bool:
        found = _metadata(admin)
        return found is not None and name not in found.topics

    if not wait_until(gone, ANSWER_TIMEOUT_S):
        raise BrokerError(f"topic {name} is still there {ANSWER_TIMEOUT_S:.0f} s after its deletion")


def _finish(answer: Any, failure: str) -> None:
    try:
        answer.result(ANSWER_TIMEOUT_S)
    except (KafkaException, TimeoutError) as error:
        raise BrokerError(f"{failure}: {error}") from error
