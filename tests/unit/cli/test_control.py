"""`perkey pause`, `resume`, `set`, `stop`, `control log`: to runs by their sockets."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest
from tests.unit.observe.test_local import Source, own_folder

from perkey.cli.main import run as command
from perkey.observe.local import LocalServer, folder
from perkey.observe.orders import Answer

__all__ = ["own_folder"]  # a fixture of every test here
BECAUSE = ("--reason", "a test")


class Member(Source):
    """A run of a group; `others` are members that it knows of."""

    def __init__(self, name: str, group: str = "g", *others: str, outcome: str = "done") -> None:
        self.name, self.group, self.others, self.outcome = name, group, others, outcome
        self.orders: list[Any] = []

    def members(self) -> list[dict[str, Any]]:
        return [{"app": {"member": one, "group": self.group}} for one in (self.name, *self.others)]

    def control(self, order: Any) -> list[Answer]:
        self.orders.append(order)
        return [Answer(self.name, self.outcome, "as asked", 1e9)]

    def commands(self) -> list[dict[str, Any]]:
        force = {
            "action": "set", "topic": None, "handler": "check", "settings": {"concurrency": 5},
            "reason": "429s", "until": 1e9,
        }  # fmt: skip
        row = {
            "at": 1e9, "outcome": "done", "detail": "set", "reason": "429s",
            "claimed_by": "ann@ops",
        }  # fmt: skip
        return [{"member": self.name, "in_force": [force], "log": [row]}]


@pytest.fixture
def members():
    """Serve runs; a list of them."""
    servers = []

    def serve(*sources: Member) -> tuple[Member, ...]:
        servers.extend(LocalServer(one) for one in sources)
        return sources

    yield serve
    for one in servers:
        one.close()


def called(capsys: Any, *words: str) -> tuple[int, str, str]:
    """Exit code, output, errors."""
    capsys.readouterr()
    code = command(words)
    return code, *capsys.readouterr()


def test_every_member_of_the_group_obeys(members, capsys):
    """Their answers are printed, and the exit code is 0; other groups are not asked."""
    one, two, other = members(Member("m1", "g", "m2"), Member("m2", "g", "m1"), Member("x", "h"))
    words = ("pause", "--topic", "t", "--for", "30m", *BECAUSE)
    code, _, err = called(capsys, *words)
    assert (code, "members of 2 groups run here: give --group, one of g, h" in err) == (2, True)
    code, out, err = called(capsys, *words, "--group", "g")
    assert (code, err) == (0, "")
    assert out.splitlines() == ["m1: done: as asked", "m2: done: as asked"]
    assert not other.orders
    (order,), (same,) = one.orders, two.orders
    assert order == same
    assert (order.topic, order.for_s, order.reason) == ("t", 1800.0, "a test")
    assert order.claimed_by.endswith(f"@{socket.gethostname()}")


def test_an_address_without_a_control_topic_is_noted(members, capsys):
    """It reaches the runs on this machine; one line shows that the address has no effect."""
    members(Member("m1"))
    code, out, err = called(capsys, "resume", *BECAUSE, "--bootstrap-servers", "kafka-1:9092")
    assert (code, out) == (0, "m1: done: as asked\n")
    assert err.count("\n") == 1
    assert "--bootstrap-servers, -X and --config have no effect" in err


def test_a_member_that_is_not_reached_is_an_exit_1(members, capsys):
    """It runs on another machine."""
    members(Member("m1", "g", "m9"))
    code, out, _ = called(capsys, "resume", *BECAUSE, "--json")
    rows = {one["member"]: one["outcome"] for one in json.loads(out)["answers"]}
    assert (code, rows) == (1, {"m1": "done", "m9": "no answer"})


def test_a_refusal_is_an_exit_1(members, capsys):
    """With the member's line."""
    members(Member("m1", outcome="refused"))
    code, out, _ = called(capsys, "set", "concurrency=5", *BECAUSE)
    assert (code, out) == (1, "m1: refused: as asked\n")


def test_a_run_that_does_not_answer_is_an_exit_1(members, capsys):
    """It is named; the others have obeyed."""
    members(Member("m1"))
    dead = folder() / f"{os.getpid()}-99.sock"
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(dead))
        deaf.listen(0)
        from perkey.observe import local

        before, local.ANSWER_S = local.ANSWER_S, 3.0
        try:
            code, out, _ = called(capsys, "pause", *BECAUSE)
        finally:
            local.ANSWER_S = before
    assert code == 1
    assert "m1: done" in out
    assert "no answer" in out


@pytest.fixture
def suspended():
    """A suspended process with a socket where no code answers, of a member of a group; its id."""
    children, sockets = [], []

    def make(group: str, member: str) -> int:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        children.append(child)
        child.send_signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        path = folder() / f"{child.pid}-0.sock"
        sockets.append(socket.socket(socket.AF_UNIX))
        sockets[-1].bind(str(path))
        sockets[-1].listen()
        about = {"group": group, "member": member}
        path.with_suffix(".about").write_text(json.dumps(about))
        return child.pid

    yield make
    for child in children:
        child.kill()
        child.wait()
    for one in sockets:
        one.close()


linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc shows it")


@linux
def test_the_only_member_of_a_group_is_suspended(members, suspended, capsys):
    """It is named with its process: the group has a member here, which cannot answer."""
    (other,) = members(Member("x", "h"))
    pid = suspended("g", "m1")
    code, out, err = called(capsys, "pause", "--group", "g", *BECAUSE)
    assert code == 1
    assert f"its process is suspended; resume it with kill -CONT {pid}" in out + err
    assert not other.orders


@linux
def test_a_suspended_member_is_named_beside_those_that_obey(members, suspended, capsys):
    """Once, also where the others know of it."""
    members(Member("m1", "g", "m2"))
    pid = suspended("g", "m2")
    code, out, _ = called(capsys, "pause", "--group", "g", *BECAUSE)
    assert (code, out.splitlines()[0]) == (1, "m1: done: as asked")
    assert out.count("m2: ") == 1
    assert f"m2: no answer: {pid}-0.sock: no answer within 0.5 s: its process is suspended" in out


@linux
def test_a_suspended_member_of_another_group_is_not_asked(members, suspended, capsys):
    """It has no part in the command, and does not make it fail."""
    members(Member("m1"))
    suspended("h", "x")
    assert called(capsys, "pause", "--group", "g", *BECAUSE)[:2] == (0, "m1: done: as asked\n")
    code, _, err = called(capsys, "pause", *BECAUSE)
    assert (code, "members of 2 groups run here: give --group, one of g, h" in err) == (2, True)
    code, _, err = called(capsys, "pause", "--group", "k", *BECAUSE)
    assert (code, "no member of group k runs here, only of g, h" in err) == (2, True)


def test_a_dry_run_says_so(members, capsys):
    """The member gets it as one."""
    (one,) = members(Member("m1", outcome="would"))
    code, out, err = called(capsys, "stop", "--dry-run", *BECAUSE)
    assert (code, one.orders[0].dry_run) == (0, True)
    assert "m1: would" in out
    assert "Nothing was changed" in err


def test_the_log_lists_commands_and_what_is_in_force(members, capsys):
    """Of every group."""
    members(Member("m1"), Member("x", "h"))
    code, out, _ = called(capsys, "control", "log")
    assert code == 0
    assert "in force: g m1: set handler check concurrency=5 until 01:46:40Z (429s)" in out
    assert "ann@ops" in out
    assert "h x" in out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("pause",), "Missing option '--reason'"),
        (("pause", "--reason", " "), "a reason is required"),
        (("pause", *BECAUSE, "--for", "never"), "--for 'never': write a number and s, m, h or d"),
        (("pause", *BECAUSE, "--topic", "a", "--handler", "b"), "give topic or handler"),
        (("set", *BECAUSE), "Missing argument 'NAME=VALUE"),
        (("set", "speed=9", *BECAUSE), "speed cannot be set: one of concurrency"),
        (("stop", *BECAUSE, "--mode", "soon"), "mode 'soon' is not known"),
        (("pause", *BECAUSE, "--group", "z"), "no member of group z runs here, only of g"),
        (("pause", *BECAUSE, "--url", "ftp://x"), "write http://HOST:PORT"),
        (("pause", *BECAUSE, "--token-file", "t"), "--token-file requires --url"),
    ],
)
def test_bad_input_is_one_line(members, capsys, words, reason):
    """Exit 2, and no member is asked."""
    (one,) = members(Member("m1"))
    code, out, err = called(capsys, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err
    assert not one.orders


def test_no_run_at_all(capsys):
    """One line that names the cure."""
    code, _, err = called(capsys, "pause", *BECAUSE)
    assert (code, "no running Perkey app found on this machine" in err) == (2, True)


@pytest.mark.parametrize("name", ["pause", "resume", "set", "stop"])
def test_every_command_has_help_with_an_example(capsys, name):
    """`--help` shows one call."""
    code, out, _ = called(capsys, name, "--help")
    assert code == 0
    assert f"Example: perkey {name}" in out
    assert "--dry-run" in out
