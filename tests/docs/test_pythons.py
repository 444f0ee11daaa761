"""One list of Pythons: the classifiers, the page of what works, and `make python-matrix`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def classified() -> list[str]:
    """The Pythons of the classifiers in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))


def test_the_page_lists_the_pythons_of_the_classifiers() -> None:
    """The table of what is tested has a CPython for each classifier, and no other."""
    tested = (ROOT / "docs" / "works-with.md").read_text().split("\n## ")[1]
    rows = re.findall(r"^\|[^|]*\| CPython ([^|]+)\|", tested, re.MULTILINE)
    assert re.findall(r"3\.\d+", " ".join(rows)) == classified()


def test_the_lanes_are_the_pythons_of_the_classifiers() -> None:
    """A push runs the oldest; `make python-matrix` all newer ones."""
    lanes = re.findall(r"^PYTHONS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert lanes == [" ".join(classified()[1:])]
