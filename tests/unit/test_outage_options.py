"""`perkey.Hold` and `perkey.Brake`: every wrong argument is one line with its cure, at the limits as well."""

from __future__ import annotations

import math

import pytest

import perkey

AWAY = perkey.Hold(on=OSError)


def by(record):
    """A value."""


async def waits(record):
    """Not to be had in the polling thread."""


WRONG = {
    "on nothing": ({"on": ()}, "give exception types"),
    "on a name": ({"on": "OSError"}, "give exception types"),
    "on an error": ({"on": (OSError("x"),)}, "give exception types"),
    "probe_s 0": ({"probe_s": 0}, "probe_s=0.*> 0"),
    "probe_s nan": ({"probe_s": math.nan}, "probe_s=nan"),
    "max_s text": ({"max_s": "1h"}, "max_s='1h'"),
    "max_s below probe_s": ({"max_s": 4.9}, "at least probe_s=5"),
    "by a value": ({"by": 3}, "give a function of a record"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_one_line(name):
    """Where it is written."""
    given, words = WRONG[name]
    with pytest.raises(perkey.ConfigError, match=words) as caught:
        perkey.Hold(**{"on": OSError, **given})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"share": 0}, "share=0.: give a share above 0"),
        ({"share": 1.01}, "at most 1"),
        ({"at_least": 0}, "at_least=0.: give a whole number from 1"),
        ({"at_least": 2.5}, "at_least=2.5"),
        ({"over_s": 0}, "over_s=0"),
        ({"probe_s": -1}, "probe_s=-1"),
    ],
)
def test_a_wrong_argument_of_a_brake_is_one_line(given, words):
    """And the limits themselves are right."""
    perkey.Brake(share=1, at_least=1)
    with pytest.raises(perkey.ConfigError, match=words) as caught:
        perkey.Brake(**given)
    assert "\n" not in str(caught.value)


def test_one_type_is_a_tuple_of_one():
    """And `max_s` may be as short as `probe_s`."""
    assert perkey.Hold(on=OSError, probe_s=5, max_s=5).on == (OSError,)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"brake": 0.2}, r"give perkey.Brake\(...\)"),
        ({"hold": OSError}, r"give perkey.Hold\(on=...\)"),
        ({"hold": AWAY, "delivery": "at_most_once"}, "excludes: omit it"),
        ({"hold": perkey.Hold(OSError, by=by), "batch": perkey.Batch()}, "omit by="),
        ({"hold": perkey.Hold(OSError, by=waits)}, "make it a plain `def`"),
        ({"hold": perkey.Hold(OSError, by=lambda: 1)}, r"def by\(record\)"),
    ],
)
def test_what_does_not_go_together_is_refused(options, words):
    """At decoration, in one line."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "localhost:1"})
    with pytest.raises(perkey.ConfigError, match=words) as caught:
        app.consume("t", **options)(lambda record: None)
    assert str(caught.value).startswith("@app.consume on ")
    assert "\n" not in str(caught.value)
