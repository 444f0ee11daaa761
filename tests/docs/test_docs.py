"""What the docs claim, held to the code."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import weft
from weft.app import App
from weft.testing import run

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def test_the_diagrams_are_those_of_the_tables() -> None:
    """The state diagrams in the architecture page are generated from the tables and fresh."""
    check = subprocess.run([sys.executable, str(ROOT / "docs/generate.py"), "--check"], check=False)
    assert check.returncode == 0, "stale: run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """Every relative link names a file that exists."""
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_option_is_documented() -> None:
    """docs/options.md has a row for every parameter of App, consume and run."""
    text = (ROOT / "docs/options.md").read_text()
    for function in (App.__init__, App.consume, App.run):
        for name in inspect.signature(function).parameters:
            assert name == "self" or f"`{name}`" in text, f"{name} is not in docs/options.md"


def test_the_readmes_twenty_lines_work_when_pasted() -> None:
    """The example of the README handles records and produces what it says."""
    text = (ROOT / "README.md").read_text()
    code = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)[0]
    names: dict[str, object] = {"__name__": "pasted"}
    exec(compile(code, "README.md", "exec"), names)
    app = names["app"]
    assert isinstance(app, weft.App)
    results = run(app, [(b"car", b'{"speed_kmh": 150}'), (b"car", b'{"speed_kmh": 50}')])
    assert [result.outcome for result in results] == ["done", "done"]
    assert [sent.topic for sent in results[0].outputs] == ["gps.alerts"]
