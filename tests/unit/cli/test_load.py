"""What `perkey run` says of a module that cannot be imported."""

from __future__ import annotations

import pytest

from perkey.cli.load import load_module
from perkey.errors import ConfigError


def test_the_line_is_the_users_own(tmp_path, monkeypatch) -> None:
    """Also where the standard library raised it, as for a variable that is not set."""
    (tmp_path / "needs_a_variable.py").write_text('import os\nX = os.environ["NOT_SET_ANYWHERE"]\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"NOT_SET_ANYWHERE.* \(needs_a_variable\.py:2\)$"):
        load_module("needs_a_variable")


def test_an_error_that_perkey_raised_names_the_line_of_the_app(tmp_path, monkeypatch) -> None:
    """And the option that was meant."""
    (tmp_path / "has_a_typo.py").write_text(
        'import perkey\napp = perkey.App(group="g", kafka={})\n@app.consume("t", concurency=3)\n'
        "def check(record): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"did you mean concurrency\? \(has_a_typo\.py:3\)$"):
        load_module("has_a_typo")
