"""Dead letters: the record as it came, KIP-1191's headers, and what the broker refuses."""

from __future__ import annotations

import weft


def dead_letter_app(kafka, source, policy, group=None):
    app = kafka.app(group=group)

    @app.consume(source, retry=weft.Retry(attempts=2, delay_s=0), on_exhausted=policy)
    async def handler(record):
        raise ValueError("brøken")

    return app


def test_the_letter_is_the_original_with_the_headers_of_kip_1191(kafka):
    """Key, value, headers and timestamp stay; six headers tell where it came from and why."""
    source, group = kafka.topic(), kafka.name("g")
    letters = kafka.topic(name=f"{source}.dlq")
    kafka.fill(source, [b"first"])
    kafka.fill(
        source,
        [{"value": b"v", "key": b"k", "headers": [("h", b"1"), ("n", None)], "timestamp": 1234567}],
    )
    report = kafka.drain(dead_letter_app(kafka, source, weft.DeadLetter("{topic}.dlq"), group))
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
        ("__dlq.errors.delivery.count", b"2"),
        ("__dlq.errors.message", "ValueError: brøken".encode()),
    ]
    assert kafka.committed(group, source) == 2


def test_a_record_that_cannot_be_decoded_takes_the_same_way(kafka):
    """Its bytes arrive as they were, after one attempt; a tombstone stays a tombstone."""
    source, letters = kafka.topic(), kafka.topic()
    kafka.fill(source, [b"\xff{", {"value": None, "key": b"gone"}])
    app = kafka.app()

    @app.consume(source, value="json", on_exhausted=weft.DeadLetter(letters))
    async def handler(record):
        assert record.value is None
        raise weft.Reject("tombstones are not for us")

    assert kafka.drain(app).dead_lettered == 2
    found = {message.value(): dict(message.headers()) for message in kafka.read(letters, 2)}
    assert set(found) == {b"\xff{", None}
    assert b"cannot be decoded" in found[b"\xff{"]["__dlq.errors.message"]
    assert found[b"\xff{"]["__dlq.errors.delivery.count"] == b"1"
    assert b"tombstones" in found[None]["__dlq.errors.message"]


def test_a_letter_too_large_for_its_topic_goes_without_its_value(kafka):
    """Headers only, marked so; the record is done all the same."""
    source, letters = kafka.topic(), kafka.topic(max_message_bytes=2000)
    kafka.fill(source, [b"x" * 5000], key=b"k")
    report = kafka.drain(dead_letter_app(kafka, source, weft.DeadLetter(letters)))
    assert (report.exit_code, report.dead_lettered) == (0, 1)
    (letter,) = kafka.read(letters, 1)
    headers = dict(letter.headers())
    assert (letter.key(), letter.value()) == (b"k", None)
    assert headers["__dlq.errors.value.omitted"] == b"too large"
    assert headers["__dlq.errors.offset"] == b"0"


def test_a_letter_too_large_for_the_producer_goes_without_its_value(kafka):
    """The same where librdkafka itself refuses it before it is sent."""
    source, letters = kafka.topic(), kafka.topic()
    kafka.fill(source, [b"x" * 5000], key=b"k")
    app = kafka.app(producer={"message.max.bytes": 2000})

    @app.consume(source, retry=weft.Retry(attempts=1), on_exhausted=weft.DeadLetter(letters))
    def handler(record):
        raise ValueError

    assert kafka.drain(app).dead_lettered == 1
    (letter,) = kafka.read(letters, 1)
    assert dict(letter.headers())["__dlq.errors.value.omitted"] == b"too large"


def test_a_letter_the_broker_refuses_leaves_its_record_parked(kafka):
    """A compacted topic takes no record without a key: the record is kept, not lost."""
    source, letters = kafka.topic(), kafka.topic(cleanup_policy="compact")
    kafka.fill(source, [{"value": b"fine", "key": b"k"}, b"no key"])
    app = kafka.app()

    # One after the other: librdkafka fails every record that shares a batch with a refused one.
    @app.consume(
        source,
        ordering="partition",
        retry=weft.Retry(attempts=1),
        on_exhausted=weft.DeadLetter(letters),
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
        dead_letter_app(kafka, source, weft.DeadLetter("{topic}.made", on_missing="create"))
    )
    assert report.dead_lettered == 1
    assert len(kafka.read(f"{source}.made", 1)) == 1
