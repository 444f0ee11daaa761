"""What a client's connections say becomes one line with the cure that fits."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from perkey.errors import ConfigError
from perkey.kafka.failures import Failures
from perkey.kafka.settings import ClientSettings, check_addresses

# public constants; the underscore says "from the client, not the broker"
HANDSHAKE = KafkaError(KafkaError._SSL, "SSL handshake failed: wrong version number")
TO_TLS = KafkaError(
    KafkaError._TRANSPORT,
    "Disconnected: might be caused by incorrect security.protocol configuration",
)
CLOSED = KafkaError(KafkaError._TRANSPORT, "Disconnected")


@pytest.mark.parametrize(
    ("noted", "cure"),
    [
        ([HANDSHAKE, CLOSED], "check security.protocol and ssl.*"),
        ([TO_TLS], "check security.protocol and ssl.*"),
        ([CLOSED], "is it running, and is bootstrap.servers right?"),
    ],
)
def test_tls_against_plain_is_no_wrong_address(noted, cure):
    """Either way round; a disconnect that follows does not hide why."""
    failures = Failures(ClientSettings({}, {}, {"bootstrap.servers": "localhost:9092"}))
    for error in noted:
        failures.note(error)
    assert cure in str(failures.explained("list topics", TimeoutError()))


def test_a_web_address_is_no_broker():
    """A scheme is for listeners' protocols: what was meant is host:port."""
    check_addresses({"bootstrap.servers": "SASL_SSL://localhost:9092"})
    with pytest.raises(ConfigError, match="write host:port, without http"):
        check_addresses({"bootstrap.servers": "http://localhost:9092"})
