"""How far tests reach into the insides of Perkey, counted: the uses may only become fewer.

A clock, an interval or a limit is an argument; a behaviour is seen by a public view.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
OWN = {"self", "cls"}
NAMED_TUPLE = {"_replace", "_asdict", "_fields", "_make"}


def patches(tree: ast.AST) -> Iterator[int]:
    """The lines that call or take `monkeypatch.setattr`."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="monkeypatch"), attr="setattr"):
                yield node.lineno


def private_names(tree: ast.AST) -> Iterator[int]:
    """The lines that name a private attribute of another object."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=owner)) if owner in OWN:
                pass
            case ast.Attribute(attr=name) if is_private(name):
                yield node.lineno


def is_private(name: str) -> bool:
    """Not those of named tuples, and not librdkafka's errors, as KafkaError._TRANSPORT."""
    hidden = name.startswith("_") and not name.endswith("__")
    return hidden and name not in NAMED_TUPLE and not name.isupper()


Count = Callable[[ast.AST], Iterator[int]]
#: The uses that remain; after removing some, lower the number.
ALLOWED: dict[Count, int] = {patches: 354, private_names: 342}


@cache
def trees() -> dict[str, ast.AST]:
    """Each file of the tests by its path."""
    return {
        str(path.relative_to(TESTS)): ast.parse(path.read_text())
        for path in sorted(TESTS.rglob("*.py"))
    }


@pytest.mark.parametrize("count", ALLOWED, ids=lambda count: count.__name__)
def test_the_uses_only_become_fewer(count: Count) -> None:
    """No more than the table allows."""
    uses = {path: lines for path, tree in trees().items() if (lines := list(count(tree)))}
    total = sum(map(len, uses.values()))
    assert total <= ALLOWED[count], f"{total} uses of {count.__name__}, {ALLOWED[count]} allowed"


@pytest.mark.parametrize(
    ("count", "text", "uses"),
    [
        (patches, "monkeypatch.setattr(door, 'LIMIT_S', 0.1)", 1),
        (patches, "monkeypatch.setenv('A', 'b'); setattr(door, 'limit_s', 1)", 0),
        (private_names, "assert run._admin.state._ends == []", 2),
        (private_names, "run._wait()", 1),
        (private_names, "self._runs = cls._of; run.__class__; run.wait()", 0),
        (private_names, "self._runs._ends", 1),
        (private_names, "row._replace(at=KafkaError._TRANSPORT)", 0),
    ],
)
def test_each_count_sees_its_uses(count: Count, text: str, uses: int) -> None:
    """A count that sees nothing would allow everything."""
    assert len(list(count(ast.parse(text)))) == uses
