"""Pronouns as names, counted: the bindings that remain in each package may only become fewer."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "perkey"
#: Names that do not say what the value is. A parameter or attribute that is public keeps its name.
PRONOUNS = frozenset(
    re.findall(
        r"\w+",
        """
        one ones what some more less found known mine ours yours theirs each other others another
        same both either neither none nothing something anything everything who whose which
        whoever whatever this that these those it they them rest here there many few such
        """,
    )
)
#: package ("" is the modules beside the packages) -> the bindings that remain; lower it after a fix
REMAINING = {
    "": 42,
    "account": 7,
    "cli": 238,
    "core": 44,
    "dlq": 6,
    "kafka": 41,
    "observe": 123,
    "runtime": 125,
    "spark": 258,
    "testing": 23,
}


def bindings(text: str) -> list[str]:
    """Every name that the source binds: targets, parameters, imports, caught errors, patterns."""
    names: list[str | None] = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                names.append(name)
            case ast.ExceptHandler(name=name) | ast.alias(asname=name):
                names.append(name)
            case ast.MatchAs(name=name) | ast.MatchStar(name=name) | ast.MatchMapping(rest=name):
                names.append(name)
    return [name for name in names if name is not None]


def pronouns(text: str) -> int:
    """The bindings whose name is a pronoun; a leading underscore changes nothing."""
    return sum(name.strip("_") in PRONOUNS for name in bindings(text))


def counted() -> dict[str, int]:
    """Package -> bindings of pronouns, for the packages that have any."""
    counts: Counter[str] = Counter()
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).parts
        counts[parts[0] if len(parts) > 1 else ""] += pronouns(path.read_text())
    return {package: count for package, count in sorted(counts.items()) if count}


def complaints(counts: dict[str, int], remaining: dict[str, int]) -> list[str]:
    """One line per package whose count differs from the recorded one."""
    lines = []
    for package in sorted(counts.keys() | remaining.keys()):
        count, limit = counts.get(package, 0), remaining.get(package, 0)
        if count > limit:
            lines.append(f"{package!r}: {count} pronouns as names, {limit} allowed: name the value")
        elif count < limit:
            lines.append(f"{package!r}: {count} pronouns remain: lower its number from {limit}")
    return lines


def test_pronouns_as_names_only_become_fewer() -> None:
    """Each package has exactly its recorded number."""
    assert complaints(counted(), REMAINING) == []


def test_every_kind_of_binding_is_counted() -> None:
    """The mutants: one pronoun per kind of binding; uses, attributes and keywords do not count."""
    bound = (
        "one = 1",
        "for _one in rows: pass",
        "[0 for one in rows]",
        "(one := 1)",
        "def f(*, one): pass",
        "lambda one: 0",
        "import os as one",
        "try: pass\nexcept OSError as one: pass",
        "match x:\n case [one, *_]: pass",
        "match x:\n case [*one]: pass",
        "match x:\n case {**rest}: pass",
        "with x as (one, row): pass",
    )
    assert [pronouns(text) for text in bound] == [1] * len(bound)
    assert pronouns("row = one + f(one=1); row.one = 2; onerous = 3") == 0


def test_a_count_that_differs_is_reported() -> None:
    """More pronouns, fewer than recorded, and a package without a number."""
    assert complaints({"kafka": 3}, {"kafka": 3}) == []
    assert "3 pronouns as names, 2 allowed" in complaints({"kafka": 3}, {"kafka": 2})[0]
    assert "lower its number from 4" in complaints({"kafka": 3}, {"kafka": 4})[0]
    assert "lower its number from 1" in complaints({}, {"kafka": 1})[0]
    assert "0 allowed" in complaints({"new": 1}, {})[0]
