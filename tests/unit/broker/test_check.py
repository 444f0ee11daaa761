"""`python -m perkey.broker` checks that this machine can run a broker."""

from __future__ import annotations

import sys

import pytest

from perkey.broker import __main__ as check


@pytest.mark.parametrize("argument", ["up", "--help"])
def test_an_argument_is_refused(monkeypatch, capsys, argument):
    """It was ignored: `python -m perkey.broker up` ended with 0 and started nothing."""
    monkeypatch.setattr(sys, "argv", ["perkey.broker", argument])
    monkeypatch.setattr(check, "ensure_jars", lambda: pytest.fail("jars are looked for"))
    assert check.main() == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "perkey broker up" in err
