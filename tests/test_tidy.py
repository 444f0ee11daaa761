"""The house rules as tests.

Each rule is a function from one file to what is wrong with it, and has a mutant: a snippet that
must turn it red, so that no rule is asleep.
A new package under src/perkey gets its line in RINGS; what it may import is decided there.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FUNCTION_LINES_MAX = 80
FILE_LINES_MAX = 600  # one idea a file: four had exactly 400 lines, cut where the rule said
TEST_FILE_LINES_MAX = 600
REASON_LETTERS_MIN = 8

BASIC = {"errors", "types", "numeric", "policies", "reasons"}
INNER = BASIC | {"core", "codec"}
SEEN = INNER | {"account", "where"}
#: No idea of Perkey's: threads that report their death, files of this user only.
MEANS = {"guard"}
OPTIONS = {"options", "app_options", "routing", "decoding", "signatures"}
LOCAL = SEEN | OPTIONS | MEANS | {
    "config", "kafka", "observe", "runtime", "ledger", "app", "handler_types", "_version", "perkey",
}  # fmt: skip

#: What each ring (a file or package under src/perkey) may import of Perkey; itself always.
RINGS: dict[str, set[str]] = {
    "_version": set(),
    "errors": set(),
    "types": {"errors", "numeric"},
    "numeric": set(),
    "reasons": set(),
    "guard": set(),
    "policies": BASIC,
    "codec": BASIC,
    "where": {"errors"},
    "dlq": INNER | {"kafka", "where"},
    "core": INNER,
    "account": BASIC | {"core"},
    "config": BASIC | {"kafka"},
    "kafka": INNER | MEANS | {"config"},
    "ledger": INNER | {"config"},
    # The ledger for its policy only, the object that an option takes.
    "options": BASIC | {"ledger", "signatures", "decoding"},
    "decoding": {"errors", "types"},
    "signatures": BASIC,
    "app_options": BASIC | {"options", "signatures"},
    "routing": BASIC | {"options"},
    "observe": SEEN | OPTIONS | MEANS | {"config", "dlq", "kafka", "_version"},
    "runtime": SEEN | OPTIONS | MEANS | {"config", "kafka", "ledger", "observe", "_version"},
    "handler_types": BASIC | {"ledger", "runtime"},
    "app": LOCAL | {"spark"},
    "perkey": LOCAL,
    "broker": {"errors"} | MEANS,
    "spark": LOCAL,
    "testing": LOCAL | {"broker"},
    "cli": LOCAL | {"broker", "spark", "dlq"},
    "__main__": {"cli"},
}
#: Programs of the repository: they import Perkey, and are in no wheel.
BESIDE = {"simulators", "demo", "benchmarks", "tests", "docs"}
#: The rooms of a ring, and what each may import of its ring besides itself; what stands in none of
#: them is under all.
ROOMS: dict[str, dict[str, set[str]]] = {
    "runtime": {"run": {"member", "calls"}, "member": set(), "calls": set()},
}
#: Rings that take nothing from outside but the standard library and these.
PURE = {
    "errors": set(),
    "types": {"typing_extensions"},
    "numeric": set(),
    "policies": set(),
    "where": set(),
    "core": set(),
    "account": set(),
    "codec": {"zstandard", "compression"},  # the latter is Python's own from 3.14 on
}
#: Libraries with one home: who imports them, as prefixes of paths under src/perkey.
HOMES = {
    "confluent_kafka": ("kafka/", "testing/", "broker/", "spark/source/", "spark/sink/"),
    "ctypes": ("kafka/clib.py", "kafka/clib_offsets.py", "kafka/clib_rows.py"),
    "pyspark": ("spark/",),
    "zstandard": ("codec/zstd.py",),
}
#: What the core may not even import: clocks, chance, threads, loops, the world.
IMPURE = {
    "asyncio", "concurrent", "datetime", "io", "logging", "multiprocessing", "os", "pathlib",
    "queue", "random", "secrets", "select", "signal", "socket", "subprocess", "sys", "tempfile",
    "threading", "time", "uuid",
}  # fmt: skip
IMPURE_CALLS = {"open", "print", "input", "exec", "eval"}

# Each has an empty group in the middle, so that this file does not break its own rule.
PRIVATE = re.compile(
    r"py(?:)pi\.org|python(?:)hosted\.org|repo1?\.(?:)maven|maven\.(?:)apache\.org/m"
    r"|npm(?:)js\.org|crates\.(?:)io/api|/work/(?:main|shared)|/fa(?:)rm/"
    r"|/(?:home|Users)/\w|/root/\w|/opt/(?:)wheels|/tmp/perkey-(?:)brief"
)
UNDONE = re.compile(r"TO(?:)DO|FIX(?:)ME|XX(?:)X\b|raise NotImplemented(?:)Error")
SUPPRESSION = re.compile(r"#\s*(?:ruff:\s*)?(noqa|type:\s*ignore|pragma:\s*no cover)(.*)$")
CODES = re.compile(r"^(?::\s*[A-Z]+\d+(?:\s*,\s*[A-Z]+\d+)*|\[[a-z-]+(?:\s*,\s*[a-z-]+)*\])")


@lru_cache(maxsize=1)
def parsed(text: str) -> tuple[ast.AST, ...]:
    """Every node of a file: parsed and walked once for all rules, and not kept."""
    return tuple(ast.walk(ast.parse(text)))


@dataclass(frozen=True)
class File:
    """One file of the project: its path from the root, and its text."""

    path: str
    text: str

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        """The parsed text."""
        return parsed(self.text)

    @property
    def module(self) -> str:
        """The path under src/perkey; empty elsewhere."""
        return self.path.removeprefix("src/perkey/") if self.path.startswith("src/perkey/") else ""

    @property
    def ring(self) -> str:
        """The package or module under src/perkey this file belongs to; the package root is `perkey`."""
        first = self.module.split("/", maxsplit=1)[0].removesuffix(".py")
        return "perkey" if first == "__init__" else first


Rule = Callable[[File], Iterator[str]]


def imported(file: File) -> Iterator[tuple[int, str]]:
    """Every module a file imports, wherever the import stands; `from perkey import x` gives perkey.x."""
    for node in file.nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "perkey":
            yield from ((node.lineno, f"perkey.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." * node.level + (node.module or "")


def rings_point_inwards(file: File) -> Iterator[str]:
    """A ring imports only what its line in RINGS allows; nothing imports the command line.

    Nor what stands beside src: the wheel is without it.
    """
    if file.module and file.ring not in RINGS:
        yield f"{file.path}: {file.ring} has no line in RINGS"
        return
    allowed = RINGS[file.ring] | {file.ring} if file.module else set(RINGS)
    for line, name in imported(file):
        if file.module and name.startswith("."):
            yield f"{file.path}:{line}: relative import {name}"
        if file.module and name.split(".")[0] in BESIDE:
            yield f"{file.path}:{line}: {name} is not in the wheel"
        target = name.split(".")[1] if name.startswith("perkey.") else "perkey"
        # What `from perkey import App` names is the package root's.
        target = target if target in RINGS else "perkey"
        if file.module and name.split(".")[0] == "perkey" and target not in allowed:
            yield f"{file.path}:{line}: {file.ring} imports {name}"


def rooms_know_each_other_downwards(file: File) -> Iterator[str]:
    """The runtime's run is over its member and its calls, which do not know each other."""
    rooms = ROOMS.get(file.ring, {})
    here = file.module.split("/")[1] if "/" in file.module else ""
    allowed = rooms.get(here, set()) | {here}
    for line, name in imported(file):
        room = f"{name}..".split(".")[2]
        if name.startswith(f"perkey.{file.ring}.") and room in rooms and room not in allowed:
            yield f"{file.path}:{line}: {here or file.ring} imports {name}"


def pure_rings_need_nothing(file: File) -> Iterator[str]:
    """Core, codec and the basic modules import the standard library only (codec also zstandard)."""
    if file.ring not in PURE:
        return
    allowed = PURE[file.ring] | set(sys.stdlib_module_names) | {"perkey"}
    for line, name in imported(file):
        if name.split(".")[0] not in allowed:
            yield f"{file.path}:{line}: {file.ring} imports {name}"


def libraries_have_one_home(file: File) -> Iterator[str]:
    """confluent_kafka, ctypes and pyspark are imported in their own places only."""
    if not file.module:
        return
    for line, name in imported(file):
        homes = HOMES.get(name.split(".")[0])
        if homes and not file.module.startswith(homes):
            yield f"{file.path}:{line}: {name} belongs in {', '.join(homes)}"


def the_core_does_nothing(file: File) -> Iterator[str]:
    """The core, and who reads it, have no clock, chance, threads, files or log: events bring all."""
    if file.ring not in ("core", "account"):
        return
    for line, name in imported(file):
        if name.split(".")[0] in IMPURE:
            yield f"{file.path}:{line}: {file.ring} imports {name}"
    for node in file.nodes:
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Name) and called.id in IMPURE_CALLS:
            yield f"{file.path}:{called.lineno}: {file.ring} calls {called.id}"


def threads_are_guarded(file: File) -> Iterator[str]:
    """The runtime's and Kafka's threads come from guard.py: none dies unheard."""
    if file.ring not in ("runtime", "kafka") or file.module == "guard.py":
        return
    for node in file.nodes:
        called = node.func if isinstance(node, ast.Call) else None
        name = getattr(called, "attr", getattr(called, "id", ""))
        if name == "Thread":
            yield f"{file.path}:{node.lineno}: a bare Thread: use guard.thread"


def functions_are_short(file: File) -> Iterator[str]:
    """A function is at most 80 lines, its docstring included."""
    for node in file.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{file.path}:{node.lineno}: {node.name} has {lines} lines"


def files_are_short(file: File) -> Iterator[str]:
    """A file, and a test file, is at most 600 lines."""
    most = TEST_FILE_LINES_MAX if file.path.startswith("tests/") else FILE_LINES_MAX
    lines = len(file.text.splitlines())
    if lines > most:
        yield f"{file.path}: {lines} lines, at most {most}"


def each_test_says_what_it_tests(file: File) -> Iterator[str]:
    """Every test has a docstring that states the behaviour."""
    if not Path(file.path).name.startswith("test_"):
        return
    for node in file.nodes:
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name.startswith("test")
            and not ast.get_docstring(node)
        ):
            yield f"{file.path}:{node.lineno}: {node.name} has no docstring"


def no_test_sleeps(file: File) -> Iterator[str]:
    """A test waits for a condition with a limit; a sleep that is a handler's work says so beside it."""
    if not file.path.startswith("tests/"):
        return
    lines = file.text.splitlines()
    for node in file.nodes:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func) == "time.sleep"
            and "#" not in lines[node.lineno - 1]
        ):
            yield f"{file.path}:{node.lineno}: time.sleep in a test"


def suppressions_have_reasons(file: File) -> Iterator[str]:
    """A noqa, a type: ignore and a no cover each have a code (where there is one) and a reason."""
    if not any(SUPPRESSION.search(line) for line in file.text.splitlines()):
        return
    for token in tokenize.generate_tokens(io.StringIO(file.text).readline):
        found = SUPPRESSION.search(token.string) if token.type == tokenize.COMMENT else None
        if found is None:
            continue
        kind, rest = found[1], found[2].strip()
        code = CODES.match(rest)
        if code is None and not kind.startswith("pragma"):
            yield f"{file.path}:{token.start[0]}: {kind} without a code"
        reason = rest[code.end() :] if code else rest
        if sum(letter.isalpha() for letter in reason) < REASON_LETTERS_MIN:
            yield f"{file.path}:{token.start[0]}: {kind} without a reason"


def nothing_is_left_undone(file: File) -> Iterator[str]:
    """No marks of unfinished work, and nothing that only says it is not implemented."""
    if file.path.startswith(("src/", "simulators/", "demo/")):
        yield from _lines_with(UNDONE, file, "left undone")


def nothing_is_private(file: File) -> Iterator[str]:
    """No registry's host name and no path of one machine."""
    yield from _lines_with(PRIVATE, file, "a registry's host name or a machine's path")


def _lines_with(pattern: re.Pattern[str], file: File, problem: str) -> Iterator[str]:
    for number, line in enumerate(file.text.splitlines(), 1):
        if pattern.search(line):
            yield f"{file.path}:{number}: {problem}"


CODE_RULES: list[Rule] = [
    rings_point_inwards, rooms_know_each_other_downwards, pure_rings_need_nothing, libraries_have_one_home, the_core_does_nothing,
    threads_are_guarded, functions_are_short, files_are_short, each_test_says_what_it_tests, no_test_sleeps,
    suppressions_have_reasons, nothing_is_left_undone,
]  # fmt: skip


@cache
def project_files() -> list[File]:
    """Every text file git has or would take, as it is on disk."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    files = []
    for path in listed:
        try:
            files.append(File(path, (ROOT / path).read_text(encoding="utf-8")))
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue  # An image, or deleted since.
    return files


def broken(*rules: Rule, python: bool) -> list[str]:
    """What breaks a rule in the whole project."""
    files = [f for f in project_files() if not python or f.path.endswith(".py")]
    return [problem for file in files for rule in rules for problem in rule(file)]


@pytest.mark.push
def test_the_code_keeps_the_rules() -> None:
    """No Python file of the project breaks one of them; each is parsed once, by one worker."""
    assert broken(*CODE_RULES, python=True) == []


def test_no_file_is_private_to_a_machine() -> None:
    """No file of the project, code or not, names a registry's host or one machine's path."""
    assert broken(nothing_is_private, python=False) == []


def test_asserts_are_on() -> None:
    """The tests run with assertions: `python -O` would make all of them pass."""
    assert sys.flags.optimize == 0


MUTANTS: list[tuple[Rule, str, str]] = [
    (rings_point_inwards, "src/perkey/core/x.py", "from perkey.kafka import consumer"),
    (rings_point_inwards, "src/perkey/core/x.py", "def f():\n    import perkey.runtime.member"),
    (rings_point_inwards, "src/perkey/core/x.py", "from perkey import kafka"),
    (rings_point_inwards, "src/perkey/core/x.py", "from perkey import App"),
    (rings_point_inwards, "src/perkey/core/x.py", "from . import y"),
    (rings_point_inwards, "src/perkey/codec/x.py", "from perkey.core import engine"),
    (rings_point_inwards, "src/perkey/spark/x.py", "from perkey.cli import main"),
    (rings_point_inwards, "src/perkey/new/x.py", "import json"),
    (rings_point_inwards, "src/perkey/testing/x.py", "from simulators.core import runner"),
    (
        rooms_know_each_other_downwards,
        "src/perkey/runtime/calls/x.py",
        "from perkey.runtime.member.member import Member",
    ),
    (
        rooms_know_each_other_downwards,
        "src/perkey/runtime/member/x.py",
        "def f():\n    import perkey.runtime.calls.aio",
    ),
    (
        rooms_know_each_other_downwards,
        "src/perkey/runtime/calls/processes/x.py",
        "from perkey.runtime.run.run import Run",
    ),
    (
        rooms_know_each_other_downwards,
        "src/perkey/runtime/door.py",
        "import perkey.runtime.member.group_membership",
    ),
    (pure_rings_need_nothing, "src/perkey/core/x.py", "import zstandard"),
    (pure_rings_need_nothing, "src/perkey/codec/x.py", "import numpy as np"),
    (pure_rings_need_nothing, "src/perkey/types.py", "from pydantic import BaseModel"),
    (libraries_have_one_home, "src/perkey/runtime/x.py", "from confluent_kafka import Consumer"),
    (libraries_have_one_home, "src/perkey/kafka/x.py", "import ctypes"),
    (libraries_have_one_home, "src/perkey/observe/x.py", "import zstandard"),
    (libraries_have_one_home, "src/perkey/app.py", "import pyspark.sql"),
    (libraries_have_one_home, "src/perkey/spark/fleet.py", "import confluent_kafka"),
    (the_core_does_nothing, "src/perkey/core/x.py", "import time"),
    (the_core_does_nothing, "src/perkey/account/x.py", "import time"),
    (the_core_does_nothing, "src/perkey/core/x.py", "from random import random"),
    (the_core_does_nothing, "src/perkey/core/x.py", "import logging.handlers"),
    (the_core_does_nothing, "src/perkey/core/x.py", "def f():\n    print(1)"),
    (threads_are_guarded, "src/perkey/runtime/x.py", "threading.Thread(target=f).start()"),
    (threads_are_guarded, "src/perkey/kafka/x.py", "Thread(target=f, name='perkey-x')"),
    (functions_are_short, "src/perkey/x.py", "def f():\n" + "    pass\n" * FUNCTION_LINES_MAX),
    (functions_are_short, "tests/x.py", "async def f():\n" + "    pass\n" * FUNCTION_LINES_MAX),
    (files_are_short, "src/perkey/x.py", "x = 1\n" * (FILE_LINES_MAX + 1)),
    (files_are_short, "tests/x.py", "x = 1\n" * (TEST_FILE_LINES_MAX + 1)),
    (each_test_says_what_it_tests, "tests/test_x.py", "def test_x():\n    assert True"),
    (
        each_test_says_what_it_tests,
        "tests/test_x.py",
        "class TestX:\n    async def test_x(self): ...",
    ),
    (no_test_sleeps, "tests/test_x.py", "import time\ntime.sleep(1)"),
    (suppressions_have_reasons, "src/perkey/x.py", "x = 1  # noqa"),
    (suppressions_have_reasons, "src/perkey/x.py", "x = 1  # noqa: E501"),
    (suppressions_have_reasons, "src/perkey/x.py", "x = 1  # type: ignore[arg-type]"),
    (suppressions_have_reasons, "src/perkey/x.py", "x = 1  # type: ignore  # because it is so"),
    (suppressions_have_reasons, "src/perkey/x.py", "x = 1  # pragma: no cover"),
    (nothing_is_left_undone, "src/perkey/x.py", "x = 1  # TODO later"),
    (nothing_is_left_undone, "src/perkey/x.py", "raise NotImplementedError"),
    (nothing_is_private, "docs/x.md", "see https://py\x70i.org/x"),
    (nothing_is_private, "Makefile", "cd /w\x6frk/main"),
]

HARMLESS: list[tuple[Rule, str, str]] = [
    (rings_point_inwards, "src/perkey/core/x.py", "from perkey.types import Record\nimport heapq"),
    (rings_point_inwards, "src/perkey/cli/x.py", "from perkey.broker import LocalBroker"),
    (rings_point_inwards, "tests/unit/x.py", "from perkey.cli.main import run"),
    (
        rooms_know_each_other_downwards,
        "src/perkey/runtime/run/x.py",
        "from perkey.runtime.member.member import Member\nfrom perkey.runtime.calls import aio",
    ),
    (
        rooms_know_each_other_downwards,
        "src/perkey/runtime/calls/x.py",
        "from perkey.runtime.calls import aio\nfrom perkey.runtime.door import Door",
    ),
    (
        rooms_know_each_other_downwards,
        "src/perkey/app.py",
        "from perkey.runtime.run.run import Run",
    ),
    (pure_rings_need_nothing, "src/perkey/codec/x.py", "import zstandard\nimport struct"),
    (libraries_have_one_home, "src/perkey/kafka/clib.py", "import ctypes"),
    (libraries_have_one_home, "src/perkey/spark/source/x.py", "import confluent_kafka"),
    (libraries_have_one_home, "tests/x.py", "import ctypes"),
    (the_core_does_nothing, "src/perkey/kafka/x.py", "import time\nprint(1)"),
    (
        functions_are_short,
        "src/perkey/x.py",
        "def f():\n" + "    pass\n" * (FUNCTION_LINES_MAX - 1),
    ),
    (files_are_short, "src/perkey/x.py", "x = 1\n" * FILE_LINES_MAX),
    (files_are_short, "tests/x.py", "x = 1\n" * TEST_FILE_LINES_MAX),
    (each_test_says_what_it_tests, "tests/test_x.py", 'def test_x():\n    """It works."""'),
    (no_test_sleeps, "tests/test_x.py", "time.sleep(1)  # the handler's work"),
    (suppressions_have_reasons, "src/perkey/x.py", "x = 1  # noqa: E501  # a vector on one line"),
    (suppressions_have_reasons, "src/perkey/x.py", "x = '# noqa'"),
    (nothing_is_private, "src/perkey/x.py", "home = Path.home()"),
]


@pytest.mark.parametrize(("rule", "path", "text"), MUTANTS)
def test_each_rule_goes_red(rule: Rule, path: str, text: str) -> None:
    """A snippet that breaks the rule is found by it."""
    assert list(rule(File(path, text)))


@pytest.mark.parametrize(("rule", "path", "text"), HARMLESS)
def test_each_rule_stays_green(rule: Rule, path: str, text: str) -> None:
    """A snippet at the limit, or that only looks like a breach, is left alone."""
    assert list(rule(File(path, text))) == []


def test_every_rule_has_a_mutant() -> None:
    """No rule is without a snippet that turns it red."""
    assert {rule for rule, _, _ in MUTANTS} == {*CODE_RULES, nothing_is_private}
