"""One list of Pythons: the classifiers, the page of what works, and `make python-matrix`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "works-with.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


def classified() -> list[str]:
    """The Pythons of the classifiers in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))


def on_the_page(page: str) -> list[str]:
    """The CPythons of the page's table of what is tested."""
    tested = page.split("\n## ")[1]
    rows = re.findall(r"^\|[^|]*\| CPython ([^|]+)\|", tested, re.MULTILINE)
    return re.findall(r"3\.\d+", " ".join(rows))


def in_lanes(makefile: str) -> list[str]:
    """The Pythons of `make python-matrix`."""
    lanes = re.findall(r"^PYTHONS := (.+)$", makefile, re.MULTILINE)
    return " ".join(lanes).split()


def test_the_page_lists_the_pythons_of_the_classifiers() -> None:
    """The table of what is tested has a CPython for each classifier, and no other."""
    assert on_the_page(PAGE) == classified()


def test_the_lanes_are_the_pythons_of_the_classifiers() -> None:
    """A push runs the oldest; `make python-matrix` all newer ones."""
    assert in_lanes(MAKEFILE) == classified()[1:]


def test_a_python_that_is_missing_or_too_much_is_seen() -> None:
    """The mutants: the newest Python becomes another, on the page and in the lanes."""
    newest = classified()[-1]
    assert on_the_page(PAGE.replace(newest, "3.99")) != classified()
    assert in_lanes(MAKEFILE.replace(newest, "3.99")) != classified()[1:]
    assert in_lanes(MAKEFILE.replace(f" {newest}\n", "\n")) == classified()[1:-1]
