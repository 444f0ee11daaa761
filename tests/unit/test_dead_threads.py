"""The check of tests/conftest.py: a thread of ours that dies turns its test red."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DYING = """
import pytest
from perkey import guard

def dies(error):
    def die():
        raise error
    thread = guard.thread("perkey-x", die)
    thread.start()
    thread.join()

def test_error(): dies(ValueError("broken"))
def test_exit(): dies(SystemExit(3))
@pytest.mark.threads_may_die
def test_may(): dies(ValueError("broken"))
"""


@pytest.mark.push
def test_a_dead_thread_is_red(tmp_path: Path) -> None:
    """Whatever it died of, unless the test says that it may."""
    test = tmp_path / "test_dies.py"
    test.write_text(DYING)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rap", "-c", str(ROOT / "pyproject.toml"),
         "-p", "no:cacheprovider", "-p", "tests.conftest", f"--rootdir={tmp_path}", str(test)],
        cwd=ROOT, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    errors = [line.split()[1] for line in ran.stdout.splitlines() if line.startswith("ERROR ")]
    wrong = sorted(name.rpartition("::")[2] for name in errors)
    assert wrong == ["test_error", "test_exit"], ran.stdout
    assert "3 passed, 2 errors" in ran.stdout
