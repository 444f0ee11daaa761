"""Mutation testing: the source is broken in one place at a time, and a test must notice.

    python -m tests.support.mutate core --sample 80
    python -m tests.support.mutate core --within 'lanes.*rejoin' --sample 1000

draws so many mutants of a package (or of one place in it) from a seed, runs for each the tests that
need no broker until the first fails, and lists those that nothing noticed, with file, line and
change. The likeliest tests come first: those named after the file, then those that noticed most so
far. What all of these let through meets the simulator's seeds, in the end those of a push; how many
it alone noticed is told. What cannot be noticed, because it changes nothing that is promised,
stands with its reason in tests/data/mutants-kept.txt, and does not count.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import inspect
import json
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import IO, Any

import pytest

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "tests" / "data" / "mutants-kept.txt"
NO_BROKER = "not (broker or spark or java or long)"
FAST = f"{NO_BROKER} and not push"
SIMULATION = "tests/simulation/"
LIMIT_S = 300.0
LIMIT_TIMES = 4  # a busy machine is no test: so many times as long as all of them take as it is


@dataclass(frozen=True)
class Package:
    """What is broken, what must notice, and how often."""

    folder: str
    #: files or folders
    tests: tuple[str, ...]
    percent: int
    #: parts of a push that need no broker either, for what the others let through
    push: tuple[str, ...] = ()


PACKAGES = {
    "codec": Package("codec", ("tests/unit/codec", "tests/property/test_codec_roundtrip.py"), 95),
    "core": Package(
        "core",
        (
            "tests/unit/core",
            "tests/property/test_core_partition.py",
            "tests/simulation/test_seeds.py",
        ),
        90,
        ("tests/simulation/test_seeds.py::test_seeds_of_each_profile",),
    ),
    "runtime": Package(
        "runtime",
        (
            "tests/unit/runtime",
            "tests/unit/test_app.py",
            "tests/unit/testing",
            "tests/unit/kafka",
            "tests/simulation/test_runtime_seeds.py",
            "tests/contract",
        ),
        75,
        ("tests/simulation/test_runtime_seeds.py::test_seeds_that_once_failed",),
    ),
}
SLOW_S = 1.0  # such tests come after the quick ones

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
}  # fmt: skip
TOLD = {"event", "debug", "info", "warning", "error", "exception", "critical", "note"}  # logs


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    path: str
    line: int
    where: str
    before: str
    after: str
    #: the line as it stands in the file
    text: str
    tree: ast.Module = field(compare=False, repr=False)
    old: ast.AST = field(compare=False, repr=False)
    new: ast.AST = field(compare=False, repr=False)

    @property
    def source(self) -> str:
        """The whole file with this change."""
        return _with(self.tree, self.old, self.new)

    @property
    def name(self) -> str:
        """The same as long as its line is."""
        return f"{self.path} {self.where}: {self.before} -> {self.after} in {self.text}"

    def __str__(self) -> str:
        return f"{self.path}:{self.line} in {self.where}\n    - {self.before}\n    + {self.after}\n      {self.text}"


# -- making ----------------------------------------------------------------------------------------


def mutants_of(path: str, text: str) -> Iterator[Mutant]:
    """Every change that is known how to make."""
    tree, lines = ast.parse(text), text.splitlines()
    for node, where in _places(tree, []):
        for changed in _changes(node):
            yield Mutant(
                path,
                getattr(node, "lineno", 0),
                where or "module",
                _short(node),
                _short(changed),
                lines[getattr(node, "lineno", 1) - 1].strip(),
                tree,
                node,
                changed,
            )


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 90 else text[:87] + "..."


def _places(node: ast.AST, inside: list[str]) -> Iterator[tuple[ast.AST, str]]:
    """Every node that runs, with the function it is in; annotations and log lines do not count."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_told(child):
                continue
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            deeper = [*inside, child.name] if named else inside
            yield child, ".".join(deeper)
            yield from _places(child, deeper)


def _is_told(node: ast.AST) -> bool:
    """A log line, a docstring, or what is for type checkers."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return True
    if isinstance(node, ast.Raise | ast.Assert):
        return True  # the words of an error; what an assert says is checked by running it
    if not isinstance(node, ast.Expr):
        return False
    call = node.value
    if isinstance(call, ast.Constant):
        return True
    name = getattr(call, "func", None)
    return getattr(name, "attr", getattr(name, "id", "")) in TOLD


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        yield _replaced(node, ops=[COMPARISONS[type(node.ops[0])](), *node.ops[1:]])
    elif isinstance(node, ast.BoolOp):
        yield _replaced(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.If | ast.IfExp):
        yield _replaced(node, test=ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        yield _replaced(node, op=OPERATORS[type(node.op)]())
    elif isinstance(node, ast.Constant):
        yield from _constants(node)
    elif (
        isinstance(node, ast.AugAssign | ast.Delete)
        or (isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name | ast.Tuple))
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
    ):
        yield ast.Pass()
    elif isinstance(node, ast.Call):
        yield from _calls(node)


def _constants(node: ast.Constant) -> Iterator[ast.AST]:
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield ast.Constant(node.value + 1)
        yield ast.Constant(node.value - 1)


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    if isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
        other = "max" if node.func.id == "min" else "min"
        yield _replaced(node, func=ast.Name(other, ast.Load()))
    elif len(node.args) >= 2 and not any(isinstance(arg, ast.Starred) for arg in node.args[:2]):
        first, second, *rest = node.args
        if ast.dump(first) != ast.dump(second):
            yield _replaced(node, args=[second, first, *rest])


def _replaced(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


class _Swap(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self._new if node is self._old else self.generic_visit(node)


def _with(tree: ast.Module, old: ast.AST, new: ast.AST) -> str:
    memo: dict[int, object] = {}
    copied = copy.deepcopy(tree, memo)
    twin = memo[id(old)]
    assert isinstance(twin, ast.AST)
    return ast.unparse(ast.fix_missing_locations(_Swap(twin, new).visit(copied)))


def drawn(package: Package, sample: int, seed: int, within: str = "") -> list[Mutant]:
    """So many mutants of the package, the same for the same seed."""
    every: list[Mutant] = []
    for path in sorted((ROOT / "src" / "perkey" / package.folder).rglob("*.py")):
        name = path.relative_to(ROOT / "src").as_posix()
        every += mutants_of(name, path.read_text())
    every = [mutant for mutant in every if re.search(within, f"{mutant.path} {mutant.where}")]
    return random.Random(seed).sample(every, min(sample, len(every)))


# -- running ---------------------------------------------------------------------------------------


class Run:
    """A pytest plugin: once all tests are collected, each mutant meets them in a child of its own.

    The child takes the broken function into the modules that are there already, which saves loading
    them again; a mutant outside of functions is loaded by a pytest of its own. Processes that a
    test starts find the broken source on their path.
    """

    def __init__(self, package: Package, mutants: Sequence[Mutant]) -> None:
        self._package = package
        self._mutants = mutants
        self._items: list[pytest.Item] = []
        #: how many mutants each test was the first to notice, and how long it took as things are
        self._noticed: Counter[str] = Counter()
        self._took_s: dict[str, float] = {}
        self._failed = ""
        self._limit_s = 10 * LIMIT_S
        self.alive: list[Mutant] = []
        #: how many only the simulator has noticed
        self.simulated = 0
        self.sound = False

    # -- as a plugin -------------------------------------------------------------------------------

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of the tests, once for each mutant."""
        self._items = [item for item in session.items if self._wanted(item)]
        self.sound = self._noticing(None, "") == ""
        self._limit_s = max(LIMIT_S, LIMIT_TIMES * sum(self._took_s.values()))
        if self.sound:
            for number, mutant in enumerate(self._mutants, 1):
                self._meet(number, mutant)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """In the child: a test is over."""
        self._took_s[report.nodeid] = self._took_s.get(report.nodeid, 0.0) + report.duration
        if report.failed and not self._failed:
            self._failed = report.nodeid

    def _wanted(self, item: pytest.Item) -> bool:
        """Those of a push only where the package names them."""
        named = any(item.nodeid.startswith(test) for test in self._package.push)
        return named or item.get_closest_marker("push") is None

    # -- one mutant --------------------------------------------------------------------------------

    def _meet(self, number: int, mutant: Mutant) -> None:
        with tempfile.TemporaryDirectory(prefix="perkey-mutant-") as folder:
            shutil.copytree(ROOT / "src" / "perkey", Path(folder) / "perkey")
            (Path(folder) / mutant.path).write_text(mutant.source)
            code = broken_code(mutant)
            noticing = self._elsewhere(folder) if code is None else self._noticing(mutant, folder)
        self._noticed[noticing] += 1
        self.simulated += noticing.startswith(SIMULATION)
        if not noticing:
            self.alive.append(mutant)
            print(f"survived: {mutant}", file=sys.stderr, flush=True)
        if number % 10 == 0:
            told = f"{number} of {len(self._mutants)}, {len(self.alive)} survived"
            print(told, file=sys.stderr, flush=True)

    def _noticing(self, mutant: Mutant | None, folder: str) -> str:
        """The first test that fails; empty where none does."""
        with tempfile.TemporaryFile() as told:
            child = os.fork()
            if child == 0:
                self._in_child(mutant, folder, told)
            late = not _ended(child, self._limit_s)
            os.waitpid(child, 0)
            told.seek(0)
            answer = told.read().decode()
        if late:
            return "(a time limit)"
        if not answer:
            return "(the end of its process)"
        failed, took_s = json.loads(answer)
        if mutant is None:
            self._took_s = took_s
            if failed:
                print(f"fails as it is: {failed}", file=sys.stderr)
        return str(failed)

    def _in_child(self, mutant: Mutant | None, folder: str, told: IO[bytes]) -> None:
        os.setsid()
        reporter: Any = self._items[0].config.pluginmanager.getplugin("terminalreporter")
        reporter._tw._file = open(os.devnull, "w")  # noqa: PTH123, SIM115 - until the child ends
        for descriptor in (1, 2):
            os.dup2(reporter._tw._file.fileno(), descriptor)
        if mutant is not None:
            sys.path.insert(0, folder)
            os.environ["PYTHONPATH"] = folder
            take_in(mutant)
        for item in sorted(self._items, key=lambda item: self._unlikely(item, mutant)):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if self._failed:
                break
        told.write(json.dumps([self._failed, self._took_s]).encode())
        told.flush()
        os._exit(0)

    def _unlikely(self, item: pytest.Item, mutant: Mutant | None) -> tuple[int, bool, int, float]:
        push = item.get_closest_marker("push") is not None
        late = push + item.nodeid.startswith(SIMULATION)
        named = mutant is not None and item.path.stem == f"test_{Path(mutant.path).stem}"
        took_s = self._took_s.get(item.nodeid, 0.0)
        slow = took_s > SLOW_S
        return (late, slow or not named, slow - self._noticed[item.nodeid], took_s)

    def _elsewhere(self, folder: str) -> str:
        """The same in a pytest of its own."""
        command = [
            sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header",
            "-p", "no:xdist", "--timeout=45", "--tb=no", "-m", FAST, *self._package.tests,
        ]  # fmt: skip
        environment = os.environ | {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        late = not _ended(process.pid, self._limit_s)
        return "(loaded anew)" if late or process.wait() else ""


def _ended(child: int, limit_s: float) -> bool:
    """Wait for a process with a group of its own, for so long; nothing of it is left behind."""
    watched = os.pidfd_open(child)
    try:
        return bool(select.select([watched], [], [], limit_s)[0])
    finally:  # also where we are ended ourselves
        os.close(watched)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)


def broken_code(mutant: Mutant) -> tuple[str, CodeType] | None:
    """The outermost function that holds the change, and its code; None outside of functions."""
    before = dict(_codes(compile(ast.unparse(mutant.tree), "", "exec")))
    for name, code in _codes(compile(mutant.source, "", "exec")):
        if f"{mutant.where}.".startswith(f"{name}.") and code != before.get(name):
            return name, code
    return None


def _codes(module: CodeType) -> Iterator[tuple[str, CodeType]]:
    """Functions of a module and its classes, not those inside functions."""
    for one in module.co_consts:
        if isinstance(one, CodeType):
            if one.co_flags & inspect.CO_OPTIMIZED:
                yield one.co_qualname, one
            else:  # a class
                yield from _codes(one)


def take_in(mutant: Mutant) -> None:
    """Break the function where it is loaded."""
    found = broken_code(mutant)
    assert found is not None
    name, code = found
    module = mutant.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    owner: Any = importlib.import_module(module)
    for part in name.split("."):
        owner = vars(owner)[part]
    function = getattr(owner, "fget", None) or inspect.unwrap(getattr(owner, "__func__", owner))
    function.__code__ = code


def kept() -> dict[str, str]:
    """Mutants that may survive, with the reason."""
    found = {}
    for line in KEPT.read_text().splitlines() if KEPT.exists() else ():
        if line and not line.startswith("#"):
            name, _, reason = line.partition("  ## ")
            found[name.strip()] = reason
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants of one package; 1 when too few are noticed."""
    parser = argparse.ArgumentParser(description="Break the source, see whether a test notices.")
    parser.add_argument("package", choices=sorted(PACKAGES))
    parser.add_argument("--sample", type=int, default=60, help="how many mutants")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument(
        "--within", default="", help="only where this pattern is: file.py Class.name"
    )
    parser.add_argument("-k", dest="chosen", default="", help="only these tests, as pytest's -k")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    package, excused = PACKAGES[options.package], kept()
    every = drawn(package, options.sample, options.seed, options.within)
    mutants = [m for m in every if m.name not in excused]
    began, run = time.monotonic(), Run(package, mutants)
    pytest.main(
        ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--timeout=45",
         "-m", NO_BROKER,
         "-k", options.chosen, *package.tests],
        [run],
    )  # fmt: skip
    if not run.sound:
        print("the tests fail as they are: mend them first")
        return 2
    percent = 100.0 * (len(mutants) - len(run.alive)) / max(1, len(mutants))
    print(
        f"{options.package}: {len(mutants)} mutants of seed {options.seed}, {percent:.0f} % noticed "
        f"(wanted {package.percent}; {run.simulated} of them by the simulator alone), "
        f"{len(every) - len(mutants)} more are kept with a reason, "
        f"{time.monotonic() - began:.0f} s"
    )
    return 0 if percent >= package.percent else 1


if __name__ == "__main__":
    sys.exit(main())
