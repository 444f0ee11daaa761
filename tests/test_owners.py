"""Every field of the core is written in one file, or in files that are one idea (`ROOMS`).

What everybody may write is where the next bug lives. The rule reads the syntax tree: an assignment,
a deletion, or a call that changes a container (`x.field.append(...)`) is a write of that field. Whose
field it is follows from the name of the variable; a name that is not in `CALLED` may be anybody's.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

CORE = Path(__file__).parents[1] / "src" / "perkey" / "core"

#: What changes a container.
CHANGES = {
    "add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "extendleft",
    "insert", "pop", "popitem", "popleft", "remove", "reverse", "rotate", "setdefault", "sort",
    "subtract", "update",
}  # fmt: skip
#: What a variable of this name holds, all over the core.
CALLED = {
    "partition": "Partition", "present": "Partition",
    "work": "Work", "following": "Work", "member": "Work", "tail": "Work",
    "head": "Work",
    "handler": "Handler", "offsets": "Offsets", "lanes": "Lanes", "commit": "CommitState",
    "reach": "Reach", "failure": "Failure", "charge": "LaneCharge", "state": "EngineState",
    "outage": "Outage", "_state": "EngineState", "slots": "Slots", "gathering": "Gathering",
    "shelf": "Shelf", "shelves": "Shelves", "decision": "Decision",
}  # fmt: skip
#: Files that are one idea: what one of them owns, the others may write.
ROOMS = (
    # one epoch: its records, its commit, and whose turn it is
    {
        "work.py", "offsets.py", "lanes.py", "commits.py", "partition.py", "scheduling.py",
        "memory.py",
    },
    # a call, and what becomes of its records
    {
        "work.py", "lanes.py", "scheduling.py", "batching.py", "endings.py", "retries.py",
        "commands.py", "gates.py", "budgets.py", "delivery.py", "portions.py",
    },
    # the commit of an epoch, and the records that wait for it
    {"commits.py", "partition.py", "engine_state.py", "delivery.py", "portions.py"},
)  # fmt: skip
#: Fields that a record's whole way through the core writes; the simulator watches each change
#: against the table (simulators.core.watched).
WATCHED = {("Work", "state")}
#: A time for people, set where a record is handed over: hot loops, and nothing is decided by it.
TOLD = {("Work", "since")}
#: Sums that every file adds to where it happens.
SUMS = {("EngineState", "finished_since_commit"), ("Handler", "done")}

Fields = Mapping[str, set[str]]


def classes_of(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """The fields of every class that says what it holds: `__slots__`, or annotated fields."""
    fields: dict[str, set[str]] = {}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                fields[node.name] = set(_slots(node)) | set(_assigned_in_init(node))
    return fields


def _slots(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__slots__":
            yield from ast.literal_eval(statement.value)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id


def _assigned_in_init(node: ast.ClassDef) -> Iterator[str]:
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            for target in _targets(method):
                if ast.unparse(target.value) == "self":
                    yield target.attr


def _targets(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Every attribute that is written under this node."""
    for node in ast.walk(tree):
        found: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            found = list(node.targets)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            found = [node.target]
        elif isinstance(node, ast.Call):
            found = _changed_by(node)
        for target in found:
            yield from _attributes(target)


def _changed_by(node: ast.Call) -> list[ast.expr]:
    if isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
        return [node.func.value]
    if isinstance(node.func, ast.Name) and node.func.id in {"heappush", "heappop", "heapify"}:
        return [node.args[0]]
    return []


def _attributes(target: ast.expr) -> Iterator[ast.Attribute]:
    if isinstance(target, ast.Tuple | ast.List):
        for one in target.elts:
            yield from _attributes(one)
    elif isinstance(target, ast.Subscript):
        yield from _attributes(target.value)
    elif isinstance(target, ast.Attribute):
        yield target


def writers(trees: Mapping[str, ast.Module]) -> dict[tuple[str, str], set[str]]:
    """(class, field) -> the files that write it."""
    fields = classes_of(trees)
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name, tree in trees.items():
        for owner, target in _writes(tree):
            for one in _owners(owner, target, fields):
                found[one, target.attr].add(name)
    return found


def _writes(tree: ast.Module) -> Iterator[tuple[str, ast.Attribute]]:
    """Every write with the class it stands in, empty outside of one; not what a class begins with."""
    inside: dict[ast.AST, str] = {}
    beginnings: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            inside.update((child, node.name) for child in ast.walk(node))
        elif isinstance(node, ast.FunctionDef) and node.name == "__init__":
            beginnings.update(ast.walk(node))
    for target in _targets(tree):
        if target not in beginnings or ast.unparse(target.value) != "self":
            yield inside.get(target, ""), target


def _owners(inside: str, target: ast.Attribute, fields: Fields) -> Iterable[str]:
    """The classes whose field this may be."""
    name = ast.unparse(target.value).rsplit(".", maxsplit=1)[-1]
    known = inside if name == "self" else CALLED.get(name, "")
    if known:
        return [known] if target.attr in fields.get(known, ()) else []
    return [one for one, held in fields.items() if target.attr in held]


def shared(trees: Mapping[str, ast.Module]) -> list[str]:
    """Fields that more than one file writes, but for files of one room."""
    return sorted(
        f"{owner}.{field} is written in {', '.join(sorted(files))}"
        for (owner, field), files in writers(trees).items()
        if len(files) > 1
        and (owner, field) not in WATCHED | TOLD | SUMS
        and not any(files <= room for room in ROOMS)
    )


def core() -> dict[str, ast.Module]:
    """Every file of the core, parsed."""
    return {str(path.relative_to(CORE)): ast.parse(path.read_text()) for path in CORE.rglob("*.py")}


def test_every_field_of_the_core_is_written_in_one_file() -> None:
    """A field that two files write has no owner, unless they are one room."""
    assert shared(core()) == []


OWNED = (
    "class Partition:\n    __slots__ = ('claims',)\n"
    "    def claim(self, x):\n        self.claims.append(x)\n"
)


@pytest.mark.parametrize(
    "text",
    [
        "def f(partition):\n    partition.claims = []",
        "def f(work):\n    work.partition.claims.append(1)",
        "def f(partition):\n    del partition.claims[0]",
        "def f(partition):\n    partition.claims[0] = 1",
        "def f(partition):\n    partition.claims += [1]",
        "def f(partition):\n    a, partition.claims = 1, []",
        "def f(partition):\n    heappush(partition.claims, 1)",
        "def f(someone):\n    someone.claims.clear()",
    ],
)
def test_a_second_writer_is_found(text: str) -> None:
    """Each way to write somebody else's field turns the rule red."""
    assert shared({"partition.py": ast.parse(OWNED), "other.py": ast.parse(text)})


def test_files_of_one_room_may_share_a_field() -> None:
    """A field of the room's is let through there, and found where a third file writes it."""
    write = ast.parse("def f(partition):\n    partition.claims = []")
    room = {"partition.py": ast.parse(OWNED), "lanes.py": write}
    assert shared(room) == []
    assert shared({**room, "engine.py": write})


def test_every_room_is_of_files_that_exist() -> None:
    """No room keeps a file that has moved."""
    assert set().union(*ROOMS) <= set(core())


def test_reading_is_no_writing() -> None:
    """Whoever reads a field, or writes one of the same name that is his own, is left alone."""
    text = (
        "class Other:\n    __slots__ = ('claims',)\n    def f(self, partition):\n"
        "        self.claims = list(partition.claims)\n"
    )
    assert shared({"partition.py": ast.parse(OWNED), "other.py": ast.parse(text)}) == []
