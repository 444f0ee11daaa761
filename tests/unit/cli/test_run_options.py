"""Options of `perkey run` that take the place of the app's own."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from perkey.cli import run as runner
from perkey.cli.main import run as command

APP = """
import perkey
app = perkey.App(group="g", kafka={"bootstrap.servers": "127.0.0.1:1"}, control="one")
@app.consume("t")
def check(record):
    pass
"""


@pytest.fixture
def app(tmp_path, monkeypatch) -> None:
    """A module with an app in the current folder."""
    (tmp_path / "steered_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})


@pytest.mark.parametrize(
    ("words", "control"), [((), {}), (("--control", "two"), {"control": "two"})]
)
def test_the_control_topic(monkeypatch, words, control):
    """Without the option the app's own counts."""
    given: list[Any] = []

    def run_app(*words: Any, **_options: Any) -> int:
        given.append(words[3])
        return 0

    monkeypatch.setattr(runner, "run_app", run_app)
    assert command(["run", "steered_app:app", *words]) == 0
    assert given == [control]


@pytest.mark.usefixtures("app")
def test_a_control_topic_that_is_none(capsys):
    """One line, exit 2."""
    assert command(["run", "steered_app:app", "--control", ""]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "App(control='') cannot be a topic" in err
