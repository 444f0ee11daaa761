"""Type checkers see a wrong handler while it is written; good.py and bad.py are what they see."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GOOD, BAD = HERE / "good.py", HERE / "bad.py"
ROOT = HERE.parents[1]
#: From the root, for what `make types` has read of Perkey: it is in its cache.
MYPY = [sys.executable, "-m", "mypy"]
PYRIGHT = [sys.executable, "-m", "basedpyright", "--level", "error", "--pythonpath", sys.executable]


def lines(checker: list[str], folder: Path = HERE) -> set[tuple[str, int]]:
    """File and line of all errors that the checker finds in both, in that folder."""
    done = subprocess.run(
        [*checker, str(folder / GOOD.name), str(folder / BAD.name)],
        cwd=HERE if folder == HERE else ROOT, timeout=300, check=False,
        capture_output=True, text=True,
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
def test_mypy_sees_what_is_wrong_and_nothing_else(tmp_path):
    """Strict, in files of another project: no error in what is right, one in every marked line."""
    for file in (GOOD, BAD):
        shutil.copy(file, tmp_path)  # the project's own tests have looser settings
    assert lines(MYPY, tmp_path) == marked()


@pytest.mark.long
@pytest.mark.push
@pytest.mark.timeout(300)
def test_pyright_sees_it_too():
    """The same lines (basedpyright: pyright as a Python package that downloads nothing)."""
    assert lines(PYRIGHT) == marked()
