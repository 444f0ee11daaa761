"""`perkey broker` without a broker: what it refuses, and what it says when there is nothing."""

from __future__ import annotations

import json
import socket

import pytest

from perkey.cli.main import run


@pytest.fixture(autouse=True)
def _own_state(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def fails(capsys, *arguments, code=2):
    assert run(list(arguments)) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1, printed.err
    return printed.err


@pytest.mark.parametrize("nodes", ["0", "4", "-1"])
def test_a_wrong_number_of_nodes(capsys, nodes):
    """Only 1 to 3 nodes: one line, exit 2."""
    assert "1 to 3 nodes" in fails(capsys, "broker", "up", "--nodes", nodes)


@pytest.mark.parametrize("port", ["0", "65536", "http"])
def test_a_wrong_port(capsys, port):
    """A port that cannot be is one line, exit 2."""
    assert "port" in fails(capsys, "broker", "up", "--port", port)


def test_a_port_in_use(capsys):
    """A port somebody holds is named."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"port {port}" in fails(capsys, "broker", "up", "--port", port)


def test_an_unknown_option(capsys):
    """An unknown option is one line that names the help."""
    assert "see `perkey broker up --help`" in fails(capsys, "broker", "up", "--prot", "1")


def test_an_unknown_command(capsys):
    """So is an unknown command."""
    assert "wobble" in fails(capsys, "wobble")


def test_no_java(capsys, monkeypatch, tmp_path):
    """Without Java `up` says how to get it."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "install Java 17" in fails(capsys, "broker", "up")


def test_no_client_to_fetch_with(capsys, monkeypatch, tmp_path):
    """Without jars, Maven and PySpark `up` names both clients."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere:/bin")
    monkeypatch.setenv("PERKEY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("perkey.broker.jars._clients", lambda *_: {})
    line = fails(capsys, "broker", "up")
    assert "Maven" in line
    assert "PySpark" in line


def test_a_data_folder_that_is_a_file(capsys, tmp_path):
    """A --data that cannot be a folder is one line."""
    (tmp_path / "file").write_text("")
    line = fails(capsys, "broker", "up", "--data", str(tmp_path / "file"))
    assert "cannot be used" in line


def test_down_without_a_broker_is_no_error(capsys):
    """`down` twice is as good as once."""
    assert run(["broker", "down"]) == 0
    assert "no broker was running" in capsys.readouterr().err


def test_status_without_a_broker(capsys, tmp_path):
    """`status --json` of nothing is whole, and makes no folder."""
    assert run(["broker", "status", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "state": "down",
        "bootstrap": None,
        "data": str(tmp_path / "state" / "perkey" / "broker"),
        "nodes": [],
    }
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("command", [[], ["broker"]])
def test_no_command_shows_the_help(capsys, command):
    """Without a command the help goes to stderr, exit 2."""
    assert run(command) == 2
    assert "Usage:" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["broker", name] for name in ("up", "down", "status")])
def test_each_command_has_help_with_an_example(capsys, command):
    """--help shows an example of the command."""
    assert run([*command, "--help"]) == 0
    assert "Example: perkey " + " ".join(command) in capsys.readouterr().out


def test_the_version(capsys):
    """--version prints name and version."""
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("perkey ")
