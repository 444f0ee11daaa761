"""Which package imports which, drawn from the code: docs/packages.svg.

Only the lines that say something are drawn: where A imports B and B imports C, the line from A to C
is left out. Packages stand above all that they import.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
#: packages whose own packages are drawn one by one
OPENED = {"runtime", "spark", "testing"}
BASICS = {"errors", "types", "numeric", "policies", "_version", "config"}
OPTIONS = {"options", "app_options", "routing", "signatures"}
APP = {"", "app", "handler_types"}

WIDTH, HEIGHT, GAP, ROW, MARGIN = 116, 30, 14, 66, 16

Graph = Mapping[str, set[str]]


def package_of(module: str) -> str:
    """The box a module is drawn in: `perkey.runtime.run.drain` is in `runtime.run`."""
    first, second, *_ = [*module.split(".")[1:], "", ""]
    if first in BASICS:
        return "errors, types …"
    if first in OPTIONS:
        return "options"
    if first in APP:
        return "app"
    if first == "__main__":
        return "cli"
    if first in OPENED and (SRC / "perkey" / first / second).is_dir() and second:
        return f"{first}.{second}"
    return first


def imports() -> Graph:
    """Package -> the packages it imports, wherever the import stands."""
    modules = {_dotted(path): path for path in sorted((SRC / "perkey").rglob("*.py"))}
    graph: dict[str, set[str]] = defaultdict(set)
    for name, path in modules.items():
        here = package_of(name)
        for target in _targets(ast.parse(path.read_text())):
            module = target if target in modules else target.rpartition(".")[0]
            if module in modules and package_of(module) != here:
                graph[here].add(package_of(module))
    for one in {target for targets in graph.values() for target in targets}:
        graph[one] |= set()
    return graph


def _dotted(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _targets(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rows(graph: Graph) -> list[list[str]]:
    """The packages from the lowest row up: each above all that it imports."""

    @cache
    def depth(name: str) -> int:
        return 1 + max((depth(one) for one in graph[name] if below(name, one)), default=-1)

    def below(name: str, target: str) -> bool:
        return name not in _reached(graph, target)  # a circle is drawn in one row

    made: dict[int, list[str]] = defaultdict(list)
    for name in sorted(graph):
        made[depth(name)].append(name)
    return [made[level] for level in sorted(made)]


def _reached(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    left = [start]
    while left:
        for one in graph[left.pop()] - found:
            found.add(one)
            left.append(one)
    return found


def drawn(graph: Graph) -> list[tuple[str, str]]:
    """The lines: those that no longer way says already."""
    return [
        (name, target)
        for name in sorted(graph)
        for target in sorted(graph[name])
        if not any(target in _reached(graph, other) for other in graph[name] - {target})
    ]


def svg() -> str:
    """The picture."""
    graph = imports()
    levels = rows(graph)[::-1]
    width = max(len(level) for level in levels) * (WIDTH + GAP) + 2 * MARGIN
    at = {
        name: (
            (width - len(level) * (WIDTH + GAP) + GAP) // 2 + number * (WIDTH + GAP),
            MARGIN + row * ROW,
        )
        for row, level in enumerate(levels)
        for number, name in enumerate(level)
    }
    height = len(levels) * ROW + MARGIN
    lines = [_line(at[one], at[other]) for one, other in drawn(graph)]
    boxes = [_box(name, *place) for name, place in at.items()]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        'font-family="sans-serif" font-size="12" role="img">'
    )
    title = "<title>The packages of Perkey: each imports what its lines lead down to</title>"
    paper = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([head, title, paper, *lines, *boxes, "</svg>"]) + "\n"


def _line(upper: tuple[int, int], lower: tuple[int, int]) -> str:
    (x1, y1), (x2, y2) = upper, lower
    return (
        f'<line x1="{x1 + WIDTH // 2}" y1="{y1 + HEIGHT}" x2="{x2 + WIDTH // 2}" y2="{y2}" '
        'stroke="#8899aa"/>'
    )


def _box(name: str, x: int, y: int) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5" fill="#eef3f8" '
        f'stroke="#445566"/><text x="{x + WIDTH // 2}" y="{y + 19}" text-anchor="middle">'
        f"{name}</text>"
    )
