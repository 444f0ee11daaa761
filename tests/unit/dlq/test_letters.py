"""Headers of dead letters, by whoever writes them; vectors as each of them puts them on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perkey.dlq.letters import LETTER, POSITION, Place, homeward, letter_of, origin_of
from perkey.types import Record

SOURCE = Place("orders", 2, 991)


def dead(*headers: tuple[str, bytes | None], key: bytes | None = b"k", value=b"v") -> Record:
    return Record("orders.dlq", 1, 17, 1_700_000_000_000, key, value, headers)


#: KIP-1191, as Perkey writes it
PERKEY = (
    ("tenant", b"acme"),
    ("__dlq.errors.topic", b"orders"),
    ("__dlq.errors.partition", b"2"),
    ("__dlq.errors.offset", b"991"),
    ("__dlq.errors.group", b"billing"),
    ("__dlq.errors.delivery.count", b"5"),
    ("__dlq.errors.message", b"Timeout: after 5 s"),
    ("__dlq.errors.replay.count", b"2"),
)
#: DeadLetterPublishingRecoverer of Spring Kafka: numbers by ByteBuffer
SPRING = (
    ("tenant", b"acme"),
    ("kafka_dlt-original-topic", b"orders"),
    ("kafka_dlt-original-partition", (2).to_bytes(4, "big")),
    ("kafka_dlt-original-offset", (991).to_bytes(8, "big")),
    ("kafka_dlt-original-timestamp", (1_700_000_000_000).to_bytes(8, "big")),
    ("kafka_dlt-original-timestamp-type", b"CreateTime"),
    ("kafka_dlt-original-consumer-group", b"billing"),
    ("kafka_dlt-exception-fqcn", b"org.springframework.kafka.listener.ListenerExecutionFailed"),
    ("kafka_dlt-exception-cause-fqcn", b"com.acme.Gateway$Timeout"),
    ("kafka_dlt-exception-message", b"after 5 s"),
    ("kafka_dlt-exception-stacktrace", b"at ..."),
    ("retry_topic-attempts", (5).to_bytes(4, "big")),
)
#: DeadLetterQueueReporter of Kafka Connect
CONNECT = (
    ("tenant", b"acme"),
    ("__connect.errors.topic", b"orders"),
    ("__connect.errors.partition", b"2"),
    ("__connect.errors.offset", b"991"),
    ("__connect.errors.connector.name", b"billing"),
    ("__connect.errors.task.id", b"0"),
    ("__connect.errors.stage", b"VALUE_CONVERTER"),
    ("__connect.errors.class.name", b"org.apache.kafka.connect.json.JsonConverter"),
    ("__connect.errors.exception.class.name", b"org.apache.kafka.connect.errors.Timeout"),
    ("__connect.errors.exception.message", b"after 5 s"),
    ("__connect.errors.exception.stacktrace", b"at ..."),
)
#: ExceptionHandlerUtils of Kafka Streams (KIP-1034)
STREAMS = (
    ("tenant", b"acme"),
    ("__streams.errors.exception", b"java.util.concurrent.Timeout"),
    ("__streams.errors.stacktrace", b"at ..."),
    ("__streams.errors.message", b"after 5 s"),
    ("__streams.errors.topic", b"orders"),
    ("__streams.errors.partition", b"2"),
    ("__streams.errors.offset", b"991"),
)


@pytest.mark.parametrize(
    ("headers", "name", "group", "attempts", "replays"),
    [
        (PERKEY, "perkey", "billing", 5, 2),
        (SPRING, "spring", "billing", 5, 0),
        (CONNECT, "connect", "billing", None, 0),
        (STREAMS, "streams", None, None, 0),
    ],
    ids=["perkey", "spring", "connect", "streams"],
)
def test_every_dialect_is_understood(headers, name, group, attempts, replays):
    """Where the record was, why it failed and how often; its own headers without theirs."""
    letter = letter_of(dead(*headers))
    assert letter.dialect is not None
    assert (letter.dialect.name, letter.source, letter.position) == (name, SOURCE, 991)
    assert (letter.error_type, letter.error_message) == ("Timeout", "after 5 s")
    assert (letter.group, letter.attempts, letter.replays) == (group, attempts, replays)
    assert letter.own_headers == (("tenant", b"acme"),)
    fields = {name: letter.field(name) for name in ("topic", "partition", "offset", "key")}
    assert fields == {"topic": "orders", "partition": 2, "offset": 991, "key": "k"}
    assert letter.field("header.tenant") == "acme"


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        (PERKEY, None),
        ((*PERKEY, ("__dlq.errors.handler", b"charge")), "charge"),
        (CONNECT, "org.apache.kafka.connect.json.JsonConverter"),
        (SPRING, None),
    ],
    ids=["perkey, earlier", "perkey", "connect", "spring"],
)
def test_a_letter_names_its_handler(headers, name):
    """Perkey's header, which earlier versions did not write: without it nothing else changes."""
    letter = letter_of(dead(*headers))
    assert (letter.handler, letter.field("handler")) == (name, name)
    assert (letter.source, letter.error_type) == (SOURCE, "Timeout")
    assert letter.own_headers == (("tenant", b"acme"),)


def test_springs_older_names_are_understood():
    """A retry topic's own names, without dlt."""
    older = tuple((name.replace("kafka_dlt-", "kafka_"), value) for name, value in SPRING)
    letter = letter_of(dead(*older))
    assert (letter.source, letter.error_type) == (SOURCE, "Timeout")
    assert letter.own_headers == (("tenant", b"acme"),)


def test_who_wrote_last_counts():
    """What Kafka Streams gave up and Perkey after it is Perkey's letter; the other headers stay."""
    letter = letter_of(dead(*STREAMS, *PERKEY[1:]))
    assert letter.dialect is not None
    assert letter.dialect.name == "perkey"
    assert letter.own_headers == STREAMS


def test_of_a_header_that_is_there_twice_the_last_one_counts():
    """A broker appends its own to those of a record that was a letter before."""
    letter = letter_of(dead(*PERKEY, ("__dlq.errors.offset", b"992")))
    assert letter.source == Place("orders", 2, 992)


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("tenant", b"acme"),),
        PERKEY[:3],
        (*PERKEY[:3], ("__dlq.errors.offset", b"-1")),
        (*PERKEY[:3], ("__dlq.errors.offset", b"9" * 19)),
        (*PERKEY[:3], ("__dlq.errors.offset", None)),
        (*SPRING[:3], ("kafka_dlt-original-offset", b"\xff" * 8)),
    ],
)
def test_without_a_place_it_is_no_letter(headers):
    """Headers that are missing, null, negative or no number: nothing is known, nothing raises."""
    letter = letter_of(dead(*headers))
    assert (letter.source, letter.dialect) == (None, None)
    assert letter.field("topic") is None


@pytest.mark.parametrize(
    ("message", "kind", "rest"),
    [
        (b"Timeout: a: b", "Timeout", "a: b"),
        (b"Timeout", "Timeout", ""),
        (b"the record was rejected", None, "the record was rejected"),
        (b"\xff\xfe", None, "\\xff\\xfe"),
    ],
)
def test_a_type_is_read_from_a_message_of_perkey(message, kind, rest):
    """`Type: message`; what has no type, as a broker's own words, has none."""
    letter = letter_of(dead(*PERKEY, ("__dlq.errors.message", message)))
    assert (letter.error_type, letter.error_message) == (kind, rest)


def test_a_letter_without_its_record_is_known_as_cut():
    """Perkey's marks, and KIP-1191 without copies: neither key nor value."""
    assert not letter_of(dead(*PERKEY)).is_cut
    assert letter_of(dead(*PERKEY, ("__dlq.errors.value.omitted", b"too large"))).is_cut
    assert letter_of(dead(*PERKEY, ("__dlq.errors.key.size", b"5000"))).is_cut
    assert letter_of(dead(*PERKEY, key=None, value=None)).is_cut
    assert not letter_of(dead(*PERKEY, value=None)).is_cut  # a tombstone


def home(headers: tuple[tuple[str, bytes | None], ...]):
    letter = letter_of(dead(*headers))
    record = Record("orders", 2, 991, 5, b"k", b"v", letter.own_headers)
    return homeward(letter, "orders", record)


def test_a_record_goes_home_as_it_was():
    """Own partition, key, value, time and headers; two or three headers name its letter."""
    message = home(PERKEY)
    assert (message.topic, message.partition, message.timestamp_ms) == ("orders", 2, 5)
    assert message.headers == (
        ("tenant", b"acme"),
        ("__dlq.errors.replay.letter", b"orders.dlq:1:17"),
        ("__dlq.errors.replay.offset", b"991"),
        ("__dlq.errors.replay.count", b"2"),
    )


def test_replays_are_counted_any_caller_writes_the_letters():
    """Spring keeps a record's headers; Perkey takes the letter's name away and counts itself."""
    sent = home(SPRING)
    letter = letter_of(dead(*sent.headers, *SPRING[1:]))
    assert letter.replays == 1
    again = homeward(letter, "orders", Record("orders", 2, 991, 5, b"k", b"v", letter.own_headers))
    assert dict(again.headers)["__dlq.errors.replay.count"] == b"1"
    assert letter_of(dead(*again.headers, *SPRING[1:])).replays == 2


def test_the_first_offset_stays_known():
    """A record that was replayed at 991 and was at 12 first keeps its place in its key's order."""
    letter = letter_of(dead(*PERKEY, (POSITION, b"12")))
    assert (letter.source, letter.position) == (SOURCE, 12)
    assert letter_of(dead(*PERKEY, (POSITION, b"992"))).position == 991  # no record comes earlier
    replayed = Record("orders", 2, 991, 5, b"k", b"v", ((LETTER, b"d:1:2"), (POSITION, b"12")))
    assert origin_of(replayed) == ("d:1:2", 12)
    assert origin_of(replayed._replace(headers=())) == (None, 991)


NAMES = st.sampled_from([name for name, _ in (*PERKEY, *SPRING, *CONNECT, *STREAMS)])


@given(st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=9))))
def test_no_headers_raise(headers):
    """Whatever stands in them, a letter comes of it, and each field can be asked for."""
    letter = letter_of(dead(*headers))
    for name in ("topic", "group", "error.type", "attempts", "replays", "header.x", "handler"):
        letter.field(name)
    assert letter.position <= (letter.source or SOURCE).offset
