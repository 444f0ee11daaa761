"""No imports run in a circle, those under TYPE_CHECKING included."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"


def modules(root: Path = SRC) -> dict[str, ast.Module]:
    """Every module of the package, by its dotted name."""
    found = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(
            path.read_text()
        )
    return found


def imports(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """What each module imports of the others, wherever the import stands, for types too."""
    graph: dict[str, set[str]] = {}
    for name, tree in trees.items():
        graph[name] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                graph[name] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                graph[name] |= inner & set(trees) or {node.module}
        graph[name] = (graph[name] & set(trees)) - {name}
    return graph


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """One circle of imports, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_imports_run_in_a_circle() -> None:
    """Nothing imports what imports it, those under TYPE_CHECKING included."""
    assert circle(imports(modules())) == []


def test_a_circle_is_found() -> None:
    """Two modules that import each other, one for a type only, turn the rule red."""
    types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a import b\n"
    trees = {"a.b": ast.parse("def f():\n    import a.c"), "a.c": ast.parse(types)}
    assert circle(imports(trees))
