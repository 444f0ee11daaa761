"""The mutation tester makes the changes it says, and the same ones for the same seed."""

from __future__ import annotations

import ast

import pytest
from tests.support.mutate import PACKAGES, drawn, kept, mutants_of


def changes(text: str) -> set[str]:
    """What each mutant of a module has in place of the original."""
    return {mutant.after for mutant in mutants_of("perkey/x.py", text)}


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("x = a < b", "a <= b"),
        ("x = a is None", "a is not None"),
        ("x = a and b", "a or b"),
        ("x = not a", "a"),
        ("x = 1 if a else 2", "1 if not a else 2"),
        ("x = a + b", "a - b"),
        ("x = 7", "8"),
        ("x = True", "False"),
        ("a.b = c", "pass"),
        ("a += c", "pass"),
        ("f(a)", "pass"),
        ("x = f(a, b)", "f(b, a)"),
        ("x = min(a, b)", "max(a, b)"),
    ],
)
def test_each_kind_of_change_is_made(text, change):
    """Comparison, boolean, negation, arithmetic, constant, statement, arguments."""
    assert change in changes(text)


@pytest.mark.parametrize(
    "text", ['"""A docstring."""', "_log.info('x')", "def f(a: int = None) -> bool: ...", "x = 'y'"]
)
def test_what_runs_nowhere_is_left_alone(text):
    """Docstrings, log lines, annotations and words."""
    assert changes(text) == set()


def test_the_rest_of_the_file_stays():
    """A mutant is the whole file with one change, and can be parsed."""
    (mutant,) = [m for m in mutants_of("perkey/x.py", "a = 1\nb = c < d\n") if m.line == 2]
    assert mutant.source == "a = 1\nb = c <= d"


def test_a_seed_draws_the_same_mutants():
    """A figure can be checked by somebody else."""
    once = drawn(PACKAGES["codec"], 5, 1)
    assert once == drawn(PACKAGES["codec"], 5, 1) != drawn(PACKAGES["codec"], 5, 2)
    assert all(ast.parse(mutant.source) for mutant in once)


def test_those_that_may_survive_have_a_reason():
    """Nobody is excused without a word."""
    assert [name for name, reason in kept().items() if len(reason) < 8] == []
