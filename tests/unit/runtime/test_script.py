"""`app.main()` ends a script with the exit code of its run: processes, the broker in memory."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.push

BEGIN = """
import atexit, threading
import perkey
from perkey.testing import MemoryKafka

kafka = MemoryKafka(auto_create=True)
kafka.produce("orders", "1")
app = perkey.App(group="script", kafka={"bootstrap.servers": kafka.bootstrap})

@app.consume("orders", retry=perkey.Retry(attempts=1), on_exhausted=perkey.%s())
def handle(record):
    raise ConnectionError("the service is down")

"""


def python(tmp_path: Path, end: str, policy: str = "Stop") -> subprocess.CompletedProcess[str]:
    (tmp_path / "script.py").write_text(BEGIN % policy + textwrap.dedent(end))
    return subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("policy", "code"), [("Stop", 1), ("Park", 3), ("Skip", 0)])
def test_a_script_exits_with_the_code_of_its_run(tmp_path, policy, code):
    """Stopped by `Stop` is 1, drained with parked records 3; a good run is 0 and says no more."""
    done = python(tmp_path, "app.main(until='drained')\nprint('never printed')", policy)
    assert (done.returncode, done.stdout) == (code, "")
    hint, *others = [line for line in done.stderr.splitlines() if line.startswith("perkey: ")]
    assert "logging.basicConfig" in hint  # once, where nobody has set up logging
    assert len(others) == bool(code)


def test_a_failed_run_is_one_line_that_names_its_error(tmp_path):
    """The last line says what stopped it."""
    line = python(tmp_path, "app.main()").stderr.splitlines()[-1]
    assert line.startswith("perkey: ")
    assert "policy is Stop: ConnectionError: the service is down" in line


def test_run_leaves_the_end_to_its_caller(tmp_path):
    """A script that calls `app.run()` gets the report, and ends as it says itself."""
    end = "report = app.run(until='drained')\nprint(report.exit_code)"
    done = python(tmp_path, end, "Park")
    assert (done.returncode, done.stdout) == (0, "3\n")


def test_everything_that_waits_for_the_end_is_served(tmp_path):
    """Exit functions and threads come to their end before the process does."""
    end = """
        atexit.register(print, "exit function")
        threading.Timer(0.2, print, ["thread"]).start()
        app.main()
        """
    done = python(tmp_path, end)
    assert (done.returncode, done.stdout) == (1, "thread\nexit function\n")


def test_an_option_that_main_does_not_have(tmp_path):
    """It takes what `run()` takes; a name that is none is Python's own error, with its traceback."""
    done = python(tmp_path, "app.main(untill='drained')")
    assert done.returncode == 1
    assert "run() got an unexpected keyword argument 'untill'" in done.stderr


BAD = """
import perkey
app = perkey.App(group="script", kafka={"bootstrap.servers": "localhost:1", **%s})

@app.consume("orders")
def handle(record): ...

def run_it():
    password = "hunter2"
    app.main()

run_it()
"""
NO_FILE = {
    "security.protocol": "ssl",
    "ssl.ca.location": "/nowhere/ca.pem",
    "ssl.key.password": "hunter2",
}


def test_bad_configuration_ends_a_script_in_one_line(tmp_path):
    """It names the option and what to do, with the code of bad input; no traceback, no secret."""
    (tmp_path / "script.py").write_text(BAD % NO_FILE)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "hunter2" not in done.stderr
    assert "the file that ssl.ca.location names cannot be read: No such file" in done.stderr
