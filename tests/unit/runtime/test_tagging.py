"""What functions of the user return for records that come in."""

from __future__ import annotations

import logging

import pytest

from perkey.core.events import HandlerSpec
from perkey.core.work import Tags
from perkey.policies import Budget, Hold
from perkey.runtime.tagging import tags_of
from perkey.types import Record


def record(key):
    """A record with this key."""
    return Record("t", 0, 7, 0, key, b"v")


def spec(by):
    """A handler that holds by this function."""
    return HandlerSpec("h", hold=Hold(on=OSError, by=by))


def test_a_handler_without_such_functions_has_no_values():
    """Nothing is called for each record then."""
    assert tags_of(HandlerSpec("h"), [record(b"a")]) == []
    assert tags_of(spec(None), [record(b"a")]) == []
    assert tags_of(HandlerSpec("h", budget=Budget("b", per_s=1)), [record(b"a")]) == []


def test_each_record_has_its_value():
    """From its bytes."""
    by = spec(lambda record: record.key[:1])
    assert tags_of(by, [record(b"ab"), record(b"c")]) == [Tags(b"a"), Tags(b"c")]


def test_what_fails_is_the_value_none_and_a_line(caplog):
    """A null key has no first byte; a list cannot be compared. No record is lost by it."""
    with caplog.at_level(logging.ERROR, "perkey"):
        assert tags_of(spec(lambda record: record.key[:1]), [record(None)]) == [Tags(None)]
    assert "Hold(by=) failed" in caplog.text
    assert tags_of(spec(lambda record: [1]), [record(b"a")]) == [Tags(None)]


def budgeted(by=None, cost=None):
    """A handler with a budget by these functions."""
    return HandlerSpec("h", budget=Budget("b", per_s=1, by=by, cost=cost))


def test_a_budget_has_values_and_costs():
    """Either may be missing."""
    by, cost = (lambda record: record.key), (lambda record: len(record.value))
    assert tags_of(budgeted(by, cost), [record(b"a")]) == [Tags(None, b"a", 1.0)]
    assert tags_of(budgeted(by), [record(b"a")]) == [Tags(None, b"a", 1.0)]
    assert tags_of(budgeted(cost=lambda _: 7), [record(b"a")]) == [Tags(None, None, 7.0)]


@pytest.mark.parametrize("value", [0, 0.5, 1e9])
def test_costs_that_are_taken(value):
    """From 0 to a billion."""
    assert tags_of(budgeted(cost=lambda _: value), [record(b"a")])[0].cost == value


@pytest.mark.parametrize("value", [-0.5, 1e9 + 1, float("nan"), float("inf"), "1", None, True])
def test_a_cost_that_is_none_is_one_and_a_line(value, caplog):
    """The record is handled, as if it cost 1."""
    with caplog.at_level(logging.ERROR, "perkey"):
        spec = HandlerSpec(repr(value), budget=Budget("b", per_s=1, cost=lambda _: value))
        assert tags_of(spec, [record(b"a")]) == [Tags()]
    assert "Budget(cost=) failed: the record costs 1" in caplog.text


@pytest.mark.parametrize("value", [None, 7, ("a",)])
def test_a_value_that_is_no_text_is_none_and_a_line(value, caplog):
    """Values are str or bytes, so that they can be shown."""
    with caplog.at_level(logging.ERROR, "perkey"):
        spec = HandlerSpec(repr(value), budget=Budget("b", per_s=1, by=lambda _: value))
        assert tags_of(spec, [record(b"a")]) == [Tags()]
    assert "Budget(by=) failed: the record belongs to the value None" in caplog.text
