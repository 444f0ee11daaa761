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


def lines(checker: list[str], file: Path) -> set[int]:
    """The lines in which the checker finds errors."""
    done = subprocess.run(
        [*checker, str(file)],
        cwd=HERE, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    found = re.findall(rf"{file.name}:(\d+)[^\n]* error:", done.stdout)
    assert found or done.returncode == 0, done.stdout + done.stderr
    return {int(line) for line in found}


def marked() -> set[int]:
    """The lines of bad.py that say they are wrong."""
    text = BAD.read_text().splitlines()
    return {number for number, line in enumerate(text, 1) if "# wrong" in line}


@pytest.mark.push
@pytest.mark.timeout(300)
def test_mypy_sees_what_is_wrong_and_nothing_else():
    """Strict, as users may run it: no error in what is right, one in every marked line."""
    assert lines(MYPY, GOOD) == set()
    assert lines(MYPY, BAD) == marked()


@pytest.mark.long
@pytest.mark.push
@pytest.mark.timeout(300)
def test_pyright_sees_it_too():
    """The same lines (basedpyright: pyright as a Python package that downloads nothing)."""
    assert lines(PYRIGHT, GOOD) == set()
    assert lines(PYRIGHT, BAD) == marked()
