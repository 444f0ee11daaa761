"""From a returned value to messages, and from an exception to plain strings."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pydantic
import pytest

import perkey
from perkey.core.events import HandlerSpec
from perkey.decoding import Undecodable, decoding_of
from perkey.runtime.calls import invoke
from perkey.runtime.calls.invoke import error_info
from perkey.types import Record

RECORD = Record("t", 0, 7, 0, b"k", b"v")


class Work:
    """What the functions need of the core's."""

    record = RECORD
    retry = perkey.Retry()
    attempts = 0
    attempts_spent = 0
    partition = SimpleNamespace(handler=SimpleNamespace(spec=HandlerSpec("h")))


def test_an_error_that_the_hold_names_is_reported_as_that():
    """A subclass too; no other error is."""
    work = Work()
    work.partition = SimpleNamespace(
        handler=SimpleNamespace(spec=HandlerSpec("h", hold=perkey.Hold(on=OSError)))
    )
    assert invoke.failed(work, ConnectionError()).away
    assert not invoke.failed(work, ValueError()).away
    assert not invoke.failed(Work(), OSError()).away


def messages(returned, output="out"):
    return [(m.topic, m.key, m.value) for m in invoke.messages_of(Work().record, returned, output)]


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (b"x", [("out", b"k", b"x")]),
        ("ü", [("out", b"k", "ü".encode())]),
        (bytearray(b"x"), [("out", b"k", b"x")]),
        (0, [("out", b"k", b"0")]),
        (False, [("out", b"k", b"false")]),
        ([], []),
        ((), []),
        (perkey.Produce(None, key=None, topic="u"), [("u", None, None)]),
        ([perkey.Produce(b"1"), perkey.Produce(b"2", topic="u")],
         [("out", b"k", b"1"), ("u", b"k", b"2")]),
    ],
)  # fmt: skip
def test_what_is_returned_becomes_messages(returned, expected):
    """Plain values go to the output under the record's key; Produce says otherwise."""
    assert messages(returned) == expected


@pytest.mark.parametrize(
    ("returned", "output", "fix"),
    [
        (b"x", None, "give @app.consume"),
        ([perkey.Produce(b"1"), b"2"], None, "several, with bytes"),
        ([{"a": 1}], "out", r"perkey.Produce\(\[...\]\)"),
        ((n for n in [1]), "out", "yielded int"),
        (perkey.Produce(b"1"), None, "give topic="),
        (object(), "out", "what JSON can hold"),
        (float("nan"), "out", "what JSON can hold"),
        (perkey.Produce(b"x", topic="a b"), None, "cannot be a topic"),
        (perkey.Produce(b"x", topic="x" * 250), None, "cannot be a topic"),
        (perkey.Produce(b"x", topic=b"u"), None, "cannot be a topic"),
        (perkey.Produce(b"x", partition=-1), "out", "a whole number from 0"),
        (perkey.Produce(b"x", partition="1"), "out", "a whole number from 0"),
        (perkey.Produce(b"x", partition=True), "out", "a whole number from 0"),
        (perkey.Produce(b"x", partition=2**31), "out", "a whole number from 0"),
        (perkey.Produce("\ud800"), "out", "UTF-8 cannot encode"),
        (perkey.Produce(b"x", key="\ud800"), "out", "UTF-8 cannot encode"),
        (perkey.Produce(b"x", headers=[(1, b"x")]), "out", "cannot be a header's name"),
        (perkey.Produce(b"x", headers=[("a\0", b"x")]), "out", "cannot be a header's name"),
        (perkey.Produce(b"x", headers=[("\ud800", b"x")]), "out", "UTF-8 cannot encode"),
        (perkey.Produce(b"x", headers=7), "out", "pairs"),
        (perkey.Produce(b"x", headers=[("a", 1)]), "out", "bytes, str or None"),
    ],
)
def test_what_cannot_be_sent_names_the_fix(returned, output, fix):
    """A final failure, whose message says what to return instead."""
    with pytest.raises(invoke.BadReturn, match=fix):
        messages(returned, output)


def test_a_plain_handler_that_returns_a_coroutine_is_reported_so():
    """It was never awaited: the handler should be an `async def`."""

    async def forgotten():
        return 1

    with pytest.raises(invoke.BadReturn, match="async def"):
        messages(forgotten())


@pytest.mark.parametrize(("count", "good"), [(4, True), (5, True), (6, False)])
def test_outputs_of_one_record_have_a_limit(monkeypatch, count, good):
    """A generator without end fails its record instead of filling the memory."""
    monkeypatch.setattr(invoke, "OUTPUTS_MAX", 5)
    made = (perkey.Produce(b"x") for _ in range(count))
    if good:
        assert len(messages(made)) == count
    else:
        with pytest.raises(invoke.BadReturn, match="more than 5 outputs"):
            messages(made)


class Hostile(Exception):
    """Its own text fails."""

    def __str__(self):
        raise RuntimeError("no text")


def test_an_error_becomes_bounded_plain_strings():
    """Whatever its own `__str__` does."""
    info = invoke.error_info(ValueError("x" * 10_000))
    assert (info.type, len(info.message)) == ("ValueError", invoke.MESSAGE_CHARS_MAX)
    assert len(info.traceback) <= invoke.TRACEBACK_CHARS_MAX
    assert invoke.error_info(Hostile()).message == "<its __str__ failed>"
    assert invoke.error_info(ValueError("a\ud800b")).message == "a?b"


def test_a_policy_whose_callable_fails_loses_no_record():
    """The engine falls back to its own delay."""

    def broken(attempt, error):
        raise RuntimeError

    work = Work()
    for delay in (broken, lambda *_: "soon", lambda *_: float("nan")):
        work.retry = perkey.Retry(delay_s=delay)
        assert invoke.failed(work, ValueError()).delay_s is None
    work.retry = perkey.Retry(delay_s=lambda attempt, _: attempt)
    assert invoke.failed(work, ValueError()).delay_s == 1.0


@pytest.mark.parametrize(
    ("attempts", "free", "batch", "delay_s"),
    [(1, 0, None, 5.0), (2, 0, None, None), (7, 6, None, 5.0), (2, 0, perkey.Batch(), 30.0)],
)
def test_no_delay_is_asked_for_after_the_last_attempt(caplog, attempts, free, batch, delay_s):
    """A function with one delay per retry has none for it: an error was logged, for no wait.

    Attempts that an outage made free, and batches that failed as one, are no last attempts.
    """
    delays = {2: 5.0, 3: 30.0, 8: 5.0}
    work = Work()
    work.retry = perkey.Retry(attempts=3, delay_s=lambda attempt, error: delays[attempt])
    work.attempts, work.attempts_spent = attempts, attempts - free
    work.partition = SimpleNamespace(handler=SimpleNamespace(spec=HandlerSpec("h", batch=batch)))
    assert invoke.failed(work, ValueError()).delay_s == delay_s
    assert not caplog.records


class Position(pydantic.BaseModel):
    """A model that refuses a word where a number stands."""

    speed: int


@pytest.mark.parametrize(
    ("decode", "value", "said"),
    [
        (Position.model_validate_json, b'{"speed": "SECRET-SECRET-17"}', "speed: Input should be"),
        (json.loads, b'{"SECRET-SECRET-17', "JSONDecodeError"),
        (lambda value: 1 / int(value), b"SECRET-SECRET-17", "its message quotes the value"),
        (int, b"SECRET", "its message quotes the value"),
        (lambda value: 1 / 0, b"SECRET-SECRET-17", "ZeroDivisionError: division by zero"),
    ],
)
def test_what_decoders_report_is_without_the_value(decode, value, said):
    """Neither message nor traceback of an undecodable record quotes it."""
    try:
        decoding_of("bytes", decode).here(Record("t", 0, 0, 0, None, value))
    except Undecodable as error:
        info = error_info(error)
    assert said in info.message
    assert "SECRET" not in str(info)


def test_a_models_error_in_a_handler_is_without_its_input():
    """Pydantic's own message quotes what it was given; ours names the field."""
    given = "secret-secret-17".upper()
    try:
        Position(speed=given)
    except pydantic.ValidationError as error:
        info = error_info(error)
    assert info.message.startswith("speed: Input should be a valid integer")
    assert "SECRET" not in str(info)
    assert "in test_a_models_error" in info.traceback


def test_what_a_generator_returns_is_not_lost():
    """It yields its outputs; a value that it returns besides went nowhere, in silence."""

    def handler():
        yield perkey.Produce(b"1")
        return 7

    with pytest.raises(invoke.BadReturn, match="yields and returns int"):
        messages(handler())


def test_a_delay_that_cannot_be_had_is_logged_once(caplog):
    """The record waits for a second, as ever; in silence nobody would find out why."""
    retry = perkey.Retry(delay_s=lambda attempt, error: 1 / 0)
    for _ in range(3):
        assert invoke.asked_delay(1, ValueError("x"), retry) is None
    nan = perkey.Retry(delay_s=lambda attempt, error: float("nan"))
    assert invoke.asked_delay(1, ValueError("x"), nan) is None
    told = [line.getMessage() for line in caplog.records]
    assert len(told) == 2
    assert "ZeroDivisionError" in told[0]
    assert "NaN" in told[1]
