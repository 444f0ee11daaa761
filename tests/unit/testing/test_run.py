"""`perkey.testing.run`: what it takes, what it returns, and what it refuses."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from pydantic import BaseModel

import perkey
from perkey.testing import MemoryKafka, VirtualClock, run


def make_app(topic: Any = "orders", **options: Any) -> tuple[perkey.App, list[perkey.Record]]:
    """An app with one handler that only remembers; its cluster does not exist."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere:9092"})
    seen: list[perkey.Record] = []

    @app.consume(topic, **options)
    async def handle(record: perkey.Record) -> None:
        seen.append(record)

    return app, seen


class Order(BaseModel):
    number: int


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        (b"raw", None, b"raw"),
        ("größe", None, "größe".encode()),
        (None, None, None),
        ({"a": [1, None]}, None, b'{"a": [1, null]}'),
        ([1, 2], None, b"[1, 2]"),
        (7, None, b"7"),
        (Order(number=3), None, b'{"number":3}'),
        (("k", {"a": 1}), b"k", b'{"a": 1}'),
        ((b"k", None), b"k", None),
        ((None, "v"), None, b"v"),
    ],
)
def test_records_come_in_many_shapes(given: Any, key: bytes | None, value: bytes | None) -> None:
    """Values, pairs, models and what JSON can hold become the bytes a producer would send."""
    app, seen = make_app()
    (result,) = run(app, [given])
    assert (seen[0].key, seen[0].value, seen[0].topic) == (key, value, "orders")
    assert result.outcome == "done"


def test_a_record_goes_where_it_says() -> None:
    """Topic, partition, offset, headers and time are kept, and offsets left out are gaps."""
    app, seen = make_app(["a", "b"])
    given = [
        perkey.Record("a", 2, 5, 1_000, b"k", b"1", (("h", b"x"),)),
        perkey.Record("a", 2, 9, 2_000, b"k", b"2"),
        perkey.Record("b", 0, 0, 3_000, None, b"3"),
    ]
    results = run(app, given)
    assert sorted(seen) == sorted(given)
    assert len(results) == 3


def test_keys_are_spread_as_a_producer_spreads_them() -> None:
    """The same key always goes to the same partition, and several partitions are used."""
    app, seen = make_app()
    run(app, [(f"key {n % 20}", n) for n in range(100)], partitions=4)
    by_key: dict[Any, set[int]] = {}
    for record in seen:
        by_key.setdefault(record.key, set()).add(record.partition)
    assert {len(partitions) for partitions in by_key.values()} == {1}
    assert len({record.partition for record in seen}) == 4


def test_results_come_in_the_order_of_completion() -> None:
    """A fast record is reported before a slow one that came first."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere:9092"})
    ended = {b"b": asyncio.Event(), b"c": asyncio.Event()}

    @app.consume("orders")
    async def handle(record: perkey.Record) -> None:
        if record.value:
            await ended[record.value].wait()
        if record.key in ended:
            ended[record.key].set()

    results = run(app, [("a", b"c"), ("b", b""), ("c", b"b")])
    assert [result.record.key for result in results] == [b"b", b"c", b"a"]


def test_plain_functions_and_outputs_work_too() -> None:
    """A `def` handler with outputs; topics that it names are made, others when written to."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere:9092"})

    @app.consume("orders", output="out", value="json")
    def handle(record: perkey.Record) -> Any:
        return [perkey.Produce(record.value), perkey.Produce("else", topic="other")]

    (result,) = run(app, [("k", {"a": 1})])
    assert [(sent.topic, sent.key) for sent in result.outputs] == [("out", b"k"), ("other", b"k")]
    assert result.returned is not None


def test_dead_letters_parked_and_skipped_are_outcomes() -> None:
    """Every way in which a record ends is a result."""
    policies = [perkey.Park(), perkey.Skip(), perkey.DeadLetter("{topic}.dlq"), perkey.Stop()]
    outcomes = []
    for policy in policies:
        app = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere:9092"})

        @app.consume("orders", retry=perkey.Retry(attempts=1), on_exhausted=policy)
        def handle(record: perkey.Record) -> None:
            raise ValueError(record.value)

        outcomes += [result.outcome for result in run(app, [b"1"])]
    assert outcomes == ["parked", "skipped", "dead_lettered", "failed"]


def test_the_dead_letter_topic_of_a_park_is_made() -> None:
    """As that of `DeadLetter`."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere:9092"})
    park = perkey.Park(dead_letter="{topic}.dlq", after_s=60.0)

    @app.consume("orders", retry=perkey.Retry(attempts=1), on_exhausted=park)
    def handle(record: perkey.Record) -> None:
        raise ValueError(record.value)

    with MemoryKafka() as kafka:
        assert [result.outcome for result in run(app, [b"1"], broker=kafka)] == ["parked"]
        assert kafka.records("orders.dlq") == []


def test_the_app_is_as_before() -> None:
    """Its options are its own again, and it can run a second time."""
    app, seen = make_app()
    before = app.options
    run(app, [b"1"])
    run(app, [b"2"])
    assert app.options is before
    assert [record.value for record in seen] == [b"1", b"2"]


def test_a_result_has_the_value_that_the_handler_saw() -> None:
    """Decoded as the handler of its topic asks; bytes where that fails; a tombstone is None."""
    app, _seen = make_app("orders", value="json", retry=perkey.Retry(1), on_exhausted=perkey.Skip())
    app.consume("lines", value="str")(lambda _: None)
    app.consume("raw")(lambda _: None)
    values = [
        ("orders", b"[1]"),
        ("orders", b"["),
        ("orders", None),
        ("lines", b"a"),
        ("raw", b"r"),
    ]
    results = run(
        app, [perkey.Record(topic, 0, n, 0, None, v) for n, (topic, v) in enumerate(values)]
    )
    found = sorted(((r.record.topic, r.record.offset, r.record.value) for r in results), key=str)
    assert found == [
        ("lines", 3, "a"),
        ("orders", 0, [1]),
        ("orders", 1, b"["),
        ("orders", 2, None),
        ("raw", 4, b"r"),
    ]


def test_on_result_and_the_lifespan_are_served() -> None:
    """The app's own callback and state work as in production."""
    told: list[perkey.Result] = []

    class Lifespan:
        async def __aenter__(self) -> str:
            return "open"

        async def __aexit__(self, *_: object) -> None:
            told.append("closed")

    app = perkey.App(
        group="g",
        kafka={"bootstrap.servers": "nowhere:9092"},
        lifespan=Lifespan,
        on_result=told.append,
    )
    states = []

    @app.consume("orders")
    async def handle(record: perkey.Record) -> None:
        states.append(app.state)

    results = run(app, [b"1"])
    assert states == ["open"]
    assert told == ["closed", *results]


def test_a_broker_of_ones_own_continues_where_it_was() -> None:
    """With `broker=` the group's progress stays: a second run handles the new records only."""
    app, seen = make_app()
    with MemoryKafka() as broker:
        run(app, [b"1", b"2"], broker=broker)
        run(app, [b"3"], broker=broker)
        assert broker.committed("g", "orders").frontier == 3
    assert [record.value for record in seen] == [b"1", b"2", b"3"]


def test_patterns_take_records_that_name_their_topic() -> None:
    """A pattern has no topic of its own, so the Record's is made."""
    app, seen = make_app("^gps\\..*")
    run(
        app,
        [perkey.Record("gps.a", 0, 0, 0, None, b"1"), perkey.Record("gps.b", 0, 0, 0, None, b"2")],
    )
    assert {record.topic for record in seen} == {"gps.a", "gps.b"}


@pytest.mark.parametrize(
    ("topics", "records", "match"),
    [
        (["a", "b"], [b"1"], "give perkey.Record"),
        ("^a.*", [b"1"], "patterns only"),
        ("a", [("k", "v", "x")], "tuple of 3"),
        ("a", [(7, "v")], "key 7"),
        ("a", [object()], "type object"),
        ("a", [perkey.Record("a", 0, 0, 0, None, b"")] * 2, "offset 0 is taken"),
    ],
)
def test_bad_records_are_refused_in_one_line(topics: Any, records: list[Any], match: str) -> None:
    """The line names the thing and the cure."""
    app, _ = make_app(topics)
    with pytest.raises(perkey.ConfigError, match=match) as error:
        run(app, records)
    assert "\n" not in str(error.value)


def test_clock_and_broker_do_not_go_together() -> None:
    """The broker has a clock of its own."""
    with MemoryKafka() as broker, pytest.raises(perkey.ConfigError, match="MemoryKafka"):
        run(make_app()[0], [], clock=VirtualClock(), broker=broker)


def test_a_run_that_never_ends_is_a_timeout() -> None:
    """With what it was at in the message, and it is stopped."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere:9092"}, drain_timeout_s=0.1)
    release = threading.Event()

    @app.consume("orders")
    def hang(record: perkey.Record) -> None:
        release.wait(20)

    with pytest.raises(TimeoutError, match="in_flight"):
        run(app, [b"1"], timeout_s=0.3)
    release.set()


def test_a_run_that_breaks_is_an_error() -> None:
    """All slots overdue for ten time-outs: a FatalError, not a short list of results."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere:9092"}, drain_timeout_s=0.1)
    release = threading.Event()

    @app.consume("orders", concurrency=1, timeout_s=0.01)
    def hang(record: perkey.Record) -> None:
        release.wait(20)

    with pytest.raises(perkey.FatalError, match="overdue"):
        run(app, [b"1"])
    release.set()


def test_it_takes_no_time_worth_naming() -> None:
    """A run costs milliseconds, so that a suite may have thousands."""
    took_s = []
    for _ in range(5):
        began = time.monotonic()
        run(make_app()[0], [b"1"])
        took_s.append(time.monotonic() - began)
    assert min(took_s) < 1  # a busy machine takes its time off no more than some of them


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_what_was_put_out_can_be_looked_at(delivery):
    """Where it went, under which key, and what is in it."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere:9092"})

    @app.consume("t", output="out", delivery=delivery)
    def handle(record):
        return perkey.Produce({"n": 1}, headers=[("kind", "bill")])

    (result,) = run(app, [("ada", b"1")])
    (sent,) = result.outputs
    assert sent == perkey.Sent("out", 0, sent.offset, b"ada")
    assert (sent.value, sent.headers, sent.key) == (b'{"n":1}', (("kind", b"bill"),), b"ada")


@pytest.mark.parametrize("records", [5, "text", b"bytes"])
def test_records_that_are_no_list_are_refused_in_one_line(records):
    """Not deep inside, with a TypeError; the characters of a text are no records."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "localhost:9092"})

    @app.consume("t")
    def handler(record):
        """Not called."""

    with pytest.raises(perkey.ConfigError, match=r"run\(app, .*\): give the records as a list"):
        run(app, records)
