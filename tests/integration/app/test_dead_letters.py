"""Dead letters: the record as it came, KIP-1191's headers, and what the broker refuses."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Producer
from tests.support.exactness import read_committed
from tests.support.waiting import wait_for

import perkey
from perkey.testing.memory_cluster import batch_bytes

LIMIT = 3_000_000


def dead_letter_app(kafka, source, policy, group=None, delivery="at_least_once"):
    app = kafka.app(group=group, kafka={"auto.offset.reset": "earliest"})
    retry = perkey.Retry(attempts=2, delay_s=0)

    @app.consume(source, delivery=delivery, retry=retry, on_exhausted=policy)
    async def handler(record):
        raise ValueError("brøken")

    return app


def test_the_letter_is_the_original_with_the_headers_of_kip_1191(kafka):
    """Key, value, headers and timestamp stay; seven headers tell where it came from and why."""
    source, group = kafka.topic(), kafka.name("g")
    letters = kafka.topic(name=f"{source}.dlq")
    kafka.fill(source, [b"first"])
    kafka.fill(
        source,
        [{"value": b"v", "key": b"k", "headers": [("h", b"1"), ("n", None)], "timestamp": 1234567}],
    )
    report = kafka.drain(dead_letter_app(kafka, source, perkey.DeadLetter("{topic}.dlq"), group))
    assert (report.exit_code, report.dead_lettered, report.parked) == (0, 2, 0)
    by_value = {message.value(): message for message in kafka.read(letters, 2)}
    letter = by_value[b"v"]
    assert (letter.key(), letter.timestamp()[1]) == (b"k", 1234567)
    assert letter.headers() == [
        ("h", b"1"),
        ("n", None),
        ("__dlq.errors.topic", source.encode()),
        ("__dlq.errors.partition", b"0"),
        ("__dlq.errors.offset", b"1"),
        ("__dlq.errors.group", group.encode()),
        ("__dlq.errors.handler", b"handler"),
        ("__dlq.errors.delivery.count", b"2"),
        ("__dlq.errors.message", "ValueError: brøken".encode()),
    ]
    assert kafka.committed(group, source) == 2


def test_a_record_that_cannot_be_decoded_takes_the_same_way(kafka):
    """Its bytes arrive as they were, after one attempt; a tombstone stays a tombstone."""
    source, letters = kafka.topic(), kafka.topic()
    kafka.fill(source, [b"\xff{", {"value": None, "key": b"gone"}])
    app = kafka.app()

    @app.consume(source, value="json", on_exhausted=perkey.DeadLetter(letters))
    async def handler(record):
        assert record.value is None
        raise perkey.Reject("tombstones are not for us")

    assert kafka.drain(app).dead_lettered == 2
    found = {message.value(): dict(message.headers()) for message in kafka.read(letters, 2)}
    assert set(found) == {b"\xff{", None}
    assert b"cannot be decoded" in found[b"\xff{"]["__dlq.errors.message"]
    assert found[b"\xff{"]["__dlq.errors.delivery.count"] == b"1"
    assert b"tombstones" in found[None]["__dlq.errors.message"]


@pytest.mark.broker
def test_a_letter_too_large_for_its_topic_goes_without_its_value(kafka):
    """Headers only, marked so; the record is done all the same."""
    source, letters = kafka.topic(), kafka.topic(max_message_bytes=2000)
    kafka.fill(source, [b"x" * 5000], key=b"k")
    report = kafka.drain(dead_letter_app(kafka, source, perkey.DeadLetter(letters)))
    assert (report.exit_code, report.dead_lettered) == (0, 1)
    (letter,) = kafka.read(letters, 1)
    headers = dict(letter.headers())
    assert (letter.key(), letter.value()) == (b"k", None)
    assert headers["__dlq.errors.value.omitted"] == b"too large"
    assert headers["__dlq.errors.offset"] == b"0"


@pytest.mark.broker
def test_a_letter_too_large_for_the_producer_goes_without_its_value(kafka):
    """The same where librdkafka itself refuses it before it is sent."""
    source, letters = kafka.topic(), kafka.topic()
    kafka.fill(source, [b"x" * 5000], key=b"k")
    app = kafka.app(producer={"message.max.bytes": 2000})

    @app.consume(source, retry=perkey.Retry(attempts=1), on_exhausted=perkey.DeadLetter(letters))
    def handler(record):
        raise ValueError

    assert kafka.drain(app).dead_lettered == 1
    (letter,) = kafka.read(letters, 1)
    assert dict(letter.headers())["__dlq.errors.value.omitted"] == b"too large"


@pytest.mark.broker
def test_a_letter_the_broker_refuses_leaves_its_record_parked(kafka):
    """A compacted topic takes no record without a key: the record is kept, not lost."""
    source, letters = kafka.topic(), kafka.topic(cleanup_policy="compact")
    kafka.fill(source, [{"value": b"fine", "key": b"k"}, b"no key"])
    app = kafka.app()

    # One after the other: librdkafka fails every record that shares a batch with a refused one.
    @app.consume(
        source,
        ordering="partition",
        retry=perkey.Retry(attempts=1),
        on_exhausted=perkey.DeadLetter(letters),
    )
    async def handler(record):
        raise ValueError

    stream = app.results()
    report = kafka.drain(app)
    outcomes = {result.record.value: result for result in stream}
    assert (report.exit_code, report.parked, report.dead_lettered) == (3, 1, 1)
    assert outcomes[b"fine"].outcome == "dead_lettered"
    assert outcomes[b"fine"].outputs[0][:3] == (letters, 0, 0)
    assert outcomes[b"no key"].outcome == "parked"
    assert letters in outcomes[b"no key"].error.message


def test_on_missing_create_makes_the_topic(kafka):
    """A missing dead-letter topic is made at the start where that is asked for."""
    source = kafka.topic()
    kafka.fill(source, [b"x"])
    report = kafka.drain(
        dead_letter_app(kafka, source, perkey.DeadLetter("{topic}.made", on_missing="create"))
    )
    assert report.dead_lettered == 1
    assert len(kafka.read(f"{source}.made", 1)) == 1


def batch_of(letter):
    return batch_bytes(letter.key(), letter.value(), letter.headers())


def big_letter(kafka, length, limit):
    """Dead-letter a record with a value of this length; the letter, and what was cut of it."""
    source, group = uuid.uuid4().hex, uuid.uuid4().hex  # names of one length
    kafka.topic(name=source, max_message_bytes=2 * LIMIT)
    letters = kafka.topic(max_message_bytes=limit)
    fill_large(kafka, source, value=b"x" * length, key=b"k")
    app = dead_letter_app(kafka, source, perkey.DeadLetter(letters), group)
    assert kafka.drain(app).dead_lettered == 1
    (letter,) = kafka.read(letters, 1)
    return letter, app.snapshot()["dead_letters_cut"]


def fill_large(kafka, topic, **record):
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "message.max.bytes": 2 * LIMIT, "log_level": 0}
    )
    producer.produce(topic, **record)
    assert producer.flush(60) == 0


@pytest.mark.broker
@pytest.mark.parametrize("over", [-1, 0, 1])
def test_the_broker_decides_what_is_too_large(kafka, caplog, over):
    """Up to its topic's limit a letter is whole, also past librdkafka's default of 1,000,000."""
    half, _ = big_letter(kafka, LIMIT // 2, 2 * LIMIT)
    around = batch_of(half) - LIMIT // 2
    letter, cut = big_letter(kafka, LIMIT + over - around, LIMIT)
    assert (letter.value() is None, cut) == ((True, 1) if over > 0 else (False, 0))
    assert ("dead letter too large" in caplog.text) == (over > 0)


@pytest.mark.broker
@pytest.mark.parametrize(
    ("record", "marks"),
    [
        ({"value": b"v", "headers": [(f"h{n}", b"x" * 1000) for n in range(1000)]}, {"headers"}),
        ({"value": b"v", "key": b"k" * 1_030_000}, {"key"}),
        (
            {"value": b"v" * 900_000, "key": b"k" * 40_000, "headers": [("h", b"x" * 50_000)]},
            {"value"},
        ),
    ],
    ids=["headers", "key", "value"],
)
@pytest.mark.parametrize(
    "delivery", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)]
)
def test_what_is_large_is_given_up_in_turn(kafka, record, marks, delivery):
    """Value, then headers, then the end of the key: every record can be dead-lettered."""
    source, letters = (
        kafka.topic(max_message_bytes=2_000_000),
        kafka.topic(max_message_bytes=200_000),
    )
    fill_large(kafka, source, **record)
    app = dead_letter_app(kafka, source, perkey.DeadLetter(letters), delivery=delivery)
    report = kafka.drain(app)
    assert (report.exit_code, report.dead_lettered) == (0, 1)
    (letter,) = read_committed(kafka.bootstrap, letters)
    headers = dict(letter.headers())
    assert headers["__dlq.errors.offset"] == b"0"
    assert letter.value() is None
    assert ("__dlq.errors.headers.omitted" in headers) == ("headers" in marks)
    assert ("__dlq.errors.key.size" in headers) == ("key" in marks)
    if "key" in marks:
        assert letter.key() == b"k" * 1000
        assert headers["__dlq.errors.key.size"] == b"1030000"
    assert app.snapshot()["dead_letters_cut"] == len(marks | {"value"})


def parked_app(kafka, source, group, handled, policy, delivery="at_least_once"):
    """Every value that begins with `bad` fails its one attempt."""
    app = kafka.app(group=group, kafka={"auto.offset.reset": "earliest"})
    retry = perkey.Retry(attempts=1)

    @app.consume(source, delivery=delivery, retry=retry, on_exhausted=policy)
    async def handler(record):
        if record.value.startswith(b"bad"):
            raise ValueError("poison")
        handled.append(record.value)

    return app


def check_given_up(kafka, delivery):
    """One letter, of the parked record; the next of its key is handled, and all is committed."""
    source, group = kafka.topic(), kafka.name("g")
    letters = kafka.topic(name=f"{source}.dlq")
    kafka.fill(source, [b"bad", b"1", b"2"], key=b"k")
    handled: list[bytes] = []
    policy = perkey.Park(dead_letter="{topic}.dlq", after_s=0.5)
    run = kafka.start(parked_app(kafka, source, group, handled, policy, delivery))
    wait_for(lambda: handled == [b"1", b"2"])
    wait_for(lambda: kafka.committed(group, source) >= 3)
    run.stop()
    report = run.wait(60)
    assert (report.dead_lettered, report.done) == (1, 2)
    return letters


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_parked_record_is_given_up_after_its_time_and_its_key_continues(kafka, delivery):
    """Its bytes are read again for the letter, which has the usual headers."""
    letters = check_given_up(kafka, delivery)
    (letter,) = kafka.read(letters, 1)
    assert (letter.key(), letter.value()) == (b"k", b"bad")
    assert dict(letter.headers())["__dlq.errors.message"] == b"ValueError: poison"


def test_a_parked_record_is_given_up_when_the_map_is_so_full(kafka):
    """The oldest one; the younger stays parked, as there is room without the first."""
    source, group = kafka.topic(), kafka.name("g")
    letters = kafka.topic(name=f"{source}.dlq")
    kafka.fill(source, [b"bad 0", *[b"%d" % n for n in range(30)], b"bad 1"])
    kafka.fill(source, [b"last"])
    handled: list[bytes] = []
    policy = perkey.Park(dead_letter="{topic}.dlq", at_map=0.001)  # of 18,396 offsets
    run = kafka.start(parked_app(kafka, source, group, handled, policy))
    wait_for(lambda: len(handled) == 31)
    (letter,) = kafka.read(letters, 1)
    assert letter.value() == b"bad 0"
    wait_for(lambda: kafka.committed(group, source) == 31)
    run.stop()
    report = run.wait(60)
    assert (report.dead_lettered, report.parked) == (1, 2)


def test_a_parked_record_is_given_up_after_a_restart(kafka):
    """Only its offset and its time are remembered; what it failed with is not."""
    source, group = kafka.topic(), kafka.name("g")
    letters = kafka.topic(name=f"{source}.dlq")
    kafka.fill(source, [b"bad", b"1"], key=b"k")
    handled: list[bytes] = []
    far = perkey.Park(dead_letter="{topic}.dlq", after_s=3_600)
    assert kafka.drain(parked_app(kafka, source, group, handled, far)).parked == 1
    soon = perkey.Park(dead_letter="{topic}.dlq", after_s=0.5)
    run = kafka.start(parked_app(kafka, source, group, handled, soon))
    wait_for(lambda: handled == [b"1"])
    (letter,) = kafka.read(letters, 1)
    assert letter.value() == b"bad"
    assert dict(letter.headers())["__dlq.errors.message"].startswith(b"Exhausted: its attempts")
    run.stop()
    assert run.wait(60).dead_lettered == 1


def test_the_dead_letter_topic_of_a_park_must_exist(kafka):
    """One line with the command that makes it, before anything is handled."""
    source = kafka.topic()
    policy = perkey.Park(dead_letter="{topic}.missing")
    with pytest.raises(
        perkey.ConfigError, match=r"Park\(dead_letter=\) of handler.*perkey topics create"
    ):
        kafka.drain(dead_letter_app(kafka, source, policy))


@pytest.mark.broker
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_parked_record_is_given_up_on_a_broker(kafka, delivery):
    """A reader of committed records sees the one letter."""
    letters = check_given_up(kafka, delivery)
    assert [one.value() for one in read_committed(kafka.bootstrap, letters)] == [b"bad"]
