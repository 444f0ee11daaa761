"""What `make test` runs with comes to an end, whatever a test does."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

MAKEFILE = (Path(__file__).parent.parent / "Makefile").read_text()
STUCK = '''
import threading, pytest

def test_before(): pass

@pytest.mark.timeout(1)
def test_stuck():
    """Not even its time-out ends it."""
    try:
        threading.Event().wait()
    except BaseException:
        threading.Event().wait()

@pytest.mark.parametrize("n", range(4))
def test_after(n): pass
'''


def options(name: str) -> list[str]:
    """What the Makefile's variable of that name gives pytest."""
    found = re.search(rf"^{name} := (.*)$", MAKEFILE, re.MULTILINE)
    assert found is not None
    return shlex.split(found[1].replace("$(BIN)/python -m pytest", ""))


@pytest.mark.push
def test_a_test_without_an_end_fails_and_the_others_go_on(tmp_path):
    """Its worker prints where it stands and goes; a new one takes its place."""
    (tmp_path / "test_some.py").write_text(STUCK)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = timeout: of pytest-timeout\n")
    asked = [*options("PYTEST"), *options("NO_HANG"), "-o", "faulthandler_timeout=3"]
    command = [sys.executable, "-m", "pytest", *asked, "-p", "no:cacheprovider", "."]
    ran = subprocess.run(
        command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=90
    )
    assert "1 failed, 5 passed" in ran.stdout
    assert "crashed while running 'test_some.py::test_stuck'" in ran.stdout
    assert " in test_stuck\n" in ran.stderr
