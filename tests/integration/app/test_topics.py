"""Which handler gets which topic: names, lists, patterns, several handlers and several apps."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from tests.support.waiting import wait_for

import perkey


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_literal_name_beats_a_pattern(kafka, protocol):
    """The pattern's handler gets every matching topic but the one that is named."""
    stem = kafka.name("p")
    topics = [kafka.topic(name=f"{stem}.{end}") for end in ("a", "b", "c")]
    for topic in topics:
        kafka.fill(topic, [b"x", b"y"])
    app = kafka.app(kafka={"group.protocol": protocol})
    seen = Counter()

    # It need not reach the end of the names, though a KIP-848 broker would have it so.
    @app.consume(f"^{stem}\\.")
    async def any_topic(record):
        seen["pattern", record.topic] += 1

    @app.consume(topics[1])
    def named(record):
        seen["named", record.topic] += 1

    assert kafka.drain(app).done == 6
    assert seen == {
        ("pattern", topics[0]): 2,
        ("named", topics[1]): 2,
        ("pattern", topics[2]): 2,
    }


def test_a_topic_made_later_joins_its_pattern(kafka):
    """Its records are read from the start, without a restart."""
    stem = kafka.name("p")
    first = kafka.topic(name=f"{stem}.1")
    kafka.fill(first, [b"x"])
    app = kafka.app(kafka={"topic.metadata.refresh.interval.ms": 500})
    seen = Counter()

    @app.consume(f"^{stem}\\.")
    async def handler(record):
        seen[record.topic] += 1

    kafka.start(app)
    wait_for(lambda: seen[first] == 1)
    second = kafka.topic(name=f"{stem}.2")
    kafka.fill(second, [b"x", b"y"])
    wait_for(lambda: seen[second] == 2)


def test_two_patterns_on_one_topic_are_refused_before_anything_is_consumed(kafka):
    """The message names the topic, both patterns and the fix."""
    stem = kafka.name("p")
    kafka.topic(name=f"{stem}.ab")
    app = kafka.app()
    app.consume(f"^{stem}\\.a")(lambda _: None)
    app.consume(f"^{stem}\\..*b$")(lambda _: None)
    with pytest.raises(
        perkey.ConfigError, match=f"{stem}.ab.*matches two patterns.*name the topic"
    ):
        app.run()


def test_two_patterns_on_a_topic_made_later_end_the_run_with_exit_code_2(kafka):
    """Nobody may guess which handler it belongs to."""
    stem = kafka.name("p")
    first = kafka.topic(name=f"{stem}.a")
    kafka.fill(first, [b"x"])
    app = kafka.app(kafka={"topic.metadata.refresh.interval.ms": 500})
    seen = []
    app.consume(f"^{stem}\\.a")(seen.append)
    app.consume(f"^{stem}\\..*b$")(seen.append)
    run = kafka.start(app)
    wait_for(lambda: seen)
    kafka.topic(name=f"{stem}.ab")
    report = run.wait(60)
    assert report.exit_code == 2
    assert "matches two patterns" in report.reason
    assert "\n" not in report.reason


def test_several_handlers_of_one_app_are_one_group_with_one_consumer(kafka):
    """Async and plain handlers side by side, each on its own topics."""
    first, second, third = (kafka.topic() for _ in range(3))
    for topic in (first, second, third):
        kafka.fill(topic, [b"%d" % n for n in range(10)])
    app, seen = kafka.app(), Counter()

    @app.consume([first, second], concurrency=3)
    async def waits(record):
        seen["waits", record.topic] += 1

    @app.consume(third, executor="threads", concurrency=2)
    def blocks(record):
        seen["blocks", record.topic] += 1

    assert kafka.drain(app).done == 30
    assert seen == {("waits", first): 10, ("waits", second): 10, ("blocks", third): 10}
    handlers = app.snapshot()["handlers"]
    assert (handlers["waits"]["done"], handlers["blocks"]["done"]) == (20, 10)
    assert [h.name for h in app.handlers] == ["waits", "blocks"]


def test_handlers_of_one_name_are_reported_apart(kafka):
    """Two functions called `handler` keep two rows in the snapshot."""
    first, second = kafka.topic(), kafka.topic()
    kafka.fill(first, [b"x"])
    kafka.fill(second, [b"x", b"y"])
    app = kafka.app()
    for topic in (first, second):

        @app.consume(topic)
        async def handler(record): ...

    assert kafka.drain(app).done == 3
    assert sorted(row["done"] for row in app.snapshot()["handlers"].values()) == [1, 2]


def test_several_apps_run_in_one_process(kafka):
    """Each in its own group, or as two members of one."""
    source, group = kafka.topic(partitions=2), kafka.name("g")
    for number in range(2):
        kafka.fill(source, [b"%d" % n for n in range(50)], partition=number)
    seen = Counter()

    def make(name, group=None):
        app = kafka.app(group=group)

        @app.consume(source)
        async def handler(record):
            seen[name] += 1

        return app

    alone = kafka.start(make("alone"), until="drained")
    pair = [kafka.start(make("pair", group), until="drained") for _ in range(2)]
    assert {run.wait(60).exit_code for run in (alone, *pair)} == {0}
    assert seen == {"alone": 100, "pair": 100}


@pytest.mark.broker
@pytest.mark.parametrize(
    "options",
    [
        {"delivery": "exactly_once"},
        {"delivery": "at_most_once"},
        pytest.param({"commit": perkey.Commit(each=True)}, marks=pytest.mark.long),
        pytest.param({}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_a_deleted_topic_does_not_hold_up_the_others(kafka, options):
    """Its commits are refused for ever, and with them those of the partitions beside it."""
    gone, other, group = kafka.topic(), kafka.topic(), kafka.name("g")
    kafka.fill(gone, [{"value": b"", "key": b"%d" % n} for n in range(50)])
    app, begun, gate = kafka.app(group=group), threading.Event(), threading.Event()

    @app.consume([gone, other], concurrency=5, **options)
    def handler(record):
        if record.topic == gone:
            begun.set()
            gate.wait(100)

    run = kafka.start(app)
    wait_for(begun.is_set)
    kafka.delete(gone)
    gate.set()
    kafka.fill(other, [{"value": b"", "key": b"%d" % n} for n in range(50)])
    wait_for(lambda: (kafka.committed(group, other) or 0) >= 50)
    run.stop()
    assert run.wait(60).exit_code == 0


@pytest.mark.broker
def test_partitions_that_a_recreated_topic_no_longer_has_are_given_up(kafka):
    """The group kept them until librdkafka's next look at the metadata: start unknown for minutes."""
    source, seen = kafka.topic(partitions=3), []
    kafka.fill(source, [b"old"], partition=0)
    group = kafka.name("g")
    app = kafka.app(group=group)

    @app.consume(source)
    def handler(record):
        seen.append(record.value)

    kafka.start(app)
    # A topic's id is looked up within half a second of its assignment: before that,
    # a recreated one looks like the former.
    wait_for(lambda: kafka.committed(group, source) == 1)
    assert seen == [b"old"]
    kafka.delete(source)
    kafka.topic(name=source)
    kafka.fill(source, [b"new"], partition=0)
    wait_for(lambda: seen == [b"old", b"new"])

    def whole() -> bool:
        shot = app.snapshot()
        unknown = [one for one in shot["halts"] if one["cause"] == "start_unknown"]
        return len(shot["partitions"]) == 1 and not unknown

    wait_for(whole)
