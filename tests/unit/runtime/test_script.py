"""`python app.py` ends with the exit code of its run: real processes, the broker in memory."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

BEGIN = """
import atexit, sys, threading
import weft
from weft.testing import MemoryKafka

kafka = MemoryKafka(auto_create=True)
kafka.produce("orders", "1")
app = weft.App(group="script", kafka={"bootstrap.servers": kafka.bootstrap})

@app.consume("orders", retry=weft.Retry(attempts=1), on_exhausted=weft.%s())
def handle(record):
    raise ConnectionError("the service is down")

def run_it():
    return app.run(until="drained")
"""


def python(tmp_path: Path, end: str, policy: str = "Stop") -> subprocess.CompletedProcess[str]:
    (tmp_path / "script.py").write_text(BEGIN % policy + textwrap.dedent(end))
    return subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "call",
    ["app.run()", "print(app.run())", "report = app.run()", "run_it()", "f'{app.run().done}'"],
)
def test_a_failed_run_is_the_scripts_exit_code(tmp_path, call):
    """Stopped by `Stop`: exit 1 and one line that says why, however the report is held."""
    done = python(tmp_path, call)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("weft: ")
    assert "policy is Stop: ConnectionError: the service is down" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(("policy", "code"), [("Park", 3), ("Skip", 0)])
def test_the_code_is_that_of_the_report(tmp_path, policy, code):
    """Drained with parked records is 3; a good run is 0 and says nothing."""
    done = python(tmp_path, "app.run(until='drained')", policy)
    assert done.returncode == code
    assert ("weft: " in done.stderr) == bool(code)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("report = app.run()\nprint(report.exit_code)", 0),
        ("if not app.run().ok: print('seen to')", 0),
        ("sys.exit(40 + app.run().exit_code)", 41),
    ],
)
def test_a_script_that_reads_the_code_decides_itself(tmp_path, end, code):
    """Who has read `exit_code` or `ok` ends the script as he wants to."""
    assert python(tmp_path, end).returncode == code


def test_the_last_run_counts(tmp_path):
    """A script that runs the app again, and well, ends well."""
    end = "app.run()\nother = weft.App(group='2', kafka={'bootstrap.servers': kafka.bootstrap})\n"
    end += "other.consume('orders')(lambda record: None)\nother.run(until='drained')"
    assert python(tmp_path, end).returncode == 0


def test_an_exception_of_the_script_is_its_end(tmp_path):
    """What dies of its own exception says so itself, and nothing else is said."""
    done = python(tmp_path, "app.run(until='drained')\n1 / 0", "Park")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ZeroDivisionError: division by zero")


def test_everything_that_waits_for_the_end_is_served(tmp_path):
    """Exit functions, threads and what is buffered come to their end before the process does."""
    done = python(
        tmp_path,
        """
        atexit.register(print, "early")
        app.run()
        atexit.register(print, "late")
        threading.Thread(target=lambda: print("thread")).start()
        print("last line", end="")
        """,
    )
    assert done.returncode == 1
    for said in ("early", "late", "thread", "last line"):
        assert said in done.stdout


def test_only_the_script_itself_is_meant(tmp_path):
    """A module that calls `app.run()` leaves the exit code to whoever called it."""
    module = "def run_it(app):\n    return app.run()\n"
    (tmp_path / "module.py").write_text(module)
    assert python(tmp_path, "import module\nmodule.run_it(app)").returncode == 0


BAD = """
import os, weft
app = weft.App(group="script", kafka={"bootstrap.servers": "localhost:1", **%s})

@app.consume("orders")
def handle(record): ...

def run_it():
    password = "hunter2"
    app.run()
"""
NO_FILE = {
    "security.protocol": "ssl",
    "ssl.ca.location": "/nowhere/ca.pem",
    "ssl.key.password": "hunter2",
}


@pytest.mark.parametrize(
    ("end", "code", "lines"),
    [
        ("run_it()", 2, 1),
        ("try:\n    run_it()\nexcept weft.ConfigError:\n    pass", 0, 0),
        ("try:\n    run_it()\nexcept weft.ConfigError:\n    raise SystemExit(7)", 7, 0),
    ],
)
def test_bad_configuration_ends_a_script_in_one_line(tmp_path, end, code, lines):
    """It names the option and what to do, with the code of bad input; who catches it decides."""
    (tmp_path / "script.py").write_text(BAD % NO_FILE + end)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, len(done.stderr.splitlines())) == (code, lines)
    assert "hunter2" not in done.stderr
    if lines:
        assert "the file that ssl.ca.location names cannot be read: No such file" in done.stderr


def test_an_error_of_the_scripts_own_keeps_its_traceback(tmp_path):
    """Only what `app.run()` raised is told as one line."""
    end = "try:\n    run_it()\nexcept weft.ConfigError as error:\n    raise KeyError('mine') from None"
    (tmp_path / "script.py").write_text(BAD % NO_FILE + end)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "KeyError: 'mine'" in done.stderr
