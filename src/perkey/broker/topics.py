"""Query a running broker and create or delete topics, each with a time limit."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic

from perkey.broker.process import BrokerError, wait_until

ANSWER_TIMEOUT_S = 60.0  # for a busy machine: a broker that just started, or a blocked disk
_ASK_TIMEOUT_S = 2.0
#: consecutive names are in different partitions of the groups' offsets (by Java's hash)
_A_GROUP_OF_EACH = "abcd"


def admin_client(bootstrap: str) -> AdminClient:
    """A quiet admin client: an unreachable broker is expected here."""
    return AdminClient(
        {"bootstrap.servers": bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 200}
    )


def wait_for_brokers(addresses: Sequence[str], timeout_s: float, alive: Callable[[], bool]) -> bool:
    """Wait until each address accepts and metadata lists as many brokers and a controller.

    Gives up early if `alive` returns False.
    """
    admin = admin_client(",".join(addresses))

    def answered() -> bool:
        # A node killed a moment ago is still listed, so each address is checked, too.
        if not all(_accepts(address) for address in addresses):
            return False
        metadata = _metadata(admin)
        return bool(
            metadata and len(metadata.brokers) >= len(addresses) and metadata.controller_id >= 0
        )

    return wait_until(lambda: not alive() or answered(), timeout_s) and alive()


def wait_for_groups(bootstrap: str) -> None:
    """Wait until the broker answers for any group; BrokerError if it does not.

    The first request creates the topic of the groups' offsets; until its partitions are loaded,
    plain clients fail with NOT_COORDINATOR.
    """
    if not all(wait_until(_Asked(bootstrap, name), ANSWER_TIMEOUT_S) for name in _A_GROUP_OF_EACH):
        raise BrokerError(f"{bootstrap} serves no group after {ANSWER_TIMEOUT_S:.0f} s")


class _Asked:
    """Whether the broker answers for this group's commits.

    Uses a consumer: librdkafka 2.16's admin client ends the process (SIGSEGV) on NOT_COORDINATOR.
    """

    def __init__(self, bootstrap: str, group: str) -> None:
        config = {"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0}
        self._consumer = Consumer(config)

    def __call__(self) -> bool:
        try:
            self._consumer.committed([TopicPartition("none", 0)], timeout=_ASK_TIMEOUT_S)
        except KafkaException:
            return False
        self._consumer.close()
        return True


def _accepts(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_ASK_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _metadata(admin: AdminClient) -> ClusterMetadata | None:
    try:
        return admin.list_topics(timeout=_ASK_TIMEOUT_S)
    except KafkaException:
        return None


def create_topic(
    bootstrap: str,
    name: str,
    *,
    partitions: int,
    replication: int,
    config: Mapping[str, Any] | None,
) -> None:
    """Create a topic and wait until every partition has a leader; raises BrokerError."""
    admin = admin_client(bootstrap)
    settings = {key: str(value) for key, value in (config or {}).items()}
    topic = NewTopic(
        name, num_partitions=partitions, replication_factor=replication, config=settings
    )
    _finish(admin.create_topics([topic])[name], f"topic {name} could not be created")

    def led() -> bool:
        metadata = _metadata(admin)
        topics = metadata.topics if metadata else {}
        return (
            name in topics
            and sum(p.leader >= 0 for p in topics[name].partitions.values()) == partitions
        )

    if not wait_until(led, ANSWER_TIMEOUT_S):
        raise BrokerError(
            f"topic {name} was created but has no leaders after {ANSWER_TIMEOUT_S:.0f} s"
        )


def delete_topic(bootstrap: str, name: str) -> None:
    """Delete a topic and wait until metadata no longer lists it; raises BrokerError."""
    admin = admin_client(bootstrap)
    _finish(admin.delete_topics([name])[name], f"topic {name} could not be deleted")

    def gone() -> bool:
        metadata = _metadata(admin)
        return metadata is not None and name not in metadata.topics

    if not wait_until(gone, ANSWER_TIMEOUT_S):
        raise BrokerError(f"topic {name} still exists {ANSWER_TIMEOUT_S:.0f} s after its deletion")


def _finish(answer: Any, failure: str) -> None:
    try:
        answer.result(ANSWER_TIMEOUT_S)
    except (KafkaException, TimeoutError) as error:
        raise BrokerError(f"{failure}: {error}") from error
