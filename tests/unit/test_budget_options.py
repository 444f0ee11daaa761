"""`perkey.Budget`, `@app.consume(budget=...)` and `record.charge`: what is taken and what is refused."""

from __future__ import annotations

import pytest

import perkey
from perkey.policies import BUDGET_IN_FLIGHT_MAX, BUDGET_NAME_CHARS_MAX, BUDGET_PER_S_MAX
from perkey.types import CHARGE, Charge, Record

RECORD = Record("t", 0, 7, 0, b"k", b"v")


def app() -> perkey.App:
    """An app without handlers."""
    return perkey.App("g", {"bootstrap.servers": "memory://"})


@pytest.mark.parametrize(
    "options",
    [
        {"per_s": 1e-9},
        {"per_s": BUDGET_PER_S_MAX},
        {"in_flight": 1},
        {"in_flight": 2},
        {"in_flight": BUDGET_IN_FLIGHT_MAX - 1},
        {"in_flight": BUDGET_IN_FLIGHT_MAX},
        {"per_s": 50, "in_flight": 20, "by": lambda record: record.key, "cost": lambda record: 1},
    ],
)
def test_what_is_taken(options):
    """Up to the limits."""
    assert perkey.Budget("openai", **options).name == "openai"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "give per_s=, in_flight= or both"),
        ({"per_s": 0}, "per_s=0): give a number above 0, at most 1000000000"),
        ({"per_s": -1.0}, "give a number above 0"),
        ({"per_s": BUDGET_PER_S_MAX + 1}, "give a number above 0"),
        ({"per_s": float("nan")}, "give a number above 0"),
        ({"per_s": "50"}, "give a number above 0"),
        ({"in_flight": 0}, "in_flight=0): give a whole number from 1 to 1000000"),
        ({"in_flight": 1.5}, "give a whole number"),
        ({"in_flight": True}, "give a whole number"),
        ({"in_flight": BUDGET_IN_FLIGHT_MAX + 1}, "give a whole number"),
        ({"per_s": 1, "by": "key"}, "by='key'): give a function of a record"),
        ({"per_s": 1, "cost": 3}, "cost=3): give a function of a record"),
        ({"in_flight": 1, "cost": len}, "a cost is charged to per_s: give that, too"),
    ],
)
def test_what_is_refused(options, told):
    """One line that names the cure."""
    with pytest.raises(perkey.ConfigError) as error:
        perkey.Budget("openai", **options)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("count", [1, BUDGET_NAME_CHARS_MAX - 1, BUDGET_NAME_CHARS_MAX])
def test_names_that_are_taken(count):
    """One to so many characters."""
    assert perkey.Budget("n" * count, per_s=1).name == "n" * count


@pytest.mark.parametrize("name", ["", " ", "n" * (BUDGET_NAME_CHARS_MAX + 1), 7, None])
def test_names_that_are_refused(name):
    """Longer, empty, or no text."""
    with pytest.raises(perkey.ConfigError, match="give its name, 1 to 100 characters"):
        perkey.Budget(name, per_s=1)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"budget": "openai"}, "budget='openai': give perkey.Budget"),
        ({"budget": perkey.Budget("b", per_s=1), "delivery": "at_most_once"}, "rate_limit_per_s"),
        ({"budget": perkey.Budget("b", per_s=1), "batch": perkey.Batch()}, "rate_limit_per_s"),
        ({"budget": perkey.Budget("b", per_s=1, by=lambda: "a")}, "Budget(by=...)"),
        ({"budget": perkey.Budget("b", per_s=1, cost=lambda a, b: 1)}, "Budget(cost=...)"),
    ],
)
def test_what_a_handler_refuses(options, told):
    """When it is decorated."""
    with pytest.raises(perkey.ConfigError) as error:
        app().consume("t", **options)(lambda record: None)
    assert told in str(error.value)


def test_functions_of_a_budget_are_no_coroutines():
    """They are called on the polling thread."""

    async def by(record):
        return "a"

    with pytest.raises(perkey.ConfigError, match="make it a plain `def`"):
        app().consume("t", budget=perkey.Budget("b", per_s=1, by=by))(lambda record: None)


def test_one_name_with_two_numbers_is_refused():
    """Neither is preferred."""
    one = app()
    one.consume("t", budget=perkey.Budget("b", per_s=1))(lambda record: None)
    with pytest.raises(perkey.ConfigError) as error:
        one.consume("u", budget=perkey.Budget("b", per_s=2, in_flight=3))(lambda record: None)
    assert "budget 'b' has per_s=2, in_flight=3, and per_s=1, in_flight=None on" in str(error.value)
    assert len(one.handlers) == 1


def test_one_name_with_other_functions_is_one_budget():
    """The records of two topics are for tenants in two ways."""
    one = app()
    one.consume("t", budget=perkey.Budget("b", per_s=1, by=lambda r: r.key))(lambda record: None)
    one.consume("u", budget=perkey.Budget("b", per_s=1, by=lambda r: "a"))(lambda record: None)
    assert len(one.handlers) == 2


# -- record.charge ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cost", [0, 0.5, 1e9])
def test_a_cost_is_reported(cost):
    """With what the call reported before."""
    told: list[object] = []
    token = CHARGE.set(Charge(lambda *report: told.append(report)))
    try:
        RECORD.charge(1)
        RECORD.charge(cost)
    finally:
        CHARGE.reset(token)
    assert told == [(RECORD, 1.0, None), (RECORD, cost, 1.0)]


@pytest.mark.parametrize("cost", [-1, 1e9 + 1, float("nan"), float("inf"), "3", None, True])
def test_a_cost_that_is_none_is_refused(cost):
    """One clear error; the handler's attempt fails with it."""
    token = CHARGE.set(Charge(lambda *report: None))
    try:
        with pytest.raises(perkey.ConfigError, match="a number from 0 to 1000000000"):
            RECORD.charge(cost)
    finally:
        CHARGE.reset(token)


def test_without_a_budget_nothing_is_charged():
    """The error says where it can be called."""
    with pytest.raises(perkey.ConfigError, match=r"no budget is charged here: give @app.consume"):
        RECORD.charge(1)
