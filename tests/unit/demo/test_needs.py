"""What the demo needs, told in one line before anything is started."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from demo.run import NEEDED, Options, check_needs, prepare
from perkey.errors import ConfigError


def test_missing_libraries_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is missing is named, with the command that brings it."""
    find_spec = importlib.util.find_spec

    def without(name: str, *more: Any) -> Any:
        return None if name in ("aiohttp", "matplotlib") else find_spec(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(ConfigError) as caught:
        check_needs()
    assert str(caught.value) == (
        "the demo needs aiohttp, matplotlib, not installed here: run `make setup`"
    )
    assert set(NEEDED) >= {"aiohttp", "matplotlib", "pyspark", "pyarrow", "pandas"}


def test_without_java_it_reports_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java: one line with the cure."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ConfigError, match=r"Java .*install Java 17"):
        check_needs()


def test_only_the_demos_own_files_are_cleared(tmp_path: Path) -> None:
    """What an earlier demo left goes; what else lies in the folder stays."""
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "summary.json").write_text("{}")
    (tmp_path / "alerts").mkdir()
    (tmp_path / "alerts" / "part").write_text("")
    prepare(Options(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "mine.txt"]
