"""Each command line of the pages that starts `perkey` is one that the CLI takes.

It is parsed, not run: commands, options and the number of arguments exist as they are printed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pytest
import typer
from tests.docs.test_site_blocks import PAGES, in_the_tree

from perkey.cli.commands import app

CONSOLE = re.compile(r"(?ms)^```(?:console|bash|sh|shell)\n(.*?)^```")
INLINE = re.compile(r"(?<!`)`(perkey [^`]+)`(?!`)", re.DOTALL)
#: what a printed line leaves to the reader
LEFT_OUT = re.compile(r"…|\.\.\.|[\[\]<>{}()|]|\b(?:COMMAND|OPTIONS)\b")


def parsed(words: Sequence[str]) -> str:
    """The error of these arguments, or nothing."""
    command: Any = typer.main.get_command(app)
    try:
        context = command.make_context("perkey", list(words))
        while hasattr(command, "commands"):
            if not (rest := [*context._protected_args, *context.args]):
                return "a command is missing"
            name, command, rest = command.resolve_command(context, rest)
            for parameter in command.params:
                parameter.callback = None  # it may look for a run on this machine
            context = command.make_context(name, rest, parent=context)
    except typer.Exit:  # --help, --version
        return ""
    except Exception as error:
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        return str(message())
    return ""


def commands(block: str) -> Iterator[list[str]]:
    """The words behind each `perkey` of a block: also in a pipe, with a path, on several lines."""
    block = block.replace("\\\n", " ")
    prompted = re.findall(r"(?m)^\$ (.*)$", block)
    for line in prompted or block.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("();<>|&"):
                if words and words[0].rpartition("/")[2] == "perkey":
                    yield words[1:]
                words = []
            elif words or not re.fullmatch(r"\w+=.*", word):
                words.append(word)


@cache
def named_wrong(line: str) -> str:
    """The error of a command in a sentence: it may lack arguments, and leave some to the reader."""
    if not LEFT_OUT.search(line):
        error = parsed(shlex.split(line)[1:])
        return (
            ""
            if re.match(r"Missing|Usage|a command is missing|Option .* requires", error)
            else error
        )
    command: Any = typer.main.get_command(app)
    context = command.make_context("perkey", [], resilient_parsing=True)
    words = re.split(r"[\s\\|\[\]]+", line)[1:]
    while hasattr(command, "commands"):
        if not words or LEFT_OUT.search(words[0]):
            return ""
        if (inner := command.get_command(context, words[0])) is None:
            return f"no command {words[0]}"
        command, words = inner, words[1:]
    known = {option for parameter in command.params for option in parameter.opts}
    return " ".join(word for word in words if re.match("--[a-z]", word) and word not in known)


def test_the_command_lines_of_the_pages_parse() -> None:
    """Those in blocks, whole."""
    blocks = [
        (in_the_tree(page), block) for page in PAGES for block in CONSOLE.findall(page.read_text())
    ]
    lines = [(page, words) for page, block in blocks for words in commands(block)]
    assert len(lines) > 30
    assert [(page, words, error) for page, words in lines if (error := parsed(words))] == []


def test_the_commands_that_the_pages_name_exist() -> None:
    """Those in sentences, with their options."""
    texts = [(in_the_tree(page), INLINE.findall(page.read_text())) for page in PAGES]
    lines = [(page, " ".join(line.split())) for page, named in texts for line in named]
    assert len(lines) > 100
    assert [(page, line, error) for page, line in lines if (error := named_wrong(line))] == []


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("perkey wat", "No such command 'wat'."),
        ("perkey lag --nope", "No such option: --nope (Possible options: --group)"),
        ("perkey lag --group", ""),
        ("perkey dlq", ""),
        ("perkey COMMAND --help", ""),
        ("perkey lag … --nope", "--nope"),
        ("perkey parked wat TOPIC[:P]", "no command wat"),
        (r"perkey stop [--mode in_flight\|buffered]", ""),
        (r"perkey stop [--nope in_flight\|buffered]", "--nope"),
    ],
)
def test_a_command_in_a_sentence_that_does_not_exist_is_an_error(line: str, error: str) -> None:
    """Also where the sentence leaves something out."""
    assert named_wrong(line) == error


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("$ perkey wat orders", "No such command 'wat'."),
        ("$ perkey dlq wat", "No such command 'wat'."),
        ("$ perkey why --nope", "No such option: --nope"),
        ("$ FEW=1 ./bin/perkey why --nope", "No such option: --nope"),
        ("$ echo 1 | perkey produce", "Missing argument 'topic'"),
        ("perkey lag \\\n  --nope x && ls", "No such option: --nope"),
        ("$ ls\n$ perkey record skip orders:2:17", "Missing option '--reason'"),
        ("$ perkey run a:b --members two", "Invalid value for '--members'"),
    ],
)
def test_a_command_line_that_does_not_parse_is_an_error(line: str, error: str) -> None:
    """An unknown command or option, a missing argument, a wrong number."""
    (words,) = commands(line)
    assert error in parsed(words)
