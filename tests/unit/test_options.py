"""`@app.consume`: every wrong option is one line that names the handler, the option and the cure."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import pickle

import pytest

import perkey
from perkey.errors import RemoteError


def app():
    """An app that never runs."""
    return perkey.App(group="g", kafka={"bootstrap.servers": "localhost:1"})


def plain(record): ...


async def waits(record): ...


async def async_generator(record):
    yield


class Callable:
    """A handler with state."""

    def __init__(self, name):
        self.name = name

    def __call__(self, record): ...


class AsyncCallable:
    """The same, for the loop."""

    async def __call__(self, record): ...


WRONG = {
    "ordering": ({"ordering": "keys"}, "ordering='keys'", '"key", "partition", "unordered"'),
    "executor": ({"executor": "thread"}, "executor='thread'", '"auto", "async", "threads"'),
    "delivery": ({"delivery": "once"}, "delivery='once'", '"at_least_once"'),
    "concurrency 0": ({"concurrency": 0}, "concurrency=0", "from 1 to 1000 for threads"),
    "concurrency 1001": ({"concurrency": 1001}, "concurrency=1001", "from 1 to 1000"),
    "concurrency True": ({"concurrency": True}, "concurrency=True", "whole number"),
    "concurrency 1.5": ({"concurrency": 1.5}, "concurrency=1.5", "whole number"),
    "timeout 0": ({"timeout_s": 0}, "timeout_s=0", "above 0, or None"),
    "timeout nan": ({"timeout_s": math.nan}, "timeout_s=nan", "above 0, or None"),
    "timeout text": ({"timeout_s": "1"}, "timeout_s='1'", "above 0, or None"),
    "timeout too large": ({"timeout_s": 10**400}, "timeout_s=1000", "above 0, or None"),
    "rate 0": ({"rate_limit_per_s": 0}, "rate_limit_per_s=0", "above 0, or None"),
    "rate inf": ({"rate_limit_per_s": math.inf}, "rate_limit_per_s=inf", "above 0, or None"),
    "retry": ({"retry": 3}, "retry=3", "perkey.Retry(...)"),
    "commit": ({"commit": 1.0}, "commit=1.0", "perkey.Commit(...)"),
    "transform": (
        {"on_exhausted": perkey.DeadLetter("d", transform=lambda: None)}, "DeadLetter(transform=...)",
        "def redact(record)",
    ),
    "async transform": (
        {"on_exhausted": perkey.DeadLetter("d", transform=waits)}, "DeadLetter(transform=...)",
        "plain `def`",
    ),
    "policy": ({"on_exhausted": "park"}, "on_exhausted='park'", "perkey.Park()"),
    "policy class": ({"on_exhausted": perkey.Park}, "on_exhausted=", "perkey.Park()"),
    "value": ({"value": "xml"}, "value='xml'", '"bytes", "str", "json"'),
    "value takes two": ({"value": lambda a, b: a}, "value= is called with 1 argument:", "(data)"),
    "prefetch takes none": ({"prefetch": lambda: None}, "prefetch= is called with", "load(records)"),
    "delay waits": (
        {"retry": perkey.Retry(delay_s=waits)}, "Retry(delay_s=...) is an async", "a plain `def`",
    ),
    "delay takes none": (
        {"retry": perkey.Retry(delay_s=lambda: 1)}, "Retry(delay_s=...)", "delay_s(attempt, error)",
    ),
    "value 7": ({"value": 7}, "value=7", "a callable that takes bytes"),
    "output": ({"output": 7}, "output=7", "name of a topic"),
    "output with a blank": ({"output": "a b"}, "output='a b'", "cannot be a topic"),
    "output with a name": ({"output": "{topic}.out"}, "output='{topic}.out'", "cannot be a topic"),
    "output of dots": ({"output": ".."}, "output='..'", "cannot be a topic"),
    "output is the source": ({"output": "t"}, "output='t'", "endless loop"),
    "letters to the source": (
        {"on_exhausted": perkey.DeadLetter("t")}, "dead-letter topic 't' is the topic it reads", ".dlq",
    ),
    "letters to the source by name": (
        {"on_exhausted": perkey.DeadLetter("{topic}")}, "'t' is the topic it reads", "{topic}.dlq",
    ),
    "parked letters to the source": (
        {"on_exhausted": perkey.Park(dead_letter="{topic}")}, "'t' is the topic it reads",
        'Park(dead_letter="{topic}.dlq")',
    ),
    "async of def": ({"executor": "async"}, 'executor="async"', "`async def`"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_option_is_named_with_its_cure(name):
    """At decoration, in one line."""
    options, *words = WRONG[name]
    with pytest.raises(perkey.ConfigError) as caught:
        app().consume("t", **options)(plain)
    message = str(caught.value)
    assert message.startswith("@app.consume on plain: ")
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (7, "is not callable: decorate a function"),
        (lambda: None, r"must take 1 argument: write def <lambda>\(record\), not <lambda>\(\)$"),
        (lambda _, more: more, r"must take 1 argument: .* not <lambda>\(_, more\)$"),
        (async_generator, "async generator cannot be a handler"),
    ],
    ids=["a number", "no argument", "two arguments", "async generator"],
)
def test_something_that_cannot_handle_a_record_is_refused(function, said):
    """With what to write instead."""
    with pytest.raises(perkey.ConfigError, match=said):
        app().consume("t")(function)


def test_async_handlers_may_not_run_on_threads():
    """The message names the executor that fits."""
    with pytest.raises(perkey.ConfigError, match=r'plain `def` handler.*executor="auto"'):
        app().consume("t", executor="threads")(waits)


@pytest.mark.parametrize(
    ("topics", "said"),
    [
        ((), "give a topic"),
        ("", "is not a name"),
        (7, "7 is not a topic"),
        (["a", 7], "topic 7 is not a name"),
        ("a b", "'a b' cannot be a topic"),
        ("x" * 250, "at most 249"),
        ("^(", r"pattern '\^\(' is not valid"),
        ("^a\\d", r"write \[0-9\] for \\d"),
        ("^(?:a)", r"plain groups instead of \(\?\.\.\.\)"),
        (plain, "write @app.consume"),
    ],
)
def test_topics_that_cannot_be_are_refused(topics, said):
    """Names, lists of names and patterns are all there is."""
    with pytest.raises(perkey.ConfigError, match=said):
        app().consume(topics)(plain)


@pytest.mark.parametrize(
    ("function", "kind", "most"),
    [
        (plain, "threads", 1_000),
        (waits, "async", 10_000),
        (functools.partial(waits), "async", 10_000),
        (Callable("x"), "threads", 1_000),
        (AsyncCallable(), "async", 10_000),
        (lambda _, more=None: more, "threads", 1_000),
        (print, "threads", 1_000),
    ],
    ids=["def", "async def", "partial", "object", "async object", "defaults", "builtin"],
)
def test_what_can_handle_a_record_gets_the_executor_that_fits(function, kind, most):
    """Up to its limit of calls at once, and not one more."""
    one = app()
    one.consume("t", concurrency=most)(function)
    assert one.handlers[0].kind == kind
    with pytest.raises(perkey.ConfigError, match=f"from 1 to {most} for {kind}"):
        app().consume("t", concurrency=most + 1)(function)


@pytest.mark.parametrize("at_map", [1e-9, 0.999, 1])
@pytest.mark.parametrize("after_s", [1e-9, 31_535_999, 31_536_000, None])
def test_a_park_may_have_a_dead_letter_topic(at_map, after_s):
    """Up to its limits."""
    park = perkey.Park(dead_letter="{topic}.dlq", at_map=at_map, after_s=after_s)
    assert park.topic_for("orders") == "orders.dlq"
    assert perkey.Park().topic_for("orders") == ""


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: perkey.Retry(attempts=0), "attempts=0.*1 or more, or None for no limit"),
        (lambda: perkey.Retry(attempts=True), "attempts=True"),
        (lambda: perkey.Retry(delay_s=-1), "delay_s=-1.*seconds >= 0"),
        (lambda: perkey.Retry(delay_s="1"), "delay_s='1'"),
        (lambda: perkey.Retry(delay_max_s=math.inf), "delay_max_s=inf"),
        (lambda: perkey.Retry(delay_max_s=10**400), "delay_max_s=1000"),
        (lambda: perkey.Retry(multiplier=0.5), "multiplier=0.5.*1 to 1000"),
        (lambda: perkey.Retry(jitter=1.1), "jitter=1.1.*0 to 1"),
        (lambda: perkey.Retry(remember=1), "remember=1.*True or False"),
        (lambda: perkey.Park(release_after_s=-1), "release_after_s=-1.*0 to 31536000 seconds"),
        (lambda: perkey.Park(release_after_s=31_536_001), "31536001.*0 to 31536000"),
        (lambda: perkey.Park(at_map=0.6), "at_map=0.6.*add dead_letter="),
        (lambda: perkey.Park(after_s=60), "after_s=60.*add dead_letter="),
        (lambda: perkey.Park(dead_letter=""), "dead_letter=''.*name of a topic"),
        (lambda: perkey.Park(dead_letter="a b"), "dead_letter='a b'. cannot be a topic"),
        (lambda: perkey.Park(dead_letter="d", at_map=0), "at_map=0.: .*above 0, at most 1"),
        (lambda: perkey.Park(dead_letter="d", at_map=1.001), "at_map=1.001"),
        (lambda: perkey.Park(dead_letter="d", at_map=None), "at_map=None"),
        (lambda: perkey.Park(dead_letter="d", at_map=True), "at_map=True"),
        (lambda: perkey.Park(dead_letter="d", after_s=0), "after_s=0.: .*at most 31536000"),
        (lambda: perkey.Park(dead_letter="d", after_s=31_536_001), "after_s=31536001"),
        (lambda: perkey.Park(5.0, "d", after_s=60), "release_after_s=, after_s=.*one of them"),
        (lambda: perkey.Park(export="d"), r"Park\(export='d'\): use Park\(dead_letter='d'\)"),
        (lambda: perkey.Retry(final=("ValueError",)), "final=.*tuple of exception types"),
        (lambda: perkey.Commit(interval_s=0), "interval_s=0.*> 0"),
        (lambda: perkey.Commit(max_records=0), "max_records=0.*1 or more, or None"),
        (lambda: perkey.Commit(each="yes"), "each='yes'.*True or False"),
        (lambda: perkey.DeadLetter(""), "give the name of a topic"),
        (lambda: perkey.DeadLetter("a b"), "cannot be a topic: letters"),
        (lambda: perkey.DeadLetter("{group}.dlq"), "{topic} is the only placeholder"),
        (lambda: perkey.DeadLetter("x" * 250), "at most 249"),
        (lambda: perkey.DeadLetter("t", on_missing="make"), '"error" or "create"'),
        (lambda: perkey.DeadLetter("t", transform="fix"), "give a function"),
        (lambda: perkey.DeadLetter("t", transform=str, copy_value=False), "without copy_value"),
        (lambda: perkey.DeadLetter("t", copy_value=None), "True or False"),
        (lambda: perkey.DeadLetter("t", partitions=3), 'with on_missing="create"'),
        (lambda: perkey.DeadLetter("t", "create", partitions=0), "1 or more"),
        (lambda: perkey.RetryAfter(-1), "delay_s=-1"),
        (lambda: perkey.RetryAfter(math.nan), "delay_s=nan"),
        (lambda: perkey.RetryAfter("3"), "delay_s='3'.*number of seconds"),
        (lambda: perkey.RetryAfter(None), "delay_s=None"),
        (lambda: perkey.SqlLedger("sqlite"), "sqlite:///FILE"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_where_it_is_made(make, said):
    """It names the policy and the option."""
    with pytest.raises(perkey.ConfigError, match=said):
        make()


@pytest.mark.parametrize(
    "error",
    [
        perkey.RetryAfter(5),
        perkey.RetryAfter(delay_s=0.5),
        perkey.Reject("no such car"),
        RemoteError("KeyError", "17", "Traceback"),
        perkey.OutOfOrder("a before b"),
    ],
)
@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_survives_the_way_between_processes(error, again):
    """A handler that uses a pool of processes raises what a call in the pool has raised."""
    error.add_note("from the pool")
    found = again(error)
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize(("attempts", "jitter"), [(1, 0), (None, 1)])
def test_policies_take_their_limits(attempts, jitter):
    """The least and the most that is allowed."""
    retry = perkey.Retry(
        attempts=attempts, delay_s=0, multiplier=1, jitter=jitter, final=ValueError
    )
    assert retry.final == (ValueError,)


def test_worker_processes_are_as_many_as_cores_unless_said(monkeypatch):
    """`executor="processes"` alone was refused for the default of the other executors."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(6)), raising=False)
    made = app()
    made.consume("t", executor="processes")(plain)
    made.consume("u")(plain)
    assert [handler.concurrency for handler in made.handlers] == [6, 100]
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(200)), raising=False)
    made.consume("v", executor="processes")(plain)
    assert made.handlers[2].concurrency == 64
    with pytest.raises(perkey.ConfigError, match="concurrency=100"):
        made.consume("w", executor="processes", concurrency=100)(plain)


def test_an_object_that_is_an_async_generator_is_refused():
    """Its `__call__` is what would be called."""

    class Yields:
        async def __call__(self, record):
            yield

    with pytest.raises(perkey.ConfigError, match="async generator"):
        app().consume("t")(Yields())


@pytest.mark.parametrize(
    ("id_of", "said"), [(waits, "is an async function"), (lambda: "x", r"def id\(record\)")]
)
def test_a_ledgers_id_that_cannot_be_called_with_the_record_is_refused(id_of, said):
    """Else every record would fail."""
    ledger = perkey.SqlLedger("sqlite://", id=id_of)
    with pytest.raises(perkey.ConfigError, match=rf"SqlLedger\(id=...\).*{said}"):
        app().consume("t", ledger=ledger)(lambda record, tx: None)


def test_a_ledger_handler_without_the_transaction_is_refused():
    """The line shows how it is written."""
    with pytest.raises(
        perkey.ConfigError, match=r"must take 2 arguments: write def .*\(record, tx\)"
    ):
        app().consume("t", ledger=perkey.SqlLedger("sqlite:///l.db"))(lambda record: None)


@pytest.mark.parametrize(
    ("commit", "by_default"),
    [
        (perkey.Commit(), True),
        (perkey.Commit(each=True), True),
        (perkey.Commit(interval_s=1.0), False),
        (perkey.Commit(max_records=1_000), False),
        (perkey.Commit(1.0, None), False),
    ],
)
def test_a_commit_that_is_given_is_not_the_default(commit, by_default):
    """Also as a copy, through a pickle and with another field changed; the numbers are the same."""
    changed = dataclasses.replace(commit, each=False)
    for same in (commit, copy.deepcopy(commit), pickle.loads(pickle.dumps(commit)), changed):
        assert same.by_default is by_default
        assert same.interval_s == 1.0
    assert repr(perkey.Commit()) == "Commit(interval_s=1.0, max_records=None, each=False)"
