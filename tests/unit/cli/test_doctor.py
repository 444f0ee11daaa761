"""`perkey doctor` without a broker."""

from __future__ import annotations

import json
import sys
from importlib import metadata

import pytest

import perkey
from perkey.cli import doctor
from perkey.cli.main import run as command
from perkey.errors import ConfigError
from perkey.kafka import clib


def states(findings) -> list[str]:
    """The state of each finding."""
    return [one.state for one in findings]


def test_this_machine_is_in_order(capsys):
    """The one that runs the tests is."""
    assert command(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "librdkafka" in out
    assert out.endswith("everything is in order\n")


def test_a_client_that_cannot_be_used_fails(monkeypatch, capsys):
    """With what to install, and exit code 1."""

    def refused() -> None:
        raise ConfigError("install its wheel")

    monkeypatch.setattr(clib, "library", refused)
    assert command(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert {"state": "failure", "text": "install its wheel", "next": ""} in found


def test_without_java_there_is_a_note(monkeypatch):
    """Only Spark and the local broker need it."""

    def refused() -> None:
        raise ConfigError("none was found")

    monkeypatch.setattr(doctor, "check_java", refused)
    (note,) = [one for one in doctor.of_machine() if one.state == "note"]
    assert "none was found" in note.text


def test_extras_are_installed_whole_or_not(monkeypatch):
    """With what the extras of their packages need; not what another system or Python needs."""
    lines = {
        "perkey": [
            "typer>=1", 'aa[x]>=1; extra == "one"', 'bb; extra == "one"', 'aa<3; extra == "two"',
            'aa[x,y]; extra == "three"', 'aa[z]; sys_platform != "x" and extra == "four"',
        ],
        "aa": ['ok; extra == "x"', 'bb>=2; extra == "y"', 'bb; python_version < "3" and extra == "z"'],
    }  # fmt: skip
    monkeypatch.setattr(metadata, "requires", lines.get)

    def version(package: str) -> str:
        if package == "bb":
            raise metadata.PackageNotFoundError
        return "1"

    monkeypatch.setattr(metadata, "version", version)
    assert doctor._extras() == (["two", "four"], ["one", "three"])


def test_an_app_without_handlers_fails():
    """Nothing else is asked."""
    app = perkey.App("g", {"bootstrap.servers": "localhost:1"})
    (found,) = doctor.of_app(app)
    assert (found.state, found.text) == ("failure", "the app has no handler")


def test_a_property_that_librdkafka_does_not_know_fails():
    """After the handlers, with its own line."""
    app = perkey.App("g", {"bootstrap.servers": "localhost:1", "no.such.property": "1"})
    app.consume("t", timeout_s=1)(lambda record: None)
    *handlers, last = doctor.of_app(app)
    assert states(handlers) == ["ok"]
    assert (last.state, "no.such.property" in last.text) == ("failure", True)


def test_a_handler_without_a_time_out_is_a_warning():
    """A call that hangs would hold its slot."""
    app = perkey.App("g", {"bootstrap.servers": "localhost:1", "no.such.property": "1"})
    app.consume("t")(lambda record: None)
    assert states(doctor.of_app(app)) == ["ok", "warning", "failure"]


def test_a_server_that_could_not_start_fails(tmp_path, monkeypatch):
    """For want of its libraries, or of a token; a run would end with the same line."""
    kafka = {"bootstrap.servers": "localhost:1", "no.such.property": "1"}
    app = perkey.App("g", kafka, http="0.0.0.0:1", http_token_file=str(tmp_path / "token"))
    app.consume("t", timeout_s=1)(lambda record: None)
    _, found, _ = doctor.of_app(app)
    assert (found.state, "token: cannot be read" in found.text) == ("failure", True)
    (tmp_path / "token").write_text("x" * 32)
    assert states(doctor.of_app(app)) == ["ok", "ok", "failure"]
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    _, found, _ = doctor.of_app(app)
    assert (found.state, "pip install 'perkey[http]'" in found.text) == ("failure", True)


@pytest.mark.parametrize("target", ["nope", "no_such_module:app"])
def test_a_wrong_target_is_one_line(target, capsys, monkeypatch):
    """Before any check; exit code 2."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert command(["doctor", target]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
