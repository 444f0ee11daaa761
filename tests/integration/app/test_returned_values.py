"""What a handler returns, and what becomes of it."""

from __future__ import annotations

import asyncio

import pydantic
import pytest

import perkey


class Model(pydantic.BaseModel):
    """A value with a JSON form of its own."""

    x: int


def generated():
    yield perkey.Produce(b"first")
    yield perkey.Produce(b"second")


KINDS = {
    "none": (lambda _: None, []),
    "bytes": (lambda _: b"plain", [(b"k", b"plain")]),
    "str": (lambda _: "text", [(b"k", b"text")]),
    "json": (lambda _: {"a": [1, 2]}, [(b"k", b'{"a":[1,2]}')]),
    "number": (lambda _: 7, [(b"k", b"7")]),
    "list in Produce": (lambda _: perkey.Produce([1, 2]), [(b"k", b"[1,2]")]),
    "model": (lambda _: Model(x=3), [(b"k", b'{"x":3}')]),
    "produce": (lambda _: perkey.Produce(b"p"), [(b"k", b"p")]),
    "null key": (lambda _: perkey.Produce(b"p", key=None), [(None, b"p")]),
    "own key": (lambda _: perkey.Produce("p", key="other"), [(b"other", b"p")]),
    "tombstone": (lambda _: perkey.Produce(None), [(b"k", None)]),
    "named topic": (lambda out: perkey.Produce(b"named", topic=out), [(b"k", b"named")]),
    "list": (
        lambda _: [perkey.Produce(b"1"), perkey.Produce(b"2")],
        [(b"k", b"1"), (b"k", b"2")],
    ),
    "tuple": (lambda _: (perkey.Produce(b"t"),), [(b"k", b"t")]),
    "empty list": (lambda _: [], []),
    "generator": (lambda _: generated(), [(b"k", b"first"), (b"k", b"second")]),
}


@pytest.mark.parametrize("kind", ["async", "threads"])
def test_every_kind_of_value_is_produced_under_the_records_key(kafka, kind):
    """None is nothing; plain values, Produce, lists, tuples and generators go to the output."""
    source, out = kafka.topic(), kafka.topic()
    kafka.fill(source, [name.encode() for name in KINDS], key=b"k")
    app = kafka.app()

    def answer(record):
        return KINDS[record.value][0](out)

    if kind == "async":

        async def handler(record):
            await asyncio.sleep(0)
            return answer(record)
    else:
        handler = answer

    app.consume(source, output=out, value="str")(handler)
    report = kafka.drain(app)
    assert (report.exit_code, report.done, report.failed_attempts) == (0, len(KINDS), 0)
    expected = [pair for _, pairs in KINDS.values() for pair in pairs]
    assert [(m.key(), m.value()) for m in kafka.read(out, len(expected))] == expected


def yields_plain():
    yield b"not a Produce"


def raises_midway():
    yield perkey.Produce(b"never sent")
    raise LookupError("midway")


BAD = {
    "plain without output": (lambda: b"x", "give @app.consume(output=TOPIC)"),
    "list of plain": (lambda: [1], "each is a perkey.Produce(...)"),
    "produce without topic": (lambda: perkey.Produce(b"x"), "give topic="),
    "generator of plain": (yields_plain, "each is a perkey.Produce(...)"),
    "a set in Produce": (
        lambda: perkey.Produce({1}, topic="t"),
        "bytes, str or what JSON can hold",
    ),
    "a number as key": (lambda: perkey.Produce(b"x", topic="t", key=1), "bytes, str or None"),
    "odd headers": (lambda: perkey.Produce(b"x", topic="t", headers=[1]), "(name, bytes) pairs"),
    "a set": (lambda: {1}, "return None or perkey.Produce"),
}


def test_anything_else_is_a_final_failure_that_names_the_fix(kafka):
    """A value that cannot be sent is not retried, and its error says what to write instead."""
    source = kafka.topic()
    kafka.fill(source, [name.encode() for name in BAD])
    app = kafka.app()

    @app.consume(source, on_exhausted=perkey.Skip(), value="str")
    def handler(record):
        return BAD[record.value][0]()

    stream = app.results()
    run = kafka.start(app, until="drained")
    results = {result.record.value: result for result in stream}
    assert run.wait(60).skipped == len(BAD)
    for name, (_, fix) in BAD.items():
        result = results[name]
        assert (result.outcome, result.attempts) == ("skipped", 1), name
        assert fix in result.error.message, name


def test_a_generator_that_raises_fails_its_attempt_and_sends_nothing(kafka):
    """What a generator raises is an ordinary failure, retried; nothing of it was produced."""
    source, out = kafka.topic(), kafka.topic()
    kafka.fill(source, [b"x"])
    app = kafka.app()

    @app.consume(source, output=out, retry=perkey.Retry(attempts=2, delay_s=0))
    def handler(record):
        return raises_midway() if record.attempt == 1 else perkey.Produce(b"whole")

    report = kafka.drain(app)
    assert (report.exit_code, report.done, report.failed_attempts) == (0, 1, 1)
    assert [m.value() for m in kafka.read(out, 1)] == [b"whole"]


def test_headers_partition_and_topic_of_an_output(kafka):
    """An output may choose its partition and headers; the others come from the record."""
    source, out = kafka.topic(), kafka.topic(partitions=3)
    kafka.fill(source, [b"x"], key=b"k")
    app = kafka.app()

    @app.consume(source)
    async def handler(record):
        return perkey.Produce(
            b"v", topic=out, partition=2, headers={"a": b"1", "b": None, "c": "text"}
        )

    kafka.drain(app)
    (message,) = kafka.read(out, 1, partition=2)
    assert message.headers() == [("a", b"1"), ("b", None), ("c", b"text")]
    assert message.key() == b"k"


def test_the_lane_continues_when_the_output_is_acknowledged(kafka):
    """The next record of a key starts after the broker has the outputs of the one before."""
    source, out = kafka.topic(), kafka.topic()
    kafka.fill(source, [b"%d" % n for n in range(20)], key=b"k")
    app = kafka.app()
    seen = []

    @app.consume(source, output=out)
    async def handler(record):
        seen.append((int(record.value), kafka.count(out)))
        return record.value

    kafka.drain(app)
    assert seen == [(n, n) for n in range(20)]


@pytest.mark.broker
def test_an_output_to_a_missing_topic_fails_the_attempt(kafka):
    """The broker does not know the topic: the attempt failed, and the error says so."""
    source = kafka.topic()
    kafka.fill(source, [b"x"])
    app = kafka.app(producer={"topic.metadata.propagation.max.ms": 200})

    @app.consume(source, retry=perkey.Retry(attempts=2, delay_s=0), on_exhausted=perkey.Skip())
    async def handler(record):
        return perkey.Produce(b"v", topic="no-such-topic")

    stream = app.results()
    run = kafka.start(app, until="drained")
    (result,) = list(stream)
    assert run.wait(60).failed_attempts == 2
    assert result.outcome == "skipped"
    assert (result.error.type, "no-such-topic" in result.error.message) == ("_UNKNOWN_TOPIC", True)
