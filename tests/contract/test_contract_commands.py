"""Commands to a run: the same by its socket, by HTTP and by the control topic, on both brokers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.contract.clusters import LIMIT_S, Cluster
from tests.contract.test_contract_app import app_on
from tests.support.waiting import wait_for

import perkey
from perkey.cli import control_group
from perkey.cli.main import run as command
from perkey.runtime.run import group_control

BECAUSE = ("--reason", "a test")


class Commanded:
    """A member that runs, and commands to it one way: values with b fail until it is repaired."""

    def __init__(self, cluster: Cluster, folder: Path, way: str, output: Callable[[], Any]) -> None:
        self.topic, self._cluster, self._output = cluster.topic(), cluster, output
        self.done: list[str] = []
        self.repaired = False
        token = folder / "token"
        token.write_text("t" * 20)
        token.chmod(0o600)
        control = f"control-{self.topic}"
        served = {"http": "127.0.0.1:0", "http_token_file": token, "allow_control": True}
        options: dict[str, dict[str, Any]] = {"http": served, "topic": {"control": control}}
        self.app = app_on(cluster, self.topic, **options.get(way, {}))

        @self.app.consume(self.topic, retry=perkey.Retry(attempts=2, delay_s=0.01))
        def check(record: perkey.Record[Any]) -> None:
            value = record.value.decode()
            if value.startswith("b") and not self.repaired:
                raise KeyError(value)
            self.done.append(value)

        self.run: Any = self.app.start()
        wait_for(lambda: self.app.snapshot()["partitions"], LIMIT_S)
        self._at: list[str] = []
        if way == "http":
            address = self.run._outside._http.address
            self._at = ["--url", f"http://{address}", "--token-file", str(token)]
        if way == "topic":
            servers = ["--bootstrap-servers", cluster.broker.bootstrap]
            self._at = ["--control", control, "--group", self.topic, *servers]

    def produce(self, *values: str, key: bytes | None = None) -> None:
        """Records of one key."""
        for value in values:
            self._cluster.produce(self.topic, value.encode(), key)

    def asked(self, *words: str) -> tuple[int, str, str]:
        """The exit code, and outcome and detail of the member's answer; errors, if it has none."""
        self._output()
        code = command([*words, *BECAUSE, *self._at, "--json"])
        out, err = self._output()
        answers = json.loads(out)["answers"] if out else []
        if not answers:
            return code, "", err
        assert {answer["member"] for answer in answers} == {self.app.snapshot()["app"]["member"]}
        return code, answers[-1]["outcome"], answers[-1]["detail"] + err

    def waiting(self, name: str) -> int:
        """How many of its records are in this place, such as `parked` or `on_hold`."""
        return sum(row["places"].get(name, 0) for row in self.app.snapshot()["partitions"])


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine answers late; members look often."""
    monkeypatch.setattr(group_control, "LOOK_S", 0.01)
    monkeypatch.setattr(control_group, "ANSWERS_S", LIMIT_S)
    monkeypatch.setattr(control_group, "RECORDS_ANSWERS_S", LIMIT_S)


def ended(run: Any) -> None:
    """The run, stopped."""
    run.stop("now")
    run.wait(LIMIT_S)


@pytest.fixture(params=["socket", "http", "topic"])
def commanded(
    cluster: Cluster,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Commanded]:
    """One for each way."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PERKEY_SOCKET", "1")
    made = Commanded(cluster, tmp_path, request.param, capsys.readouterr)
    yield made
    ended(made.run)


def test_a_pause_and_a_setting_are_in_force_until_they_end(commanded: Commanded) -> None:
    """Nothing starts; a refusal and a dry run change nothing; all of it is in the log."""
    code, outcome, detail = commanded.asked("pause", "--topic", commanded.topic, "--for", "10m")
    assert (code, outcome) == (0, "done"), detail
    assert detail.startswith(f"paused topic {commanded.topic} until ")
    commanded.produce("a")
    wait_for(lambda: commanded.waiting("ready") == 1, LIMIT_S)
    assert commanded.asked("set", "concurrency=2", "--handler", "check")[:2] == (0, "done")
    assert commanded.app.snapshot()["handlers"]["check"]["concurrency"] == 2
    code, outcome, detail = commanded.asked("set", "concurrency=1001")
    assert (code, outcome, "give 1000 or less" in detail) == (1, "refused", True)
    code, outcome, detail = commanded.asked("resume", "--dry-run")
    assert (code, outcome, f"first: {commanded.topic}:0:0 queued" in detail) == (0, "would", True)
    (halt,) = [one for one in commanded.app.snapshot()["halts"] if one["cause"] == "command"]
    assert (halt["topic"], halt["reason"]) == (commanded.topic, "a test")
    state = commanded.run.control.state()
    assert [one["action"] for one in state["in_force"]] == ["pause", "set"]
    assert commanded.done == []
    assert commanded.asked("resume")[:2] == (0, "done")
    wait_for(lambda: commanded.done == ["a"], LIMIT_S)
    assert commanded.asked("resume")[:2] == (0, "unchanged")
    log = commanded.run.control.state()["log"]
    outcomes = [(row["action"], row["outcome"], row["reason"]) for row in log]
    assert outcomes == [
        (action, outcome, "a test")
        for action, outcome in (
            ("pause", "done"), ("set", "done"), ("set", "refused"), ("resume", "would"),
            ("resume", "done"), ("resume", "unchanged"),
        )
    ]  # fmt: skip
    assert all("@" in row["claimed_by"] for row in log)


def test_records_are_skipped_released_and_held(commanded: Commanded) -> None:
    """What is skipped is committed and never handled; the rest of its key in order."""
    commanded.produce("b0", "1", key=b"a")
    commanded.produce("b2", "3", key=b"b")
    wait_for(lambda: commanded.waiting("parked") == 2, LIMIT_S)
    first = f"{commanded.topic}:0:0"
    code, outcome, detail = commanded.asked("record", "skip", first, "--dry-run")
    assert (code, outcome, f"{first} skipped: parked, key a" in detail) == (0, "would", True)
    assert commanded.waiting("parked") == 2
    code, outcome, detail = commanded.asked("record", "skip", first)
    assert (code, outcome, f"skipped 1: {first}" in detail) == (0, "done", True)
    assert commanded.app.snapshot()["partitions"][0]["committed"] >= 1
    wait_for(lambda: commanded.done == ["1"], LIMIT_S)
    assert commanded.asked("record", "skip", first)[:2] == (0, "unchanged")

    commanded.repaired = True
    at = ("--topic", commanded.topic, "--key")
    code, outcome, detail = commanded.asked("key", "release", *at, "b")
    assert (code, outcome, "released 1" in detail) == (0, "done", True)
    wait_for(lambda: commanded.done == ["1", "b2", "3"], LIMIT_S)

    assert commanded.asked("key", "hold", *at, "c")[:2] == (0, "done")
    commanded.produce("4", key=b"c")
    wait_for(lambda: commanded.waiting("on_hold") == 1, LIMIT_S)
    code, outcome, detail = commanded.asked("record", "retry", f"{commanded.topic}:0:4")
    assert (code, outcome, "perkey key release ends that" in detail) == (1, "refused", True)
    assert commanded.asked("key", "release", *at, "c")[:2] == (0, "done")
    wait_for(lambda: commanded.done[3:] == ["4"], LIMIT_S)

    code, outcome, detail = commanded.asked("record", "retry", f"{commanded.topic}:7:0")
    assert (code, outcome) == (1, "not here")
    assert f"no member that was reached has {commanded.topic}:7:0" in detail


def test_every_member_of_a_group_answers_and_a_later_one_obeys(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the topic: a pause stops two members, and a third before it starts; a resume ends it."""
    topic, done = cluster.topic(3), list[bytes]()
    control, apps = f"control-{topic}", list[perkey.App]()

    def start() -> str:
        """A member that has partitions; its name."""
        app = app_on(cluster, topic, control=control)

        @app.consume(topic)
        def handler(record: perkey.Record[Any]) -> None:
            done.append(record.value)

        cluster.closing.append(partial(ended, app.start()))
        wait_for(lambda: app.snapshot()["partitions"], LIMIT_S)
        apps.append(app)
        return str(app.snapshot()["app"]["member"])

    def asked(*words: str) -> tuple[int, dict[str, str], str]:
        """The exit code, the outcome of each member, and errors."""
        capsys.readouterr()
        at = ("--control", control, "--group", topic)
        servers = ("--bootstrap-servers", cluster.broker.bootstrap)
        code = command([*words, *BECAUSE, *at, *servers, "--json"])
        out, err = capsys.readouterr()
        return code, {row["member"]: row["outcome"] for row in json.loads(out)["answers"]}, err

    def partitions() -> list[dict[str, Any]]:
        return [row for app in apps for row in app.snapshot()["partitions"]]

    names = [start(), start()]
    assert asked("pause", "--dry-run")[:2] == (0, dict.fromkeys(names, "would"))
    assert asked("pause", "--for", "10m")[:2] == (0, dict.fromkeys(names, "done"))
    assert asked("pause", "--handler", "none")[:2] == (1, dict.fromkeys(names, "refused"))
    names.append(start())
    assert "command" in [halt["cause"] for halt in apps[2].snapshot()["halts"]]
    for partition in range(3):
        cluster.produce(topic, b"%d" % partition, partition=partition)
    wait_for(lambda: [row["buffered"] for row in partitions()] == [1, 1, 1], LIMIT_S)
    assert done == []
    code, rows, err = asked("record", "skip", f"{topic}:0:0", f"{topic}:7:5")
    assert (code, len(rows), f"no member that was reached has {topic}:7:5" in err) == (1, 3, True)
    code, rows, err = asked("resume")
    assert (code, rows) == (0, dict.fromkeys(names, "done")), err
    wait_for(lambda: sorted(done) == [b"1", b"2"], LIMIT_S)
