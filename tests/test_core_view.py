"""Nobody outside reads into the core: the engine, a partition and a handler give a view.

What they hold (`engine.state`, `partition.offsets`, `handler.slots` …) is read by the core itself
and by the account, which copies it for people. All others ask the view, so that what is inside may
change. The rule reads the syntax tree: `x.offsets.y` is a read where `y` is a name of `Offsets`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "perkey"
CORE = SRC / "core"
#: The parts, by the name of the field that holds them, and the class and file of each.
PARTS = {
    "offsets": ("Offsets", "offsets.py"),
    "lanes": ("Lanes", "lanes.py"),
    "reach": ("Reach", "offsets.py"),
    "commit": ("CommitState", "commits.py"),
    "slots": ("Slots", "scheduling.py"),
    "state": ("EngineState", "engine_state.py"),
}


@cache
def names_of(part: str) -> frozenset[str]:
    """The fields and methods of a part."""
    owner, file = PARTS[part]
    (found,) = [
        node
        for node in ast.parse((CORE / file).read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == owner
    ]
    names = {node.name for node in found.body if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(found):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
            names.add(node.attr)
    return frozenset(names)


def reads(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every read of a part of the core: the line, and what is read."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        plain = getattr(node.value, "attr", getattr(node.value, "id", None))
        if node.attr != "state" and plain is not None and plain not in PARTS:
            continue  # most of all; to print them takes long
        text = ast.unparse(node)
        *owner, part = ast.unparse(node.value).split(".")
        inside = part in PARTS and owner and node.attr in names_of(part)
        if (inside and owner != ["self"]) or text.endswith("engine.state"):
            yield node.lineno, text


def test_nothing_outside_reads_into_the_core() -> None:
    """No file outside the core and the account reads a part of it."""
    found = [
        f"{path.relative_to(SRC)}:{line} reads {what}"
        for path in sorted(SRC.rglob("*.py"))
        if path.relative_to(SRC).parts[0] not in {"core", "account"}
        for line, what in reads(ast.parse(path.read_text()))
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "self._membership.door.engine.state.stop_mode",
        "door.call(lambda engine, _: ask(engine.state))",
        "partition.offsets.position",
        "work.partition.commit.sent",
        "len(p.lanes.ready)",
        "work.partition.handler.slots.free",
        "partition.reach.edge",
    ],
)
def test_each_way_in_is_found(text: str) -> None:
    """A read of any part turns the rule red."""
    assert list(reads(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    [
        "partition.position",
        "transaction.offsets.items()",
        "handler.commit.each",
        "self.state.phase",
    ],
)
def test_what_only_looks_like_a_read_is_left_alone(text: str) -> None:
    """The view itself, and fields of the same name that are no part of the core."""
    assert not list(reads(ast.parse(text)))
