"""Options that cannot be obeyed are refused in one line, such as a blank --group of a script.

The Kafka client aborts the process for such a group: a core dump instead of an exit code.
"""

from __future__ import annotations

import pytest

from perkey.cli.main import run

SERVERS = ["--bootstrap-servers", "localhost:1"]
WHY = ["--reason", "x"]
COMMANDS = [
    ["offsets", "show", *SERVERS],
    ["offsets", "set", "--topic", "t", "--to-latest", *SERVERS],
    ["lag", *SERVERS],
    ["status", *SERVERS],
    ["why", *SERVERS],
    ["top", *SERVERS],
    ["parked", "ls"],
    ["parked", "show"],
    ["parked", "export"],
    ["parked", "release", *WHY],
    ["parked", "skip", "t", *WHY],
    ["key", "hold", "--topic", "t", "--key", "k", *WHY],
    ["key", "export", "--topic", "t", "--key", "k"],
    ["record", "export", "t:0:1"],
    ["pause", *WHY],
    ["stop", *WHY],
    ["control", "log"],
    ["dlq", "ls", "t"],
    ["dlq", "show", "t:0:1"],
    ["dlq", "stats", "t"],
    ["dlq", "replay", "t"],
]


@pytest.mark.parametrize("group", ["", " "])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_blank_group_is_refused(monkeypatch, tmp_path, capsys, command, group):
    """Before anything connects, with exit code 2."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert run([*command, "--group", group]) == 2
    assert (
        capsys.readouterr().err == f"perkey: --group {group!r}: give the name of a consumer group\n"
    )


@pytest.mark.parametrize("command", [["lag", "--group", "caf\udce9", *SERVERS], ["why", "\udcff"]])
def test_an_argument_in_another_encoding_is_refused(capsys, command):
    """Python reads its bytes as surrogates, at which the client aborts or raises SystemError."""
    assert run(command) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "is not UTF-8 text" in said


@pytest.mark.parametrize("command", [["control", "log"], ["pause", *WHY]], ids=" ".join)
def test_a_control_topic_that_cannot_be_one_is_refused(capsys, command):
    """`perkey control log --control ''` ended with a traceback."""
    assert run([*command, "--control", "", "--group", "g", *SERVERS]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "'' cannot be a topic" in said or "--control" in said


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["lag", "--watch", "--listen", "localhost:0", *SERVERS], "omit --watch and --json"),
        (["lag", "--json", "--listen", "localhost:0", *SERVERS], "omit --watch and --json"),
        (["dlq", "replay", "t", "--outcome-timeout", "5", *SERVERS], "needs --stop-key-on-refail"),
    ],
)
def test_an_option_that_another_one_makes_useless_is_refused(capsys, command, said):
    """It was accepted and ignored."""
    assert run([*command, "--group", "g"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
