"""What the docs claim, held to the code."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import subprocess
import sys
import threading
import time
import tomllib
import types
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import perkey
from perkey.app_options import AppOptions
from perkey.core.states import COMMIT_TABLE, EPOCH_TABLE, RECORD_TABLE
from perkey.handler_types import RunOptions
from perkey.options import HandlerOptions
from perkey.runtime.member import outputs
from perkey.testing import run

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src/perkey"
BESIDE = (ROOT / "simulators", ROOT / "demo")
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


@pytest.mark.push
def test_the_diagrams_are_those_of_the_tables() -> None:
    """The state diagrams in the architecture page are generated from the tables and fresh."""
    check = subprocess.run([sys.executable, str(ROOT / "docs/generate.py"), "--check"], check=False)
    assert check.returncode == 0, "stale: run `make docs`"


def test_every_change_of_state_is_drawn() -> None:
    """The diagrams show each change that the tables allow, and its reason."""
    text = (ROOT / "docs/architecture.md").read_text()
    tables = (RECORD_TABLE, EPOCH_TABLE, COMMIT_TABLE)
    whys = {why for table in tables for why in table.values()} - {"epoch ended"}  # told in words
    drawn = [why for why in sorted(whys) if f": {why}\n" not in text]
    assert [why for why in drawn if f"| {why}" not in text and f"; {why}" not in text] == []


def _candidates(named: str) -> list[Path]:
    """The files that a page may mean: `core/` and `runtime/` need not be said."""
    whole = [root / named for root in (ROOT, SRC.parent, SRC) if (root / named).is_file()]
    if whole:
        return whole
    rooms = [*(SRC / "core").rglob("*.py"), *(SRC / "runtime").rglob("*.py")]
    return [path for path in rooms if path.as_posix().endswith(f"/{named}")]


def _defines(path: Path, name: str) -> bool:
    return bool(
        re.search(rf"^\s*(?:async )?(?:def|class) {name}\b", path.read_text(), re.MULTILINE)
    )


def _gone(text: str) -> list[str]:
    """Of every `file.py:function` and `folder/file.py`: what is not in the code, or is anybody's."""
    gone = []
    for file, function in re.findall(r"`([\w/]+\.py)(?::(\w+))?`", text):
        found = _candidates(file)
        if function and (len(found) != 1 or not _defines(found[0], function)):
            gone.append(f"{file}:{function}")
        elif "/" in file and not found:
            gone.append(file)
    return gone


def _gone_in_steps(text: str) -> list[str]:
    """Of the names without a file in a walk's steps: what no file of that step defines."""
    walks = text.partition("## The walks")[2].partition("## Non-obvious")[0]
    gone = []
    for step in re.split(r"\n(?=\d\. |\n|#)", walks):
        files = [path for one in re.findall(r"`([\w/]+\.py)", step) for path in _candidates(one)]
        bare = re.findall(r"`(\w+)`", step)
        gone += [name for name in bare if not any(_defines(path, name) for path in files)]
    return gone


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_functions_that_a_page_names_exist(page: Path) -> None:
    """Every `file.py:function` and `folder/file.py` of a page is in the code, once."""
    assert _gone(page.read_text()) == []


def test_the_walks_name_functions_that_exist() -> None:
    """A function that a walk names without its file is in a file that the same step names."""
    text = (ROOT / "docs/how-it-works/walks.md").read_text()
    assert len(re.findall(r"`[\w/]+\.py:\w+`", text)) > 50
    assert _gone_in_steps(text) == []


@pytest.mark.parametrize(
    "named",
    ["engine.py:no_such", "no_such.py:take", "core/no_such.py", "__init__.py:start"],
    ids=["function", "file", "path", "of two files"],
)
def test_a_page_that_names_what_is_gone_is_found(named: str) -> None:
    """The check of files and functions sees one that is not there, or could be either of two."""
    assert _gone(f"Go to `{named}` and `engine.py:polled`.") == [named]


def test_a_step_that_names_what_is_gone_is_found() -> None:
    """So does the check of the walks: `_fill` is in engine.py, `_spill` nowhere."""
    text = "## The walks\n\n1. `engine.py:_turn` → `_fill`.\n2. `engine.py:_turn` → `_spill`.\n"
    assert _gone_in_steps(text) == ["_spill"]


def _docstrings() -> dict[str, str]:
    """What every module says of itself, by its path."""
    paths = [path for folder in (SRC, *BESIDE) for path in folder.rglob("*.py")]
    texts = {path: ast.get_docstring(ast.parse(path.read_text())) for path in paths}
    return {path.relative_to(ROOT).as_posix(): text or "" for path, text in texts.items()}


def _files_gone(texts: dict[str, str]) -> list[str]:
    """Python files that one of these names and nobody has."""
    folders = (SRC, *BESIDE, ROOT / "docs", ROOT / "tests", ROOT / "benchmarks")
    paths = [f"/{path.as_posix()}" for folder in folders for path in folder.rglob("*.py")]
    return [
        f"{module} names {named}"
        for module, text in texts.items()
        for named in re.findall(r"[\w/]+\.py\b", text)
        if not any(path.endswith(f"/{named}") for path in paths)
    ]


def test_files_that_a_module_names_exist() -> None:
    """No module says of itself that something is in a file that is gone."""
    assert _files_gone(_docstrings()) == []


def test_a_module_that_names_a_file_that_is_gone_is_found() -> None:
    """So it is seen when a file is renamed, and where it is still called by its former name."""
    assert _files_gone({"x.py": "See core/engine.py and window.py."}) == ["x.py names window.py"]


def test_every_file_of_the_package_is_listed() -> None:
    """The pages of files have a section for each folder with modules."""
    pages = sorted((ROOT / "docs/how-it-works").glob("files*.md"))
    text = "".join(path.read_text() for path in pages)
    folders = {path.parent.relative_to(SRC.parent) for path in SRC.rglob("*.py")}
    names = {folder.as_posix().removeprefix("perkey/") for folder in folders}
    assert [name for name in sorted(names) if f"\n## `{name}/`\n" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """Every relative link names a file that exists."""
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_links_of_the_readme_work_on_every_page_that_shows_it() -> None:
    """They are absolute, as the package index needs them, and each names a file of this tree."""
    text = (ROOT / "README.md").read_text()
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    start = f"{urls['Repository']}/blob/main/"
    links = dict(re.findall(r"^\[([\w-]+)\]: (\S+)$", text, flags=re.MULTILINE))
    assert [link for link in links.values() if not link.startswith(start)] == []
    missing = [link for link in links.values() if not (ROOT / link.removeprefix(start)).exists()]
    assert missing == []
    used = re.findall(r"\[([^\]]+)\]\[([\w-]*)\]", text)
    assert {name or title.lower() for title, name in used} == set(links)
    assert re.findall(r"\]\([^)]*\)", text) == [], "give README's links as [text][name]"


def test_every_option_is_documented() -> None:
    """docs/options.md has a row for every parameter of App, consume and run."""
    text = (ROOT / "docs/options.md").read_text()
    options = [one.name for taken in (AppOptions, HandlerOptions) for one in fields(taken)]
    for name in [*options, *RunOptions.__annotations__]:
        assert name == "function" or f"`{name}`" in text, f"{name} is not in docs/options.md"


def test_the_readmes_twenty_lines_work_when_pasted() -> None:
    """The example of the README handles records, each within its time, and produces what it says."""
    text = (ROOT / "README.md").read_text()
    code = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)[0]
    assert "timeout_s=" in code
    names: dict[str, object] = {"__name__": "pasted"}
    exec(compile(code, "README.md", "exec"), names)
    app = names["app"]
    assert isinstance(app, perkey.App)
    results = run(app, [(b"car", b'{"speed_kmh": 150}'), (b"car", b'{"speed_kmh": 50}')])
    assert [result.outcome for result in results] == ["done", "done"]
    assert [sent.topic for sent in results[0].outputs] == ["gps.alerts"]


def test_versions_in_the_readme_are_those_that_are_tested() -> None:
    """What was measured and tested, on which versions: those that the build files name."""
    readme = (ROOT / "README.md").read_text().replace("\n", " ")
    pom, lock = (ROOT / "java/pom.xml").read_text(), (ROOT / "requirements-dev.txt").read_text()
    (java,) = re.findall(r"parallel-consumer-core</artifactId>\s*<version>([\d.]+)<", pom)
    (spark,) = re.findall(r"^pyspark==(\d+\.\d+)", lock, re.MULTILINE)
    (kafka,) = (path.name for path in (SRC / "broker").glob("kafka-*.sha256"))
    assert f"Java Parallel Consumer {java} on the same machine" in readme
    assert (
        f"Apache Kafka {kafka.removeprefix('kafka-').rpartition('.')[0].rpartition('.')[0]} "
        in readme
    )
    assert f"and PySpark {spark}." in readme


def test_every_header_of_a_dead_letter_is_documented() -> None:
    """docs/options.md names what `runtime/member/outputs.py` writes."""
    written = set(re.findall(r'"(__dlq[\w.]+\w)"', inspect.getsource(outputs)))
    text = (ROOT / "docs/options.md").read_text()
    assert len(written) >= 6
    assert [name for name in sorted(written) if f"`{name}`" not in text] == []


def test_every_option_of_the_policies_is_documented() -> None:
    """docs/options.md names every parameter of Retry, Commit, Batch and DeadLetter."""
    text = (ROOT / "docs/options.md").read_text()
    for policy in (perkey.Retry, perkey.Commit, perkey.Batch, perkey.DeadLetter):
        for name in set(inspect.signature(policy).parameters) - {"topic"}:
            assert f"{name}=" in text, f"{policy.__name__}({name}=) is not in docs/options.md"


@pytest.mark.push
def test_the_page_for_beginners_works_when_pasted(tmp_path: Path) -> None:
    """Its app and its test, in two files, as it says."""
    code = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/getting-started.md").read_text(), flags=re.DOTALL
    )
    (tmp_path / "app.py").write_text(code[0])
    (tmp_path / "test_app.py").write_text(code[1])
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, "test_app.py"],
        cwd=tmp_path, check=False, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout


def _blocks(page: str, bootstrap: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text().replace("localhost:9092", bootstrap)
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_page_about_other_programs_works_when_pasted(memory_broker, monkeypatch) -> None:
    """FastAPI's lifespan starts and drains the consumer, and a notebook reads and stops."""
    starlette = pytest.importorskip("starlette.applications")
    kit = types.ModuleType("fastapi")  # a FastAPI is a Starlette: the same lifespan
    kit.FastAPI = type(
        "FastAPI", (starlette.Starlette,), {"get": lambda self, path: lambda function: function}
    )
    monkeypatch.setitem(sys.modules, "fastapi", kit)
    memory_broker.create_topic("orders", 1)
    memory_broker.produce("orders", b"{}", b"k")
    web, *cells = _blocks("embedding.md", memory_broker.bootstrap)
    names: dict[str, Any] = {"__name__": "web"}
    exec(compile(web, "embedding.md", "exec", dont_inherit=True), names)

    def wait_until_done() -> None:
        deadline, pause = time.monotonic() + 30, threading.Event()
        while (
            held := memory_broker.committed("billing", "orders", 0)
        ) is None or not held.frontier:
            assert time.monotonic() < deadline
            pause.wait(0.01)

    async def served() -> None:
        async with names["lifespan"](names["api"]):
            await asyncio.to_thread(wait_until_done)
            assert names["consumer"]()["state"] == "running"

    asyncio.run(served())
    names = {"__name__": "notebook"}
    for cell in cells:
        exec(compile(cell, "embedding.md", "exec", dont_inherit=True), names)
    assert names["report"].exit_code == 0
    assert names["result"].outcome == "done"
