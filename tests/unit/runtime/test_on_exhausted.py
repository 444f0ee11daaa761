"""A function as `on_exhausted`: asked once for each exhausted record, never lost by what it does."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

import perkey
from perkey.errors import RemoteError
from perkey.testing import MemoryKafka, run

TWICE = perkey.Retry(attempts=2, delay_s=0)


class NoSuchCustomer(Exception):
    """What the handlers raise."""


def raising(record: perkey.Record) -> None:
    """A handler that another process can import."""
    raise NoSuchCustomer("17")


async def raising_later(record: perkey.Record) -> None:
    """The same on a loop."""
    raise NoSuchCustomer("17")


def raising_together(batch: perkey.RecordBatch) -> None:
    """The same for a batch."""
    raise NoSuchCustomer("17")


def app_with(decide: Any, handler: Any = raising, **options: Any) -> perkey.App:
    """An app whose handler raises, and this decides."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "x"})
    app.consume("orders", **{"retry": TWICE, "on_exhausted": decide, **options})(handler)
    return app


def outcomes(app: perkey.App, *keys: bytes, **options: Any) -> dict[bytes | None, str]:
    """What became of one record of each key."""
    results = run(app, [(key, b"v") for key in keys or (b"k",)], **options)
    return {one.record.key: one.outcome for one in results}


@pytest.mark.parametrize(
    ("handler", "options"),
    [
        (raising, {}),
        (raising_later, {}),
        (raising, {"executor": "processes", "concurrency": 1}),
        (raising_together, {"batch": perkey.Batch(10, 0.01)}),
        (raising, {"delivery": "exactly_once"}),
    ],
    ids=["threads", "async", "processes", "batch", "exactly once"],
)
def test_it_decides_each_record_once(handler, options):
    """By record and error, when the attempts are used up and not before; each way a call is made."""
    asked = []

    def decide(record, error):
        asked.append((record, error, threading.current_thread().name))
        if record.key == b"skip":
            return perkey.Skip()
        return perkey.DeadLetter("dead") if record.key == b"dead" else perkey.Park()

    kafka = MemoryKafka(auto_create=True)
    with kafka:
        found = outcomes(app_with(decide, handler, **options), b"skip", b"dead", b"p", broker=kafka)
        letters = kafka.records("dead")
    assert found == {b"skip": "skipped", b"dead": "dead_lettered", b"p": "parked"}
    assert sorted(record.key for record, _, _ in asked) == [b"dead", b"p", b"skip"]
    assert [(one.key, one.value) for one in letters] == [(b"dead", b"v")]
    for record, error, thread in asked:
        assert (record.topic, record.value, thread) == ("orders", b"v", "perkey-callbacks")
        kind = RemoteError if options.get("executor") == "processes" else NoSuchCustomer
        assert isinstance(error, kind)
        assert "17" in str(error)


BROKEN = {
    "raises": (lambda record, error: 1 / 0, "on_exhausted raised ZeroDivisionError"),
    "exits": (lambda record, error: sys.exit(3), "on_exhausted raised SystemExit"),
    "a word": (lambda record, error: "park", "returned 'park': return perkey.Park()"),
    "a class": (lambda record, error: perkey.Skip, "perkey.policies.Skip'>: return perkey.Park()"),
    "nothing": (lambda record, error: None, "returned None: return perkey.Park()"),
    "a coroutine": (lambda record, error: raising_later(record), "a coroutine: make it a plain"),
    "its own topic": (lambda record, error: perkey.DeadLetter("orders"), "the topic it reads"),
    "a park for its own topic": (
        lambda record, error: perkey.Park(dead_letter="orders"),
        "the topic it reads",
    ),
    "a missing topic": (lambda record, error: perkey.DeadLetter("none"), "UNKNOWN_TOPIC"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_outcome_parks_the_record(name, caplog):
    """The reason is the record's error: in the log, the result, `perkey why` and the counts."""
    decide, reason = BROKEN[name]
    app = app_with(decide)
    kafka = MemoryKafka(auto_create=False)
    kafka.create_topic("orders")
    with kafka:
        kafka.produce("orders", b"v", b"k")
        (result,) = run(app, [], broker=kafka)
    assert result.outcome == "parked"
    assert reason in result.error.line
    assert name == "a missing topic" or "NoSuchCustomer: 17" in result.error.line
    lines = [one for one in caplog.records if one.getMessage().startswith("record parked")]
    assert len(lines) == 1
    assert reason in lines[0].perkey["error"]


def test_retry_goes_on_from_the_first_attempt_by_that_policy():
    """Its attempts, its delay and its final types, for this record alone; then it is asked again."""
    attempts, asked = [], []

    def handler(record):
        attempts.append((record.key, record.attempt))
        if len(attempts) > 5:
            raise KeyError("final for the policy that was returned")
        raise NoSuchCustomer("17")

    def decide(record, error):
        asked.append(type(error).__name__)
        if len(asked) > 1:
            return perkey.Skip()
        return perkey.Retry(attempts=7, delay_s=lambda attempt, error: 0.0, final=(KeyError,))

    assert outcomes(app_with(decide, handler)) == {b"k": "skipped"}
    assert [n for _, n in attempts] == [1, 2, 1, 2, 3, 4]
    assert asked == ["NoSuchCustomer", "KeyError"]


@pytest.mark.parametrize("times", [2, 3, 4])
def test_retry_is_returned_three_times_at_most(times):
    """The fourth time the record is parked, and the reason names it."""
    asked = []

    def decide(record, error):
        asked.append(record)
        return perkey.Retry(attempts=1, delay_s=0) if len(asked) <= times else perkey.Skip()

    (result,) = run(app_with(decide), [(b"k", b"v")])
    if times <= 3:
        assert (result.outcome, len(asked)) == ("skipped", times + 1)
    else:
        assert (result.outcome, len(asked)) == ("parked", 4)
        assert "returned Retry more than 3 times" in result.error.message


def test_retry_counts_in_worker_processes_too():
    """The policy travels with the record: the worker asks it for what is final."""
    asked = []

    def decide(record, error):
        asked.append(error.type)
        return perkey.Skip() if len(asked) > 1 else perkey.Retry(9, 0.0, final=(NoSuchCustomer,))

    app = app_with(decide, executor="processes", concurrency=1)
    (result,) = run(app, [(b"k", b"v")])
    assert (result.outcome, len(asked)) == ("skipped", 2)
    assert result.attempts == 1


def test_stop_ends_the_run_and_is_no_broken_one():
    """As with the policy itself: the record stays not done."""
    (result,) = run(app_with(lambda record, error: perkey.Stop()), [(b"k", b"v")])
    assert result.outcome == "failed"


def test_order_is_kept_while_it_decides():
    """A later record of the key does not start before the function has returned."""
    order, let_go = [], threading.Event()

    def handler(record):
        order.append(record.value)
        if record.value == b"bad":
            raise NoSuchCustomer("17")
        if record.key == b"other":
            let_go.set()

    def decide(record, error):
        assert let_go.wait(60)
        order.append("decided")
        return perkey.Skip()

    run(app_with(decide, handler), [(b"k", b"bad"), (b"k", b"next"), (b"other", b"o")])
    assert [one for one in order if one != b"o"] == [b"bad", b"bad", "decided", b"next"]


def takes_one(record):
    """A function that cannot be called with two."""


async def decides_later(record, error):
    """A function that would have to be awaited."""


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"on_exhausted": "park"}, "on_exhausted='park': give perkey.Park()"),
        ({"on_exhausted": perkey.Park}, "give perkey.Park()"),
        ({"on_exhausted": takes_one}, r"called with 2 arguments: def decide\(record, error\)"),
        ({"on_exhausted": decides_later}, "an async function: make it a plain `def`"),
        (
            {
                "on_exhausted": lambda r, e: perkey.Skip(),
                "delivery": "at_most_once",
                "retry": perkey.Retry(1),
            },
            "neither parks nor retries: give perkey.Skip",
        ),
    ],
    ids=["a word", "a class", "one argument", "async", "at most once"],
)
def test_what_cannot_decide_is_refused_when_the_app_is_made(options, line):
    """One line, with the cure."""
    with pytest.raises(perkey.ConfigError, match=line) as caught:
        app_with(options.pop("on_exhausted"), **options)
    assert "\n" not in str(caught.value)
