"""Fetching with Maven or Ivy: which is taken, what happens when one fails, and how long it may take."""

from __future__ import annotations

from pathlib import Path

import pytest

from perkey.broker import jars as fetching
from perkey.errors import ConfigError

NAMES = frozenset({"kafka_2.13-1.0.jar"})


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with nothing on its PATH but a shell; programs are added by `program`."""
    (tmp_path / "bin").mkdir()
    for tool in ("sh", "sleep", "touch"):
        (tmp_path / "bin" / tool).symlink_to(f"/bin/{tool}")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(fetching, "_ivy_jar", lambda: None)
    return tmp_path


def program(machine: Path, name: str, script: str) -> None:
    path = machine / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def with_ivy(machine: Path, monkeypatch, script: str) -> None:
    version = """if [ "$1" = -version ]; then echo 'openjdk version "17.0.1"'; exit 0; fi"""
    program(machine, "java", f"{version}\n{script}")
    monkeypatch.setattr(fetching, "_ivy_jar", lambda: Path("/somewhere/ivy-2.5.3.jar"))


def test_without_a_client_the_line_names_both(machine, tmp_path):
    """With neither Maven nor PySpark the cure names both."""
    with pytest.raises(ConfigError, match=r"install Maven .* or PySpark"):
        fetching.fetch("1.0", tmp_path, NAMES)


def test_maven_is_taken_first(machine, monkeypatch, tmp_path):
    """Where both are there, Maven fetches, with a pom that names the release."""
    program(machine, "mvn", "exit 0")
    with_ivy(machine, monkeypatch, "exit 9")
    assert fetching.fetch("1.0", tmp_path, NAMES) == "Maven"
    assert "<version>1.0</version>" in (tmp_path / "pom.xml").read_text()


def test_ivy_takes_over_when_maven_fails(machine, monkeypatch, tmp_path):
    """A broken Maven does not matter where Ivy works."""
    program(machine, "mvn", "echo '[ERROR] settings.xml is broken'; exit 1")
    with_ivy(machine, monkeypatch, "exit 0")
    assert fetching.fetch("1.0", tmp_path, NAMES) == "Ivy"


def test_when_all_fail_each_reports_why(machine, monkeypatch, tmp_path):
    """The one line carries each client's first error."""
    program(machine, "mvn", "echo '[ERROR] no route to host'; echo '[ERROR] use -X'; exit 1")
    with_ivy(machine, monkeypatch, "exit 3")
    with pytest.raises(ConfigError) as caught:
        fetching.fetch("1.0", tmp_path, NAMES)
    assert "Maven: [ERROR] no route to host; Ivy: exit code 3" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_client_that_hangs_is_ended(machine, monkeypatch, tmp_path):
    """A fetch has a limit."""
    monkeypatch.setattr(fetching, "_FETCH_TIMEOUT_S", 0.2)
    program(machine, "mvn", "sleep 60; true")
    with pytest.raises(ConfigError, match="Maven"):
        fetching.fetch("1.0", tmp_path, NAMES)


def test_it_reports_on_stderr_what_it_fetches(machine, tmp_path, capsys):
    """Standard output stays empty: `perkey broker up` prints an address there."""
    program(machine, "mvn", "echo 'Copying kafka_2.13-1.0.jar to lib'")
    fetching.fetch("1.0", tmp_path, NAMES)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Fetching Kafka 1.0 with Maven" in printed.err


def test_pyspark_brings_ivy():
    """The Ivy inside PySpark is found where PySpark is installed."""
    pytest.importorskip("pyspark")
    found = fetching._ivy_jar()
    assert found is not None
    assert found.name.startswith("ivy-")
