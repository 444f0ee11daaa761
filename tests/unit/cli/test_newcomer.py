"""`perkey topics` and `perkey produce` without a broker; `python -m perkey`; every page of help."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from perkey import __version__
from perkey.cli.commands import app
from perkey.cli.main import run

ROOT = Path(__file__).parents[3]
NOBODY = ["--bootstrap-servers", "127.0.0.1:1"]


def commands(command, path=("perkey",)) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every command and every group of commands, by its words."""
    yield path, command
    if not hasattr(command, "list_commands"):
        return
    context = typer.Context(command)
    for name in command.list_commands(context):
        yield from commands(command.get_command(context, name), (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))


def fails(capsys, *arguments, code=2):
    assert run(list(arguments)) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1, printed.err
    return printed.err


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(words):
    """Whoever asks a command for help sees a line that he can run."""
    example = COMMANDS[words].help.partition("Example: ")[2]
    assert " ".join(words) in example


@pytest.mark.parametrize(
    "words", [words for words, command in COMMANDS.items() if hasattr(command, "list_commands")],
    ids=" ".join,
)  # fmt: skip
def test_a_list_of_commands_has_whole_sentences(capsys, words):
    """No summary is cut at 80 columns."""
    assert run([*words[1:], "--help"]) == 0
    assert "..." not in capsys.readouterr().out.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("topic", "create", "x"), "did you mean topics?"),
        (("start", "app:app"), "choose one of run, broker, offsets,"),
        (("broker", "start"), "choose one of up, down, status;"),
        (("dlq", "list"), "choose one of replay, ls, show, stats;"),
        (("redo", "orders:2:17"), "command 'redo': it is retired: `perkey dlq replay TOPIC` sends"),
        (("record", "redo", "orders:2:17"), "and `perkey replay module:app` handles a range of"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else "",
)
def test_an_unknown_command_names_the_known_ones(capsys, words, hint):
    """The one that was meant, or all."""
    assert hint in fails(capsys, *words)


@pytest.mark.parametrize("program", ["simulators", "demo", "benchmarks"])
def test_every_program_of_the_repository_has_help_with_an_example(program):
    """`python -m PROGRAM --help`, from the repository's folder, shows a line that can be run."""
    shown = subprocess.run(
        [sys.executable, "-m", program, "--help"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert f"Example: python -m {program} --" in shown.stdout


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "x" * 250, "..", "."])
@pytest.mark.parametrize("command", [("topics", "create"), ("produce",)], ids=" ".join)
def test_a_name_that_cannot_be_a_topic(capsys, command, name):
    """Kafka's rule for names, said before anybody is asked."""
    assert "cannot be a topic" in fails(capsys, *command, name, *NOBODY)


@pytest.mark.parametrize("count", ["0", "-1", "10001", "many"])
def test_a_wrong_number_of_partitions(capsys, count):
    """1 to 10,000 partitions: one line, exit 2."""
    assert "partitions" in fails(capsys, "topics", "create", "x", "--partitions", count)


@pytest.mark.parametrize("command", [("topics", "create"), ("produce",)], ids=" ".join)
def test_properties_are_checked(capsys, command):
    """A property that librdkafka does not know, or that an option gives, is one line."""
    assert "nonsense" in fails(capsys, *command, "x", "-X", "nonsense=1")
    assert "--bootstrap-servers" in fails(capsys, *command, "x", "-X", "bootstrap.servers=a:1")
    assert "key=value" in fails(capsys, *command, "x", "-X", "security.protocol")
    assert "cannot be read" in fails(capsys, *command, "x", "--config", "/nowhere/at.all")


def test_a_file_that_cannot_be_read(capsys, tmp_path):
    """A missing file, or a folder, is one line."""
    assert "cannot be read" in fails(capsys, "produce", "x", str(tmp_path / "none"))
    assert "Is a directory" in fails(capsys, "produce", "x", str(tmp_path))


#: What a command is given, by the name of the parameter.
GIVEN = {
    "group": "g", "topic": "t", "names": "x", "reason": "r", "settings": "concurrency=2",
    "records": "t:0:1", "record": "t:0:1", "letter": "t.dlq:0:1", "key": "k", "place": "t:0:1",
    "control": "c", "offset": "1", "partition": "0",
}  # fmt: skip
OPTIONAL = {"group", "key", "place", "records", "control", "offset", "partition"}


def call(words, address):
    """A call of the command that connects to this address."""
    line = list(words[1:])
    for one in COMMANDS[words].params:
        if one.name in GIVEN and (one.required or one.name in OPTIONAL):
            name = max(one.opts, key=len)
            line += [name] if name.startswith("-") else []
            line.append(GIVEN[one.name])
    return [*line, "--bootstrap-servers", address]


CONNECTING = [
    words
    for words, command in COMMANDS.items()
    if any("--bootstrap-servers" in one.opts for one in command.params)
]


@pytest.mark.parametrize("words", CONNECTING, ids=" ".join)
def test_an_address_with_a_password_is_refused_and_not_shown(capsys, words):
    """By each command that connects, before it does."""
    said = fails(capsys, *call(words, "me:hunter2@127.0.0.1:1"))
    assert "has a user or a password in an address" in said
    assert "hunter2" not in said


@pytest.mark.parametrize("command", [("topics", "create"), ("produce",)], ids=" ".join)
def test_a_broker_that_does_not_answer_is_no_bad_input(capsys, monkeypatch, command):
    """Nobody at the address: one line that says so, exit 1."""
    monkeypatch.setattr("perkey.cli.cluster.ANSWER_S", 0.3)
    said = fails(capsys, *command, "x", *NOBODY, code=1)
    assert "127.0.0.1:1" in said
    assert "is it running" in said


def test_python_m_perkey_is_perkey():
    """The command works where its script is on no path."""
    done = subprocess.run(
        [sys.executable, "-m", "perkey", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"perkey {__version__}\n"


def test_the_install_section_names_the_extras_that_there_are():
    """README's table of extras names those of pyproject.toml."""
    section = (ROOT / "README.md").read_text().split("## Install")[1].split("##")[0]
    named = set(re.findall(r"perkey\[(\w+)\]", section))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert named == set(project["optional-dependencies"])
