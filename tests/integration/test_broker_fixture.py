"""The fixture `kafka_broker`: a real broker that answers."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient

from weft.broker import LocalBroker


def test_the_fixture_answers_metadata(kafka_broker: LocalBroker) -> None:
    """The fixture gives a broker on loopback that lists itself."""
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap})
    listed = admin.list_topics(timeout=10).brokers.values()
    assert [f"{one.host}:{one.port}" for one in listed] == [kafka_broker.bootstrap]
