"""Commands as they come from outside: what is exact is obeyed, all else is one line."""

from __future__ import annotations

import json

import pytest

from perkey.errors import ConfigError
from perkey.observe.orders import (
    FOR_MAX_S,
    REASON_CHARS_MAX,
    Order,
    order_of,
    seconds_of,
    settings_of,
    what,
)

GOOD = {"action": "pause", "reason": "the payment service is down", "topic": "orders"}


def test_an_order_travels_as_json():
    """What one side writes the other reads; a command expires after an hour unless it says."""
    order = order_of(GOOD)
    assert (order.for_s, order.dry_run, what(order)) == (3600.0, False, "topic orders")
    order = Order("set", "slow", "id1", None, "check", {"concurrency": 5, "rate_limit_per_s": None})
    assert order_of(json.loads(json.dumps(order.row()))) == order


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"action": "explode"}, "action 'explode' is not known: one of pause"),
        ({"action": ["pause"]}, "is not known"),
        ({"reason": ""}, "a reason is required"),
        ({"reason": "x" * (REASON_CHARS_MAX + 1)}, "a reason is required"),
        ({"reason": "\x1b[31m"}, "printable text"),
        ({"reason": 7}, "a reason is required"),
        ({"topic": "x" * 301}, "topic must be printable text of at most 300"),
        ({"topic": 5}, "topic must be printable text"),
        ({"handler": "check"}, "give topic or handler"),
        ({"for_s": 0}, "give seconds above 0"),
        ({"for_s": FOR_MAX_S + 1}, "at most 604,800 (7 days)"),
        ({"for_s": float("nan")}, "give seconds above 0"),
        ({"for_s": "1h"}, "give seconds above 0"),
        ({"dry_run": 1}, "dry_run is true or false"),
        ({"mode": "never"}, "mode 'never' is not known"),
        ({"settings": {"concurrency": 5}}, "set takes settings"),
        ({"action": "set", "topic": None}, "set takes settings"),
        ({"action": "set", "settings": {"concurrency": 5}}, "give handler, not topic"),
        ({"action": "set", "topic": None, "settings": [1]}, "settings is a JSON object"),
        ({"action": "set", "topic": None, "settings": {"x": 1}}, "x cannot be set: one of"),
        (
            {"action": "redo", "records": [[0, 1]]},
            "action 'redo': it is retired: `perkey dlq replay",
        ),
        ({"action": "hold"}, "one of key, records, where"),
        ({"action": "hold", "key": "k", "where": 'key == "k"'}, "one of key, records, where"),
        ({"action": "hold", "where": "key = 1"}, "key ^= 1"),
        ({"action": "hold", "where": "replays > 1"}, "there is no field replays"),
        ({"action": "hold", "where": 7}, "where must be text"),
        ({"action": "hold", "key": "\ud83d"}, "key must be text: it has a half of a surrogate"),
        ({"where": 'key == "k"'}, "not of single records"),
        ({"who": "me"}, "a command has no field 'who'"),
    ],
)
def test_what_is_not_exact_is_refused(change, reason):
    """One line that names the field."""
    with pytest.raises(ConfigError) as refused:
        order_of({**GOOD, **change})
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("given", [None, [], "pause", 7])
def test_only_an_object_is_a_command(given):
    """Anything else is refused."""
    with pytest.raises(ConfigError, match="a command is a JSON object"):
        order_of(given)


@pytest.mark.parametrize("length", [REASON_CHARS_MAX - 1, REASON_CHARS_MAX])
def test_a_reason_up_to_its_limit(length):
    """It is kept whole."""
    assert order_of({**GOOD, "reason": "x" * length}).reason == "x" * length


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("1.5h", 5400), ("7d", FOR_MAX_S)]
)
def test_times_of_the_command_line(text, seconds):
    """A number and its unit."""
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["30", "m", "-1m", "8d", "0s", "1e9s", "30 m", "30min"])
def test_times_that_are_none(text):
    """One line."""
    with pytest.raises(ConfigError):
        seconds_of(text)


def test_settings_of_the_command_line():
    """Numbers, or as declared."""
    assert settings_of(["concurrency=5", "rate_limit_per_s=2.5"]) == {
        "concurrency": 5, "rate_limit_per_s": 2.5,
    }  # fmt: skip
    assert settings_of(["concurrency=default"]) == {"concurrency": None}


@pytest.mark.parametrize(
    "word", ["concurrency", "concurrency=0", "concurrency=2.5", "rate_limit_per_s=0",
             "rate_limit_per_s=nan", "concurrency=", "timeout_s=0", "timeout_s=1 timeout_s=2"],
)  # fmt: skip
def test_settings_that_are_none(word):
    """One line."""
    with pytest.raises(ConfigError):
        settings_of(word.split(" "))
