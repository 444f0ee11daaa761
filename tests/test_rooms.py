"""Each folder says what it is for, and `broker` and `spark` could be distributions of their own.

They import from the rest of Perkey what a user may import, and the inner modules listed here. The
list may only shrink: a new inner import turns the test red, and so does a line that nothing needs.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.test_circles import SRC, imports, modules

#: what users import (docs/stability.md), and where the errors and types of `perkey` are defined
PUBLIC = {"perkey", "perkey.testing", "perkey.errors", "perkey.types"}
#: the inner modules that each room needs besides; no line may be added
INNER: dict[str, set[str]] = {
    "broker": {"perkey.guard"},
    "spark": {
        "perkey.account.blockers",
        "perkey.account.snapshot",
        "perkey.app",
        "perkey.app_options",
        "perkey.codec",
        "perkey.core.commits",
        "perkey.core.effects",
        "perkey.core.engine",
        "perkey.core.events",
        "perkey.core.partition",
        "perkey.core.states",
        "perkey.core.work",
        "perkey.decoding",
        "perkey.guard",
        "perkey.kafka.admin",
        "perkey.kafka.clib",
        "perkey.kafka.clib_rows",
        "perkey.kafka.clientlog",
        "perkey.kafka.connect",
        "perkey.kafka.consumer",
        "perkey.kafka.ports",
        "perkey.kafka.settings",
        "perkey.kafka.verdicts",
        "perkey.numeric",
        "perkey.observe.asking",
        "perkey.observe.orders",
        "perkey.observe.overview",
        "perkey.options",
        "perkey.policies",
        "perkey.routing",
        "perkey.runtime.calls.aio",
        "perkey.runtime.calls.executors",
        "perkey.runtime.calls.invoke",
        "perkey.runtime.calls.loops",
        "perkey.runtime.calls.processes.protocol",
        "perkey.runtime.door",
        "perkey.runtime.handling",
        "perkey.runtime.histogram",
        "perkey.runtime.logs",
        "perkey.runtime.member.group_membership",
        "perkey.runtime.member.member_config",
        "perkey.runtime.member.outputs",
        "perkey.runtime.member.transactor",
        "perkey.runtime.run.drain",
        "perkey.runtime.run.exits",
        "perkey.runtime.run.gc_pace",
        "perkey.runtime.run.outside",
        "perkey.runtime.run.preflight",
        "perkey.runtime.run.result_stream",
        "perkey.runtime.run.run",
        "perkey.runtime.run.run_snapshot",
        "perkey.signatures",
    },
}


def inner(room: str, graph: Mapping[str, set[str]]) -> set[str]:
    """The modules outside a room that it imports and that are not public."""
    home = f"perkey.{room}"
    return {
        target
        for name, targets in graph.items()
        if name == home or name.startswith(f"{home}.")
        for target in targets
        if target != home and not target.startswith(f"{home}.") and target not in PUBLIC
    }


@pytest.mark.parametrize("room", INNER)
def test_a_room_imports_only_what_is_public_or_listed(room: str) -> None:
    """No module of `broker` and `spark` needs more of Perkey's inside than the list has."""
    assert inner(room, imports(modules())) - INNER[room] == set()


@pytest.mark.parametrize("room", INNER)
def test_the_list_only_shrinks(room: str) -> None:
    """A listed module that the room no longer imports leaves the list."""
    assert INNER[room] - inner(room, imports(modules())) == set()


def test_a_new_inner_import_is_found() -> None:
    """One inside a function counts, one of a public name and one inside the room do not."""
    trees = {
        "perkey.errors": ast.parse(""),
        "perkey.guard": ast.parse(""),
        "perkey.broker.java": ast.parse(""),
        "perkey.broker.local": ast.parse(
            "import perkey.errors\nimport perkey.broker.java\ndef f():\n    import perkey.guard"
        ),
    }
    assert inner("broker", imports(trees)) == {"perkey.guard"}


FOLDERS = sorted(path.parent for path in (SRC / "perkey").rglob("__init__.py"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(SRC)))
def test_each_folder_says_what_it_is_for(folder: Path) -> None:
    """Its `__init__.py` begins with at least three lines: the purpose, and what lies inside."""
    about = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    assert len([line for line in about.splitlines() if line.strip()]) >= 3
