"""Finding Java: the right one, new enough, or one line that says how to get it."""

from __future__ import annotations

from pathlib import Path

import pytest

from perkey.broker.java import find_java, parse_version
from perkey.errors import ConfigError


def fake_java(folder: Path, says: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_the_major_version_is_read(text, version):
    """The major version is read from every spelling Java has used; what is no version is None."""
    assert parse_version(text) == version


def test_java_home_wins_over_the_path(tmp_path, monkeypatch):
    """JAVA_HOME is how a user chooses, so it wins."""
    chosen = fake_java(tmp_path / "home", 'openjdk version "21.0.1"')
    other = fake_java(tmp_path / "path", 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{other.parent}:/bin:/usr/bin")
    assert find_java().program == chosen


def test_a_java_home_without_java_falls_back_to_the_path(tmp_path, monkeypatch):
    """A JAVA_HOME that points nowhere does not hide the Java on the PATH."""
    program = fake_java(tmp_path, 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PATH", f"{program.parent}:/bin:/usr/bin")
    assert find_java().program == program


@pytest.mark.parametrize("version", [17, 18])
def test_the_oldest_java_that_will_do_is_17(tmp_path, monkeypatch, version):
    """Java 17 and newer run Kafka."""
    fake_java(tmp_path, f'openjdk version "{version}.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java().version == version


def test_java_16_is_refused_with_the_cure(tmp_path, monkeypatch):
    """One version less is refused in one line that names the program and the cure."""
    program = fake_java(tmp_path, 'openjdk version "16.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="is Java 16, too old") as caught:
        find_java()
    assert str(program) in str(caught.value)
    assert "apt install openjdk-17" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_java_is_one_line_with_the_cure(tmp_path, monkeypatch):
    """Without Java the line says how to get it."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"none was found: install Java 17 or newer .*JAVA_HOME"):
        find_java()


def test_a_java_that_only_complains_is_refused(tmp_path, monkeypatch):
    """The macOS stub, which is there but is no Java, is not taken for one."""
    fake_java(tmp_path, "Unable to locate a Java Runtime.")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="does not report its version"):
        find_java()
