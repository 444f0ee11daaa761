"""The options of `process`: where they come from, and what is refused before a job starts."""

from __future__ import annotations

import threading

import pytest

import perkey
from perkey.errors import ConfigError
from perkey.options import HandlerOptions
from perkey.spark.processing.payload import packed
from perkey.spark.processing.settings import (
    SLOTS_MAX,
    UNSET,
    TaskSettings,
    check_arguments,
    handler_options,
    lifespan_of,
)


def plain(record):
    return None


def check(**given):
    """The other arguments, all left out but these."""
    known = dict.fromkeys(("slots", "carry", "progress", "deadline_s", "metrics"))
    check_arguments("process(plain)", streaming=False, **{**known, **given})


def declared(function=None, **options):
    """A handler of an app."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere"})

    def handler(record):
        return None

    return app.consume("t", **options)(function or handler)


def test_what_concerns_a_consumer_group_is_left_out():
    """A task commits nothing, so a record is done when its call returns."""
    handler = declared(hold=perkey.Hold(on=OSError), commit=perkey.Commit(each=True))
    options = handler_options(handler, {})
    assert (options.hold, options.brake, options.commit) == (None, None, perkey.Commit())


def test_a_plain_function_has_the_decorators_defaults():
    """Left out and not decorated: what @app.consume would do, with failures as rows."""
    options, usual = handler_options(plain, {"retry": UNSET}), HandlerOptions(plain, ("t",))
    assert options.on_exhausted == perkey.Skip()
    for name in ("ordering", "concurrency", "retry", "timeout_s", "value"):
        assert getattr(options, name) == getattr(usual, name)


def test_explicit_arguments_win_over_the_decorators():
    """Each option that is given replaces the decorated one; the others stay."""
    handler = declared(concurrency=7, value="json", timeout_s=3.0)
    options = handler_options(handler, {"concurrency": 9, "value": UNSET, "timeout_s": None})
    assert (options.concurrency, options.value, options.timeout_s) == (9, "json", None)


@pytest.mark.parametrize("policy", [perkey.Park(), perkey.Skip()])
def test_a_declared_park_and_skip_become_rows(policy):
    """There is no consumer to park in."""
    assert handler_options(declared(on_exhausted=policy), {}).on_exhausted == perkey.Skip()


@pytest.mark.parametrize("policy", [perkey.Stop(), perkey.DeadLetter("t.dlq")])
def test_a_declared_stop_and_dead_letter_stay(policy):
    """Stop ends the query; a dead letter is an output of the failed row."""
    assert handler_options(declared(on_exhausted=policy), {}).on_exhausted == policy
    assert handler_options(plain, {"on_exhausted": policy}).on_exhausted == policy


@pytest.mark.parametrize("carry", ["no", True, "Failed", ["a", 1]])
def test_carry_is_a_word_or_columns(carry):
    """None, failed, all, a star or a list of names; anything else is told."""
    for known in (None, "failed", "all", "*", ["a"], []):
        check(carry=known)
    with pytest.raises(ConfigError, match=r'process\(plain\): carry=.*"failed" or "all"'):
        check(carry=carry)


def ledger_handler(record, tx):
    return None


@pytest.mark.parametrize(
    ("handler", "given", "told"),
    [
        (declared(executor="processes", concurrency=2), {}, 'executor="processes"'),
        (declared(ledger_handler, ledger=perkey.SqlLedger("sqlite:///x.db")), {}, "ledger"),
        (declared(delivery="at_most_once"), {}, "at_most_once"),
        (plain, {"on_exhausted": perkey.Park()}, "on_exhausted=Park("),
        (plain, {"on_exhausted": None}, "on_exhausted=None"),
        (plain, {"concurrency": 0}, "concurrency=0: give a whole number from 1 to 1000"),
        (plain, {"concurrency": 1001}, "concurrency=1001"),
        (plain, {"ordering": "keys"}, "ordering='keys'"),
        (plain, {"timeout_s": -1}, "timeout_s=-1"),
        (plain, {"retry": 3}, "retry=3"),
        (plain, {"value": "xml"}, "value='xml'"),
        (lambda: None, {}, "the handler must take 1 argument"),
        ("handler", {}, "not callable"),
    ],
)
def test_what_cannot_be_is_one_line_that_names_it(handler, given, told):
    """The line begins with process(...), names the argument, and has no second line."""
    with pytest.raises(ConfigError) as error:
        handler_options(handler, given)
    line = str(error.value)
    assert line.startswith("process(")
    assert told in line
    assert "\n" not in line
    assert "@app.consume on" not in line


@pytest.mark.parametrize("slots", [None, 1, SLOTS_MAX])
def test_slots_within_the_limits(slots):
    """None, one task, and as many as may be."""
    check(slots=slots)


@pytest.mark.parametrize("slots", [0, -1, SLOTS_MAX + 1, 2.0, True, "2"])
def test_slots_outside_the_limits(slots):
    """Anything else is refused with the range."""
    with pytest.raises(ConfigError, match=r"process\(plain\): slots=.* from 1 to"):
        check(slots=slots)


def test_the_lifespan_is_the_apps_unless_given():
    """An explicit one wins; one that wants an app needs a handler that has one."""

    def own():
        return None

    def wants_app(app):
        return None

    app = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere"}, lifespan=own)
    handler = app.consume("t")(lambda _: None)
    assert lifespan_of(handler, None) is own
    assert lifespan_of(handler, wants_app) is wants_app
    assert lifespan_of(plain, None) is None
    with pytest.raises(ConfigError, match="lifespan takes the app"):
        lifespan_of(plain, wants_app)
    with pytest.raises(ConfigError, match="lifespan=3 is not callable"):
        lifespan_of(plain, 3)


LOCK = threading.Lock()


def test_a_handler_that_cannot_travel_is_named_with_what_it_uses():
    """A lock, a client, a session: they belong into the lifespan."""

    def uses_lock(record):
        with LOCK:
            return

    settings = TaskSettings(handler_options(uses_lock, {}), None, None, sort=False)
    with pytest.raises(
        ConfigError, match=r"process\(uses_lock\): .* uses 'LOCK', a lock: .*lifespan="
    ):
        packed(settings)


def test_a_handler_that_is_too_large_is_refused(monkeypatch):
    """At the limit it goes, one byte above it does not."""
    settings = TaskSettings(handler_options(plain, {}), None, None, sort=False)
    size = len(packed(settings))
    monkeypatch.setattr("perkey.spark.processing.payload.APP_BYTES_MAX", size)
    assert len(packed(settings)) == size
    monkeypatch.setattr("perkey.spark.processing.payload.APP_BYTES_MAX", size - 1)
    with pytest.raises(ConfigError, match="load large data in lifespan="):
        packed(settings)
