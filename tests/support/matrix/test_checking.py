"""The checker of the matrix turns red for every promise that is broken, and for no other reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.handler_log import Entry
from tests.support.matrix.checking import Lived, problems
from tests.support.matrix.ways import CONCURRENCY, WAYS, Way

import perkey

WAY = {way.name: way for way in WAYS}
COUNT, STRUCK_AT = 40, 100.0


def handled(number: int, at: float, run: int = 1) -> list[Entry]:
    """A call that began and ended."""
    key = f"k{number % 4}"
    return [Entry("S", at, run, 1, 1, number, key), Entry("E", at + 0.05, run, 1, 1, number, key)]


def good(way: Way, *, ends: str = "") -> Lived:
    """Half before the fault, some long before; the rest after it, where the run ended by another."""
    lived = Lived(way, {(1, n): f"k{n % 4}" for n in range(COUNT)}, ends=ends, says="the reason")
    for n in range(COUNT):
        after = n >= COUNT // 2
        at = STRUCK_AT + (2 if after else -2.1 if n >= COUNT // 4 else -50)
        lived.entries += handled(n, at + n / 10, 2 if after and ends else 1)
    lived.effects = list(lived.produced)
    lived.struck_at, lived.done_before = STRUCK_AT, COUNT // 2
    lived.last = perkey.RunReport(0, "stopped")
    lived.log = "so it was: the reason, in words"
    if ends:
        lived.over_at, lived.struck = STRUCK_AT + 1, perkey.RunReport(1, f"Kafka: {ends}")
    return lived


@pytest.mark.parametrize("ends", ["", "denied"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_a_good_cell_is_green(way: Way, ends: str) -> None:
    """Nothing broken, nothing said."""
    assert problems(good(way, ends=ends)) == []


def again(lived: Lived, number: int) -> None:
    """The second run handles this one, too, before all others."""
    lived.entries += handled(number, STRUCK_AT + 1 + number / 50, 2)


def test_what_is_allowed_is_green() -> None:
    """A repeat at an end, a record that was deleted, one that was marked and never begun again."""
    repeated = good(WAY["at_least_once"], ends="denied")
    again(repeated, COUNT // 2 - 1)
    repeated.effects.append((1, COUNT - 1))
    assert problems(repeated) == []
    deleted = good(WAY["each"])
    deleted.effects.remove((1, 30))
    deleted.entries = [e for e in deleted.entries if e.offset != 30]
    deleted.spared = {(1, 30)}
    assert problems(deleted) == []
    marked = good(WAY["at_most_once"], ends="denied")
    marked.effects.remove((1, 19))
    assert problems(marked) == []


def drop(lived: Lived, number: int = 25) -> None:
    lived.effects.remove((1, number))


def double(lived: Lived) -> None:
    lived.effects.append((1, COUNT - 1))


def begin_again(lived: Lived) -> None:
    lived.entries += handled(3, STRUCK_AT + 90)


def begin_many_again(lived: Lived) -> None:
    for number in range(20 - CONCURRENCY - 1, 20):
        again(lived, number)


def swap_effects(lived: Lived) -> None:
    lived.effects[4], lived.effects[8] = lived.effects[8], lived.effects[4]


def swap_starts(lived: Lived) -> None:
    lived.entries = [e._replace(at=49.0) if e.offset == 8 else e for e in lived.entries]


def overlap(lived: Lived) -> None:
    lived.entries = [
        e._replace(at=e.at + 0.6) if (e.kind, e.offset) == ("E", 4) else e for e in lived.entries
    ]


def forget_marked(lived: Lived) -> None:
    for number in range(20, 21 + CONCURRENCY):
        lived.effects.remove((1, number))
        lived.entries = [e for e in lived.entries if e.offset != number]


MUTANTS: list[tuple[str, str, Callable[[Lived], Any], str]] = [
    *((way.name, "", drop, "lost 1") for way in WAYS),
    *((way.name, "denied", drop, "lost 1") for way in WAYS if not way.starts_once),
    ("at_most_once", "denied", forget_marked, "lost 5"),
    ("batch", "", lambda lived: lived.effects.append((9, 9)), "effects of nothing"),
    ("at_most_once", "", begin_again, "begun twice"),
    ("at_most_once", "denied", begin_again, "begun twice"),
    ("at_least_once", "", begin_again, "repeated 1"),
    ("at_least_once", "denied", begin_again, "repeated 1"),
    ("each", "denied", begin_many_again, "repeated 5 records, at most 4"),
    ("exactly_once", "", double, "effects twice"),
    ("exactly_once", "denied", double, "effects twice"),
    ("ledger", "", double, "effects twice"),
    ("at_most_once", "", double, "effects twice"),
    ("processes", "", swap_effects, "effects out of order"),
    ("processes", "", swap_starts, "began out of order"),
    ("at_least_once", "", overlap, "ran beside each other"),
    ("each", "denied", lambda lived: setattr(lived, "struck", None), "it went on"),
    (
        "each",
        "denied",
        lambda lived: setattr(lived, "struck", perkey.RunReport(1, "x")),
        "not 'den",
    ),
    (
        "each",
        "denied",
        lambda lived: setattr(lived, "struck", perkey.RunReport(2, "denied")),
        "it ended with 2",
    ),
    ("each", "", lambda lived: setattr(lived, "struck", perkey.RunReport(1, "x")), "by itself"),
    ("each", "", lambda lived: setattr(lived, "last", None), "did not end well"),
    ("each", "", lambda lived: setattr(lived, "last", perkey.RunReport(3, "parked")), "end well"),
    ("each", "", lambda lived: setattr(lived, "log", "silence"), "nothing said"),
    ("each", "", lambda lived: setattr(lived, "done_before", 0), "unknown"),
    ("each", "", lambda lived: setattr(lived, "done_before", COUNT), "unknown"),
]


@pytest.mark.parametrize(("way", "ends", "break_it", "says"), MUTANTS)
def test_a_broken_promise_is_red(
    way: str, ends: str, break_it: Callable[[Lived], Any], says: str
) -> None:
    """Each is named."""
    lived = good(WAY[way], ends=ends)
    break_it(lived)
    found = problems(lived)
    assert any(says in line for line in found), found
