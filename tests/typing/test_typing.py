"""Type checkers see a wrong handler while it is written; good.py and bad.py are what they see."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GOOD, BAD = HERE / "good.py", HERE / "bad.py"
MYPY = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--config-file="]
PYRIGHT = [sys.executable, "-m", "basedpyright", "--level", "error", "--pythonpath", sys.executable]


def lines(checker: list[str]) -> set[tuple[str, int]]:
    """File and line of all errors that the checker finds in both."""
    done = subprocess.run(
        [*checker, str(GOOD), str(BAD)],
        cwd=HERE, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    found = re.findall(r"(\w+\.py):(\d+)[^\n]* error:", done.stdout)
    assert found, done.stdout + done.stderr
    return {(name, int(line)) for name, line in found}


def marked() -> set[tuple[str, int]]:
    """The lines of bad.py that say they are wrong."""
    text = BAD.read_text().splitlines()
    return {(BAD.name, number) for number, line in enumerate(text, 1) if "# wrong" in line}


@pytest.mark.push
@pytest.mark.timeout(300)
def test_mypy_sees_what_is_wrong_and_nothing_else():
    """Strict, as users may run it: no error in what is right, one in every marked line."""
    assert lines(MYPY) == marked()


@pytest.mark.long
@pytest.mark.push
@pytest.mark.timeout(300)
def test_pyright_sees_it_too():
    """The same lines (basedpyright: pyright as a Python package that downloads nothing)."""
    assert lines(PYRIGHT) == marked()
