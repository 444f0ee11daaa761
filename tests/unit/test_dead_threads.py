"""The check of tests/conftest.py: a thread of ours that dies turns its test red."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DIES = """
import pytest
from weft import guard

def die():
    raise {error}

{marker}
def test_whatever():
    thread = guard.thread("weft-x", die)
    thread.start()
    thread.join()
"""


@pytest.mark.parametrize(
    ("error", "marker", "code"),
    [
        ("ValueError('broken')", "", 1),
        ("SystemExit(3)", "", 1),
        ("ValueError('broken')", "@pytest.mark.threads_may_die", 0),
    ],
)
def test_a_dead_thread_is_red(tmp_path: Path, error: str, marker: str, code: int) -> None:
    """Whatever it died of, unless the test says that it may."""
    test = tmp_path / "test_dies.py"
    test.write_text(DIES.format(error=error, marker=marker))
    said = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"),
         "-p", "no:cacheprovider", "-p", "tests.conftest", f"--rootdir={tmp_path}", str(test)],
        cwd=ROOT, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert said.returncode == code, said.stdout
    assert ("thread weft-x died" in said.stdout) == bool(code)
