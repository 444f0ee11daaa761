"""No imports run in a circle. Inside the core, those that only types need may.

A type there names what holds it (a record its partition, an effect its record): a circle of ideas,
not of files, for nothing of it is imported when the code runs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
CORE = "perkey.core."


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
    """What each module imports of the others, wherever the import stands."""
    graph: dict[str, set[str]] = {}
    for name, tree in trees.items():
        graph[name] = set()
        free = types_only(tree) if name.startswith(CORE) else set()
        for node in ast.walk(tree):
            if node in free:
                continue
            if isinstance(node, ast.Import):
                graph[name] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                graph[name] |= inner & set(trees) or {node.module}
        graph[name] = (graph[name] & set(trees)) - {name}
    return graph


def types_only(tree: ast.Module) -> set[ast.AST]:
    """All that stands under `if TYPE_CHECKING`."""
    return {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """One circle of imports, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_imports_run_in_a_circle() -> None:
    """Nothing imports what imports it; outside the core those under TYPE_CHECKING included."""
    assert circle(imports(modules())) == []


def floors(graph: Mapping[str, set[str]]) -> dict[str, int]:
    """For each module of the core its floor: one above the highest that it imports."""
    core = {
        name: {one for one in targets if one.startswith(CORE)}
        for name, targets in graph.items()
        if name.startswith(CORE)
    }
    found: dict[str, int] = {}
    for name in TopologicalSorter(core).static_order():
        found[name] = 1 + max((found[one] for one in core[name]), default=0)
    return {name.removeprefix(CORE): floor for name, floor in found.items()}


def test_the_core_is_listed_by_floor() -> None:
    """Its docstring names each module with its floor, from the ground up."""
    about = (
        ast.get_docstring(ast.parse((SRC / "perkey" / "core" / "__init__.py").read_text())) or ""
    )
    listed = re.findall(r"^    (\d+)  (\w+) ", about, re.MULTILINE)
    assert [int(floor) for floor, _ in listed] == sorted(int(floor) for floor, _ in listed)
    assert {name: int(floor) for floor, name in listed} == floors(imports(modules()))


TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from {} import x\n"


def test_a_circle_is_found() -> None:
    """Two modules that import each other, one for a type only, turn the rule red."""
    trees = {
        "a.b": ast.parse("def f():\n    import a.c"),
        "a.c": ast.parse(TYPES.format("a.b")),
    }
    assert circle(imports(trees))


def test_a_circle_of_types_is_for_the_core_alone() -> None:
    """It is let through there, and found where one of the two is outside."""
    one, other = ast.parse("import perkey.core.c"), ast.parse(TYPES.format("perkey.core.b"))
    assert not circle(imports({"perkey.core.b": one, "perkey.core.c": other}))
    one, other = ast.parse("import perkey.account.c"), ast.parse(TYPES.format("perkey.core.b"))
    assert circle(imports({"perkey.core.b": one, "perkey.account.c": other}))


def test_a_circle_that_runs_is_found_in_the_core() -> None:
    """Two of its modules that import each other when the code runs turn the rule red."""
    trees = {
        "perkey.core.b": ast.parse("import perkey.core.c"),
        "perkey.core.c": ast.parse("def f():\n    import perkey.core.b"),
    }
    assert circle(imports(trees))
