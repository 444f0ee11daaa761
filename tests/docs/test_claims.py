"""The page of proofs: every claim has a row, and what a row names exists."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import claims  # noqa: E402  # a generator beside the pages

#: of these no simulator is the proof: they depend on real brokers and real time
REAL = {"L3", "L5"}
#: the core's determinism is checked by running each seed twice
TWICE = {"S10"}


def gone(tests: tuple[str, ...]) -> list[str]:
    """Of `file:function`, what does not exist."""
    missing = []
    for test in tests:
        file, _, function = test.partition(":")
        path = ROOT / file
        if not path.is_file() or f"def {function}(" not in path.read_text():
            missing.append(test)
    return missing


def test_every_guarantee_has_its_row() -> None:
    """No row without a guarantee either."""
    assert claims.guarantees().keys() == claims.CLAIMS.keys()


@pytest.mark.parametrize("name", claims.CLAIMS)
def test_the_tests_of_a_claim_exist(name: str) -> None:
    """A test that is renamed or removed takes its claim along."""
    assert gone(claims.CLAIMS[name].tests) == []


def test_a_test_that_is_gone_is_found() -> None:
    """The mutants of this check: another function, another file."""
    here = "tests/docs/test_claims.py"
    assert gone((f"{here}:gone", f"{here}:nothing", "tests/none.py:gone")) == [
        f"{here}:nothing",
        "tests/none.py:gone",
    ]


def test_every_simulated_guarantee_has_a_mutant() -> None:
    """What no mutant breaks, the simulators may not notice."""
    assert claims.CLAIMS.keys() - claims.mutants().keys() <= REAL | TWICE


def test_the_figures_of_the_readme_have_their_rows() -> None:
    """Each bullet of its Speed section contains the text of a row, and each row is in one."""
    section = (ROOT / "README.md").read_text().split("## Speed")[1].split("\n## ")[0]
    bullets = [
        " ".join(bullet.split())
        for bullet in re.findall(r"^- (.+?)(?=^- |^$)", section, re.MULTILINE | re.DOTALL)
    ]
    texts = [figure.text for figure in claims.FIGURES]
    assert [b for b in bullets if not any(text in b for text in texts)] == []
    assert [text for text in texts if not any(text in b for b in bullets)] == []


def test_no_claim_is_without_its_limit() -> None:
    """Each row names what it does not show."""
    assert all(claim.not_shown for claim in claims.CLAIMS.values())
    assert all(figure.not_shown and figure.command for figure in claims.FIGURES)
