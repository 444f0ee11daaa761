"""`--control TOPIC`: commands to a whole group by its control topic, on the in-memory broker."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest
from tests.support.waiting import wait_for

import perkey
from perkey.cli import control_group
from perkey.cli.main import run as command
from perkey.observe.group_orders import command_key, packed
from perkey.observe.orders import order_of
from perkey.runtime.run import group_control
from perkey.testing import MemoryKafka
from perkey.testing.memory_connection import MemoryAdmin

LIMIT_S = 60.0
BECAUSE = ("--reason", "a test")


class Group:
    """Members of the group g, and commands to them."""

    def __init__(self, kafka: MemoryKafka, capsys: Any) -> None:
        self.kafka, self._capsys = kafka, capsys
        self.runs: list[Any] = []

    def start(self, control: str | None = "control") -> str:
        """A member that is in the group; its name."""
        servers = {"bootstrap.servers": self.kafka.bootstrap}
        app = perkey.App(group="g", kafka=servers, control=control)

        @app.consume("a")
        def one(record: perkey.Record[Any]) -> None:
            pass

        self.runs.append(app.start())
        wait_for(lambda: app.snapshot()["partitions"])
        return str(app.snapshot()["app"]["member"])

    def asked(self, *words: str, topic: str = "control") -> tuple[int, dict[str, str], str]:
        """Exit code, the outcome by member, and what went wrong."""
        self._capsys.readouterr()
        at = ("--control", topic, "--group", "g", "--bootstrap-servers", self.kafka.bootstrap)
        code = command([*words, *BECAUSE, *at, "--json"])
        out, err = self._capsys.readouterr()
        rows = json.loads(out)["answers"] if out else []
        return code, {row["member"]: row["outcome"] for row in rows}, err


@pytest.fixture
def patient(monkeypatch):
    """A loaded machine answers late: the command waits longer."""
    monkeypatch.setattr(control_group, "ANSWERS_S", LIMIT_S)


@pytest.fixture
def group(monkeypatch, capsys):
    """Nobody runs yet."""
    monkeypatch.setattr(group_control, "LOOK_S", 0.01)
    with MemoryKafka() as kafka:
        kafka.create_topic("a", 3)
        made = Group(kafka, capsys)
        yield made
        for run in made.runs:
            run.stop("now")
        for run in made.runs:
            run.wait(LIMIT_S)


def test_a_member_that_does_not_follow_the_topic_is_an_exit_1(group, monkeypatch):
    """It is counted by the group's membership, and the option is named."""
    name = group.start()
    group.start(control=None)

    def until_answered():
        """The time that is left for the others, without waiting for it."""
        return wait_for(
            lambda: any(b'"answer"' in one.key for one in group.kafka.records("control"))
        )

    monkeypatch.setattr(control_group, "_within", lambda _limit_s, what: what() or until_answered())
    code, rows, _ = group.asked("pause")
    assert (code, rows) == (1, {name: "done", "group g": "no answer"})


@pytest.mark.usefixtures("patient")
def test_a_suspended_member_of_this_machine_is_named_and_not_waited_for(group, monkeypatch):
    """Its process is known here; the others' answers are awaited."""
    name, other = group.start(), group.start()
    monkeypatch.setattr(control_group.local, "suspended", lambda group: {other: "77"})
    group.runs[1].stop("now")
    group.runs[1].wait(LIMIT_S)
    monkeypatch.setattr(MemoryAdmin, "group_state", lambda *_: ("STABLE", 2))
    began = time.monotonic()
    code, rows, _ = group.asked("pause")
    assert (code, rows) == (1, {name: "done", other: "no answer"})
    assert time.monotonic() - began < LIMIT_S / 2


@pytest.mark.usefixtures("patient")
def test_a_follower_that_is_not_in_the_group_yet_is_waited_for(group, monkeypatch):
    """It beats before it joins: its answer counts."""
    name = group.start()
    monkeypatch.setattr(MemoryAdmin, "group_state", lambda *_: ("EMPTY", 0))
    assert group.asked("pause")[:2] == (0, {name: "done"})


@pytest.mark.parametrize("by", ["release", "tombstone", "no command"])
def test_a_command_that_is_replaced_names_the_later_one(group, monkeypatch, capsys, by):
    """Two operators at once: members obey the last command for a target and answer that one."""
    monkeypatch.setattr(control_group, "RECORDS_ANSWERS_S", LIMIT_S)
    monkeypatch.setattr(control_group, "REPLACED_S", 0.0)
    group.start()
    monkeypatch.setattr(group_control.GroupControl, "_look", lambda *_: None)  # it is busy
    given = {"action": "release", "topic": "a", "key": "k", "reason": "no need", "id": "2"}
    order = order_of({**given, "claimed_by": "eve@host"})
    value = {"release": packed(order), "tombstone": None, "no command": b"{}"}[by]

    def replace() -> None:
        place = command_key("g", order)
        wait_for(lambda: any(one.key == place for one in group.kafka.records("control")))
        group.kafka.produce("control", value, place)

    other = threading.Thread(target=replace)
    other.start()
    at = ("--control", "control", "--group", "g", "--bootstrap-servers", group.kafka.bootstrap)
    code = command(["key", "hold", "--topic", "a", "--key", "k", *BECAUSE, *at])
    other.join(LIMIT_S)
    (line,) = capsys.readouterr().out.splitlines()
    names = {
        "release": "release key k of a of eve@host (no need)",
        "tombstone": "the deletion of its record",
        "no command": "a later command for the same target",
    }
    assert code == 1
    assert f"no answer: replaced before it was obeyed, by {names[by]}: give it again" in line


@pytest.mark.usefixtures("patient")
def test_a_setting_at_its_default_is_in_the_log_as_it_was_given(group, capsys):
    """`default`, not the value that stands for it."""
    group.start()
    assert group.asked("set", "concurrency=default")[0] == 0
    at = ("--group", "g", "--bootstrap-servers", group.kafka.bootstrap)
    assert command(["control", "log", "--control", "control", *at]) == 0
    assert "set everything concurrency=default until" in capsys.readouterr().out


def test_without_members_the_command_waits_for_them(group):
    """Exit 1: no one has obeyed; who starts then does."""
    group.kafka.create_topic("control")
    assert group.asked("pause")[:2] == (1, {"group g": "no answer"})
    group.start()
    assert len(group.runs[0].control.state()["in_force"]) == 1


def test_a_topic_that_is_not_there_is_one_line(group):
    """It names what makes it."""
    code, _, err = group.asked("pause", topic="nowhere")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "App(control='nowhere') makes it" in err


@pytest.mark.parametrize("key", [b"customer", None])
def test_a_topic_of_other_records_is_not_written_to(group, key):
    """A command would be a record for its consumers; it may have records of other groups."""
    group.start()
    group.kafka.create_topic("orders")
    group.kafka.produce("orders", b"an order", key)
    for words in (["pause"], ["key", "hold", "--topic", "a", "--key", "k"]):
        code, _, err = group.asked(*words, topic="orders")
        assert (code, len(err.splitlines())) == (2, 1)
        assert "topic orders is no control topic: no record of it is a command" in err
    at = ("--group", "g", "--bootstrap-servers", group.kafka.bootstrap)
    assert command(["control", "log", "--control", "orders", *at]) == 2
    assert [one.value for one in group.kafka.records("orders")] == [b"an order"]


@pytest.mark.parametrize("more", [[], ["--group", "g", "--url", "http://127.0.0.1:1"]])
def test_a_topic_requires_a_group_and_no_url(capsys, more):
    """One line."""
    assert command(["pause", *BECAUSE, "--control", "control", *more]) == 2
    assert "--control requires --group and excludes --url" in capsys.readouterr().err


@pytest.mark.usefixtures("patient")
def test_the_log_of_the_topic_is_read_when_no_member_runs(group, capsys):
    """Commands with their answers, and what is in force; a topic that is not there is one line."""
    name = group.start()
    assert group.asked("pause", "--topic", "a", "--for", "10m")[0] == 0
    assert group.asked("resume", "--topic", "a", "--dry-run")[0] == 0
    assert group.asked("pause", "--topic", "nope")[0] == 1
    group.runs[0].stop("now")
    group.runs[0].wait(LIMIT_S)
    at = ("--group", "g", "--bootstrap-servers", group.kafka.bootstrap)
    assert command(["control", "log", "--control", "control", *at, "--json"]) == 0
    paused, resumed, refused = json.loads(capsys.readouterr().out)
    assert (paused["action"], paused["topic"], paused["until"] > time.time()) == (
        "pause",
        "a",
        True,
    )
    assert [(one["member"], one["outcome"]) for one in paused["answers"]] == [(name, "done")]
    assert (resumed["dry_run"], resumed["until"], refused["until"]) == (True, None, None)
    assert command(["control", "log", "--control", "control", *at]) == 0
    out = capsys.readouterr().out
    assert "in force: pause topic a until" in out
    assert "resume topic a (dry" in out
    assert command(["control", "log", "--control", "none", *at]) == 2
    assert "control topic none does not exist" in capsys.readouterr().err
    assert command(["control", "log", "--control", "control"]) == 2
    assert "--control requires --group" in capsys.readouterr().err


def test_a_follower_that_does_not_answer_is_an_exit_1(group, monkeypatch, capsys):
    """It beats and does not obey: its name and the time are in one line."""
    monkeypatch.setattr(group_control.GroupControl, "_take", lambda *_: None)
    name = group.start()
    monkeypatch.setattr(control_group, "_within", lambda _limit_s, what: what() or True)
    at = ("--control", "control", "--group", "g", "--bootstrap-servers", group.kafka.bootstrap)
    assert command(["pause", *BECAUSE, *at]) == 1
    out = capsys.readouterr().out
    assert out == f"{name}: no answer: it follows control and has not answered in 10 s\n"
