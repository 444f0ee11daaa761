"""What `make test` runs with comes to an end, whatever a test does."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.dealing import SHARING, Dealing

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()
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
def test_a_test_without_an_end_fails_and_the_others_continue(tmp_path):
    """Its worker prints where it stands and goes; a new one takes its place."""
    (tmp_path / "test_some.py").write_text(STUCK)
    dealing = "from tests.conftest import pytest_xdist_make_scheduler"
    (tmp_path / "conftest.py").write_text(dealing)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = timeout: of pytest-timeout\n")
    asked = [*options("PYTEST"), *options("NO_HANG"), "-o", "faulthandler_timeout=3"]
    command = [sys.executable, "-m", "pytest", *asked, "-n", "2", "-p", "no:cacheprovider", "."]
    ran = subprocess.run(
        command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=280,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert "1 failed, 5 passed" in ran.stdout
    assert "crashed while running 'test_some.py::test_stuck'" in ran.stdout
    assert " in test_stuck\n" in ran.stderr


class Worker:
    """A worker as the dealer knows it: what it was given."""

    shutting_down = False
    gateway = SimpleNamespace(id="w")

    def __init__(self):
        self.given = []

    def send_runtest_some(self, tests):
        self.given += tests

    def shutdown(self):
        self.shutting_down = True


def test_what_shares_something_dear_stays_with_one_worker():
    """The others take of it only when nothing else is left, so that none idles at the end."""
    spark, matrix, *_ = (f"tests/integration/{names[0]}" for names in SHARING)
    tests = [f"{('tests/unit', spark, matrix)[n % 3]}::test_{n}" for n in range(12)]
    options = {"tx": ["2*popen"], "maxschedchunk": 1}
    dealing = Dealing(SimpleNamespace(getvalue=options.get, getoption=options.get))
    first, second = Worker(), Worker()
    for worker in (first, second):
        dealing.add_node(worker)
        dealing.add_node_collection(worker, tests)
    dealing.schedule()
    while dealing.pending:
        dealing.mark_test_complete(second, second.given[len(second.given) - 2])
    assert first.given == [1, 4]
    assert second.given == [2, 5, 8, 11, 0, 3, 6, 9, 7, 10]
