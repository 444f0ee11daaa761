"""Names and values of single properties: what is wrong is named, with what to write instead."""

from __future__ import annotations

import pytest
from tests.unit.kafka.test_settings import made, refusal

import perkey
from perkey.kafka.properties import ELSEWHERE, properties


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("fetch.max.wait.ms", "fetch.wait.max.ms"),
        ("sasl.jaas.config", "sasl.username and sasl.password"),
        ("ssl.truststore.location", "ssl.ca.location"),
        ("value.deserializer", "value="),
        ("boostrap.servers", "did you mean bootstrap.servers?"),
        ("sesion.timeout.ms", "did you mean session.timeout.ms?"),
        ("fetch_min_bytes", "did you mean fetch.min.bytes?"),
        ("Fetch.min.bytes", "did you mean fetch.min.bytes?"),
        ("errors_cb", "error_cb"),
        ("utter nonsense", "CONFIGURATION.md"),
        ("log_cb", "logger"),
        ("rebalance_cb", "on_assign"),
        ("on_delivery", "app.results()"),
        ("opaque", "omit it"),
    ],
)
def test_an_unknown_name_brings_the_right_one(name, cure) -> None:
    """Java's names, other clients' names, typing errors, and what Python cannot set."""
    message = refusal({name: "x"})
    assert name in message
    assert cure in message


def test_hints_are_for_names_that_librdkafka_does_not_take() -> None:
    """A hint for a property that can be set would never be read."""
    taken = {name for name, known in properties().items() if known.settable}
    assert not taken & set(ELSEWHERE)


@pytest.mark.parametrize(
    ("name", "value", "wants"),
    [
        ("fetch.min.bytes", -1, "from 0 to 2147483647"),
        ("fetch.min.bytes", 2147483648, "from 0 to 2147483647"),
        ("fetch.wait.max.ms", 300_001, "from 0 to 300000"),
        ("fetch.min.bytes", 0, "1..100000000"),
        ("fetch.min.bytes", "x", "a whole number"),
        ("fetch.min.bytes", "10.5", "a whole number"),
        ("fetch.min.bytes", 10.5, "a whole number"),
        ("fetch.min.bytes", True, "a whole number"),
        ("linger.ms", "soon", "a number from 0 to 900000"),
        ("linger.ms", float("nan"), "a number from 0"),
        ("check.crcs", "yes", "true or false"),
        ("auto.offset.reset", "start", "earliest"),
        ("isolation.level", "serializable", "read_committed"),
        ("compression.type", "zip", "zstd"),
        ("client.id", ["a"], "a list: it takes text, several separated by commas"),
        ("client.id", None, "environment variable"),
        ("client.id", b"a", "bytes"),
        ("client.id", {"a": 1}, "dict"),
        ("partition.assignment.strategy", "magic", "magic"),
        ("partitioner", "magic", "partitioner"),
        ("error_cb", "x", "a function"),
        ("logger", "x", "logging.Logger"),
        (
            "acks",
            1,
            "enable.idempotence is true: Perkey needs idempotence: omit the other property",
        ),
        ("acks", "some", "whole number"),
        ("retries", 0, "retries"),
        ("max.in.flight", 6, "max.in.flight"),
        ("max.poll.interval.ms", 1000, "must be >= session.timeout.ms"),
        ("debug", "everything", "debug"),
    ],
)
def test_a_wrong_value_reports_what_is_wanted(name, value, wants) -> None:
    """Type, range, word, and rules between properties: always one line with the name."""
    message = refusal({name: value})
    assert wants in message
    assert name.partition(".")[0] in message


@pytest.mark.parametrize("value", [0, 300_000, "0", "0x10", " 5 "])
def test_the_ends_of_a_range_are_in_it(value) -> None:
    """Numbers may be text, as from an environment variable."""
    assert made({"fetch.wait.max.ms": value}).consumer["fetch.wait.max.ms"] == value


@pytest.mark.parametrize(
    "servers",
    [
        "kafka",
        "kafka:9092",
        "a:1,b:65535",
        "a:1, b:2 ",
        "10.0.0.1:9092",
        "[::1]:9092",
        "SASL_SSL://a:9092",
        "a_b-c.d:9092",
    ],
)
def test_addresses_are_taken(servers) -> None:
    """Names, numbers, IPv6, several, with a protocol in front."""
    assert made({"bootstrap.servers": servers}).bootstrap == servers


@pytest.mark.parametrize(
    "servers",
    ["a:0", "a:65536", "a:b", "a b:1", "a:1,,b:2", "a:", "http://a:1/x", "a:1;b:2", ":9092"],
)
def test_what_cannot_be_an_address_is_refused(servers) -> None:
    """One line that shows the entry."""
    assert "which is not" in refusal({"bootstrap.servers": servers})


@pytest.mark.parametrize("value", ["a\0b", "a\udcff"])
def test_text_that_the_client_cannot_take_is_refused(value) -> None:
    """Such text ended the process, or a part of it was used; it may be a secret."""
    said = refusal({"sasl.password": value})
    assert "sasl.password has characters" in said
    assert "a" + value[1:] not in said


def test_names_are_text() -> None:
    """A key that is no string is refused."""
    assert "names are text" in refusal({7: 1})


def test_librdkafkas_table_can_be_read() -> None:
    """Scopes, kinds, ranges and aliases of properties known for years."""
    known = properties()
    assert len(known) > 150
    assert known["group.id"].scope == "C"
    assert known["linger.ms"].scope == "P"
    assert known["linger.ms"].canonical == "queue.buffering.max.ms"
    assert known["bootstrap.servers"].scope == "*"
    assert known["fetch.min.bytes"].limits == (0, 2147483647)
    assert "earliest" in known["auto.offset.reset"].choices
    assert not known["rebalance_cb"].settable


def test_a_password_in_an_address_is_not_shown():
    """It is said where it belongs."""
    line = refusal({"bootstrap.servers": "sasl://user:hunter22@broker:9092"})
    assert "hunter22" not in line
    assert "sasl.password" in line


def test_what_only_the_first_client_refuses_is_bad_input():
    """No log-in mechanism chosen: librdkafka's default needs what its build lacks. One line."""
    app = perkey.App(
        group="g",
        kafka={"bootstrap.servers": "127.0.0.1:1", "security.protocol": "sasl_plaintext"},
    )
    app.consume("t")(print)
    with pytest.raises(perkey.ConfigError, match=r"refuses: .*No provider for SASL") as caught:
        app.run()
    assert "\n" not in str(caught.value)
