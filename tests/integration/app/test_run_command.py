"""`perkey run` as a user calls it: exit codes, one-line errors, and its log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from perkey.cli import main

HEAD = """
import asyncio, perkey
app = perkey.App(group={group!r}, kafka={{"bootstrap.servers": {bootstrap!r}}})
"""


#: said where it had no time for us
OF_THE_MACHINE = (
    "the polling thread was blocked", "no partition yet", "the handlers' loop is blocked",
    "the handlers' loop runs again",
)  # fmt: skip


@pytest.fixture
def perkey_run(kafka, tmp_path):
    """Run `perkey run` on a module of this text, to its end."""

    def run(text, *arguments, group=None, target="geofence:app"):
        head = HEAD.format(group=group or kafka.name("g"), bootstrap=kafka.bootstrap)
        (tmp_path / "geofence.py").write_text(head + textwrap.dedent(text))
        return subprocess.run(
            [sys.executable, "-m", "perkey.cli.main", "run", target, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=dict(os.environ),
        )

    return run


@pytest.mark.broker
def test_a_drained_run_ends_with_0_and_logs_lines_not_records(kafka, perkey_run):
    """One line at the start with the options, one a rebalance, one at the end; nothing raw."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"x"] * 50)
    ended = perkey_run(
        f"""
        @app.consume({source!r})
        async def check(record): ...
        """,
        "--until", "drained", "--log-format", "json",
        group=group,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == ""
    events = [json.loads(line) for line in ended.stderr.splitlines()]
    told = [event["event"] for event in events if event["logger"] == "perkey"]
    told = [what for what in told if what not in OF_THE_MACHINE]
    assert told == ["starting", "assigned", "no commits yet", "revoked", "ended"]
    start, end = events[0], events[-1]
    assert (start["group"], start["topics"], start["until"]) == (group, source, "drained")
    assert start["handlers"] == {"check": "key/async/100"}
    assert (end["exit_code"], end["done"], end["reason"]) == (0, 50, "drained")
    assert {"time", "level", "logger"} <= set(start)
    assert kafka.committed(group, source) == 50


@pytest.mark.broker
def test_parked_records_end_a_drained_run_with_3(kafka, perkey_run):
    """And the last line says why."""
    source = kafka.topic()
    kafka.fill(source, [b"x"])
    ended = perkey_run(
        f"""
        @app.consume({source!r}, retry=perkey.Retry(attempts=1))
        def check(record): raise ValueError("bröken")
        """,
        "--until", "drained",
    )  # fmt: skip
    assert ended.returncode == 3
    lines = ended.stderr.splitlines()
    assert lines[-1] == "perkey: drained, but parked records remain"
    assert any("record parked" in line and "bröken" in line for line in lines)
    assert ended.stderr.count("Traceback") == 1  # of its last attempt; given up refers to it
    assert 'in check\n    def check(record): raise ValueError("bröken")' in ended.stderr


@pytest.mark.broker
def test_the_policy_stop_ends_with_1(kafka, perkey_run):
    """Naming the handler and the record."""
    source = kafka.topic()
    kafka.fill(source, [b"x"])
    ended = perkey_run(
        f"""
        @app.consume({source!r}, retry=perkey.Retry(attempts=1), on_exhausted=perkey.Stop())
        async def check(record): raise ValueError
        """
    )
    assert ended.returncode == 1
    assert f"check: <Record {source}[0]@0" in ended.stderr.splitlines()[-1]


BAD = {
    "no module": ("", "nope:app", "module nope does not exist"),
    "no attribute": ("", "geofence:ap", "geofence has no ap: write geofence:app"),
    "not an app": ("other = 7", "geofence:other", "is of type int, not a perkey.App"),
    "a file": ("", "geofence.py:app", "name the module, not its file"),
    "no colon": ("", "geofence", "write MODULE:ATTRIBUTE, such as geofence:app"),
    "no handler": ("", "geofence:app", "the app has no handler"),
    "bad option": (
        "@app.consume('t', ordering='x')\ndef f(r): ...",
        "geofence:app",
        "ordering='x'",
    ),
    "missing import": ("import nowhere_to_be_found", "geofence:app", "imports nowhere_to_be_found"),
    "syntax": ("def f(:", "geofence:app", "geofence.py:4"),
    "raises": ("1 / 0", "geofence:app", "ZeroDivisionError: division by zero (geofence.py:4)"),
    "exits": ("raise SystemExit(0)", "geofence:app", 'if __name__ == "__main__"'),
    "no topic": ("@app.consume('none')\ndef f(r): ...", "geofence:app", "'none' does not exist"),
}


@pytest.mark.push
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_2(kafka, name, tmp_path, monkeypatch, capsys):
    """No traceback, nothing on stdout, and the cure in the line."""
    text, target, said = BAD[name]
    (tmp_path / "geofence.py").write_text(HEAD.format(group="g", bootstrap=kafka.bootstrap) + text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.delitem(sys.modules, "geofence", raising=False)
    monkeypatch.setattr("perkey.cli.run.set_up", lambda *_: None)
    code = main.run(["run", target])
    sys.modules.pop("geofence", None)
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    (line,) = printed.err.splitlines()
    assert line.startswith("perkey: ")
    assert said in line


def test_bad_input_in_a_process_of_its_own(perkey_run):
    """The same as the shell sees it."""
    ended = perkey_run("", target="nope:app")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("perkey: module nope does not exist")
    assert ended.stderr.count("\n") == 1


@pytest.mark.broker
def test_a_failing_lifespan_ends_with_1(kafka, perkey_run):
    """The last line names it; where it failed stands in the log above."""
    source = kafka.topic()
    ended = perkey_run(
        f"""
        from contextlib import asynccontextmanager
        @asynccontextmanager
        async def lifespan():
            raise OSError("no database")
            yield
        app = perkey.App(group="g", kafka=app.options.kafka, lifespan=lifespan)
        @app.consume({source!r})
        async def check(record): ...
        """
    )
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last == "perkey: the lifespan failed to open: OSError: no database"


def test_help_has_an_example(capsys):
    """And names the exit codes."""
    assert main.run(["run", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Example: perkey run geofence:app" in shown
    assert "130 or 143 after a second signal" in shown
