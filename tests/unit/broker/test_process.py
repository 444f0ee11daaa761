"""Broker processes: recognised by their command line, ended with their parent, stopped in time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from perkey.broker import process
from perkey.broker.java import Java
from perkey.broker.process import (
    BrokerError,
    format_storage,
    is_node,
    last_line,
    spawn_detached,
    spawn_guarded,
    stop_all,
    wait_until,
)

SLEEP = """
import signal
signal.signal(signal.SIGTERM, signal.{0})
print("up", flush=True)
while True:
    signal.pause()
"""


def sleeper(properties, on_term="SIG_DFL"):
    return [sys.executable, "-c", SLEEP.format(on_term), str(properties)]


@pytest.fixture
def properties(tmp_path):
    return tmp_path / "server.properties"


@pytest.fixture
def log(tmp_path):
    return tmp_path / "console.log"


@pytest.fixture
def detached(properties, log):
    pid = spawn_detached(sleeper(properties), log)
    yield pid
    if is_node(pid, properties):
        os.kill(pid, signal.SIGKILL)


def up(log):
    return wait_until(lambda: log.exists() and "up" in log.read_text(), 60)


def test_a_node_is_known_by_its_properties(detached, properties, log, tmp_path):
    """A pid is a node's only while its command line names that node's properties."""
    assert up(log)
    assert is_node(detached, properties)
    assert not is_node(detached, tmp_path / "other.properties")
    assert not is_node(os.getpid(), properties)
    assert not is_node(None, properties)


def test_a_pid_that_does_not_exist_is_no_node(properties):
    """A pid that is gone is not running."""
    with subprocess.Popen(["true"]) as ended:
        pass
    assert not is_node(ended.pid, properties)


def test_stop_is_polite_first(detached, properties, log):
    """SIGTERM is enough for who listens."""
    assert up(log)
    stop_all([(detached, properties)])
    assert not is_node(detached, properties)


def test_stop_ends_who_does_not_listen(properties, log):
    """SIGKILL follows after the grace."""
    pid = spawn_detached(sleeper(properties, "SIG_IGN"), log)
    assert up(log)
    stop_all([(pid, properties)], grace_s=0.1)
    assert not is_node(pid, properties)


def test_stop_leaves_a_stranger_alone(detached, properties, log, tmp_path):
    """A pid that now belongs to somebody else is not signalled."""
    assert up(log)
    stop_all([(detached, tmp_path / "other.properties")])
    assert is_node(detached, properties)


def test_a_guarded_process_dies_with_its_parent(properties, log):
    """Kill -9 of the parent ends the broker too: no fixture leaves one behind."""
    script = (
        "import sys, pathlib, signal; from perkey.broker.process import spawn_guarded\n"
        f"child = spawn_guarded({sleeper(properties)!r}, pathlib.Path({str(log)!r}))\n"
        "print(child.broker.pid, flush=True); signal.pause()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as parent:
        pid = int(parent.stdout.readline())
        assert up(log)
        parent.kill()
    assert wait_until(lambda: not is_node(pid, properties), 60)


def test_release_ends_the_guard_too(properties, log):
    """After a stop neither the broker nor its guard is left."""
    child = spawn_guarded(sleeper(properties), log)
    stop_all([(child.broker.pid, properties)], grace_s=0)
    child.release()
    assert child.broker.returncode == -signal.SIGKILL
    assert child.guard.returncode is not None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "nothing"),
        ("a\nb\n\n", "b"),
        ("real\nSLF4J: no logger\n", "real"),
        ("x" * 400, "x" * 300),
    ],
)
def test_the_last_line_that_reports_something(text, line):
    """The last line is short, and not the logging library's complaint."""
    assert last_line(text) == line


def test_storage_that_is_not_formatted_in_time(properties, tmp_path, monkeypatch):
    """It is one line that says so, and no tool goes on behind it."""
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\nexec sleep 600\n")
    java.chmod(0o755)
    made = []

    class Noted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr(process, "ensure_jars", list)
    monkeypatch.setattr(process, "FORMAT_TIMEOUT_S", 0.01)
    monkeypatch.setattr(subprocess, "Popen", Noted)
    with pytest.raises(BrokerError, match="did not format its storage within"):
        format_storage(Java(java, 17), [properties, properties], "id")
    assert [tool.returncode for tool in made] == [-signal.SIGKILL] * 2
