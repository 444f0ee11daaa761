"""`perkey dlq replay` on a terminal: what it asks, its bar, and the wait for each outcome."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import sys
import threading
from contextlib import suppress
from typing import Any

import pytest
import typer
from rich.live import _RefreshThread
from tests.unit.cli.test_dlq import DLQ, TOPIC, Call, handle, kafka, refused

from perkey.cli.main import run as command
from perkey.dlq import refails
from perkey.testing import MemoryKafka

__all__ = ["kafka"]  # the fixture
CAREFUL = ("replay", DLQ, "--yes", "--stale", "replay", "--stop-key-on-refail")


@pytest.fixture
def dlq(kafka, capsys):
    """Runs `perkey dlq WORDS…`."""
    return lambda *words: Call(kafka, capsys, *words)


class Terminal:
    """A pty in place of stdin and stderr, on which lines were typed already."""

    def __init__(self, monkeypatch: Any, typed: str) -> None:
        self._ours, theirs = pty.openpty()
        os.write(self._ours, typed.encode())
        self._in = os.fdopen(os.dup(theirs), closefd=True)
        self._err = io.TextIOWrapper(os.fdopen(theirs, "wb", 0), write_through=True)
        monkeypatch.setattr(sys, "stdin", self._in)
        monkeypatch.setattr(sys, "stderr", self._err)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "100")

    def shown(self) -> str:
        """All that was written, without colours."""
        self._in.close()
        self._err.close()
        found = b""
        with suppress(OSError):  # the other side is closed: nothing more comes
            while part := os.read(self._ours, 65_536):
                found += part
        os.close(self._ours)
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", found.decode())


def typed(
    kafka: MemoryKafka, monkeypatch: Any, capsys: Any, lines: str, *words: str
) -> tuple[int, str, str]:
    """Exit code, stdout, and the terminal of a replay."""
    with monkeypatch.context() as patch:
        terminal = Terminal(patch, lines)
        code = command(["dlq", "replay", DLQ, *words, "--bootstrap-servers", kafka.bootstrap])
        shown = terminal.shown()
    return code, capsys.readouterr().out, shown


@pytest.mark.parametrize(("answer", "sent"), [("skip", 3), ("replay", 4), ("only-if-newest", 2)])
def test_stale_letters_are_asked_about(kafka, monkeypatch, capsys, answer, sent):
    """The question names the answers and the option; the answer is done, with a bar."""
    code, out, shown = typed(kafka, monkeypatch, capsys, f"{answer}\n", "--yes")
    assert code == 0
    question = "What to do with stale letters (skip | replay | only-if-newest; --stale):"
    assert question in shown
    assert f"reading {DLQ}" in shown
    assert "sending" in shown
    assert f"{sent} letters sent to {TOPIC}" in out


def test_no_bar_is_drawn_over_a_question(kafka, monkeypatch, capsys):
    """It is taken away before it is asked, and is back for what is sent."""
    drawing: list[bool] = []
    prompt = typer.prompt

    def noted(*given: Any, **options: Any) -> Any:
        alive = [one for one in threading.enumerate() if isinstance(one, _RefreshThread)]
        # One that was stopped draws nothing, and ends a moment later.
        drawing.append(not all(one.done.is_set() for one in alive))
        return prompt(*given, **options)

    monkeypatch.setattr(typer, "prompt", noted)
    code, _, shown = typed(kafka, monkeypatch, capsys, "skip\n", "--yes")
    assert (code, drawing) == (0, [False])
    assert shown.index("What to do") < shown.index("sending")


def test_an_answer_that_is_none_sends_nothing(kafka, monkeypatch, capsys):
    """One line names the answers."""
    code, _, shown = typed(kafka, monkeypatch, capsys, "maybe\n", "--yes")
    assert code == 2
    assert "'maybe' is none of skip, replay, only-if-newest" in shown
    assert len(kafka.records(TOPIC)) == 8


@pytest.mark.parametrize(("answer", "code", "sent"), [("yes", 0, 3), ("no", 2, 0)])
def test_another_group_is_asked_about(kafka, monkeypatch, capsys, answer, code, sent):
    """It would get the records, too: nothing goes without a yes."""
    handle(kafka, bad=set(), group="search")
    options = ("--yes", "--stale", "skip", "--no-progress")
    found, _, shown = typed(kafka, monkeypatch, capsys, f"{answer}\n", *options)
    assert found == code
    assert "search would get them, too. Continue (no | yes; --other-groups)" in shown
    assert "sending" not in shown
    assert len(kafka.records(TOPIC)) == 8 + sent


def test_a_key_that_fails_again_stops(kafka, dlq, monkeypatch):
    """Of k0 the first letter fails again: its second one stays; the others go."""
    rounds: list[list[int]] = []

    def turn(self: Any, went: Any) -> Any:
        rounds.append(handle(kafka, bad={0}))
        return not_well(self, went)

    not_well = refails.Careful._not_well
    monkeypatch.setattr(refails.Careful, "_not_well", turn)
    call = dlq(*CAREFUL)
    assert call.code == 1
    assert "3 letters sent to orders" in call.out
    assert f"1 left out: {refails.BEHIND}" in call.out
    assert "1 of them failed again" in call.out
    assert [sorted(one) for one in rounds] == [[1, 7]]


def test_no_outcome_in_time_stops_a_key(kafka, dlq):
    """`--outcome-timeout`: no member of the group runs."""
    call = dlq(*CAREFUL, "--outcome-timeout", "0.05", "--json")
    found = json.loads(call.out)
    assert (call.code, found["sent"], found["failed_again"], found["no_outcome"]) == (1, 3, 0, 3)
    assert found["left_out"] == {refails.BEHIND: 1}


def test_letters_of_two_groups_are_refused(kafka, dlq):
    """It waits for the commits of one; nothing is sent, and --where chooses."""
    handle(kafka, bad={2}, group="search")
    words = (*CAREFUL, "--other-groups", "--outcome-timeout", "0.05")
    line = refused(dlq(*words))
    assert "these letters are of billing, search" in line
    assert "--where 'group == \"…\"'" in line
    assert len(kafka.records(TOPIC)) == 8
    call = dlq(*words, "--where", 'group == "search"', "--json")
    assert (call.code, json.loads(call.out)["sent"]) == (1, 1)


def test_two_groups_that_read_the_topic_have_to_be_meant(kafka, dlq):
    """As for any other replay: the group of the letters is not the only one that gets them."""
    handle(kafka, bad=set(), group="search")
    assert "group search reads the topic, too" in refused(dlq(*CAREFUL))
    assert len(kafka.records(TOPIC)) == 8


@pytest.mark.parametrize("given", ["0", "-1", "nan", "inf"])
def test_an_outcome_timeout_that_is_none(dlq, given):
    """One line names what to give."""
    assert "give seconds, above 0" in refused(dlq(*CAREFUL, "--outcome-timeout", given))


def test_an_empty_plan_waits_for_no_one(kafka, dlq):
    """Nothing is left to send: nothing is waited for."""
    assert json.loads(dlq(*CAREFUL, "--where", 'key == "none"', "--json").out)["sent"] == 0
