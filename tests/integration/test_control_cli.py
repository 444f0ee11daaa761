"""Commands to a real run, by its socket and by HTTP, on a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.support.command import perkey
from tests.support.waiting import wait_for

from perkey.broker import LocalBroker

pytestmark = pytest.mark.broker

LIMIT_S = 60.0
APP = """
import os, pathlib, perkey
app = perkey.App(group={topic!r}, kafka={{"bootstrap.servers": {servers!r}}})
@app.consume({topic!r}, concurrency=20, retry=perkey.Retry(attempts=2, delay_s=0.05))
def check(record: perkey.Record) -> None:
    if record.value.startswith(b"bad") and not os.path.exists("fixed"):
        raise KeyError("no such customer")
    with open("done", "ab") as file:
        file.write(record.value + b" ")
"""
BECAUSE = ("--reason", "a test")


class Running:
    """`perkey run`, and the commands to it."""

    def __init__(self, broker: LocalBroker, folder: Path) -> None:
        self.servers = broker.bootstrap
        self.topic, self.folder = f"control-{uuid.uuid4().hex[:8]}", folder
        broker.create_topic(self.topic, 2)
        text = APP.format(topic=self.topic, servers=broker.bootstrap)
        (folder / "steered.py").write_text(text)
        (folder / "token").write_text("t" * 20)
        (folder / "sockets").mkdir()
        line = ["run", "steered:app", "--http", "127.0.0.1:0", "--http-token-file", "token"]
        self.log = (folder / "log").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "perkey", *line, "--allow-control", "--log-format", "json"],
            cwd=folder, stderr=self.log,
        )  # fmt: skip
        self.producer = Producer({"bootstrap.servers": broker.bootstrap})

    def perkey(self, *words: str) -> tuple[int, str, str]:
        """One command: exit code, output, errors."""
        done = perkey(*words)
        return done.returncode, done.stdout, done.stderr

    def lines(self) -> list[dict[str, Any]]:
        """What it has logged, whole lines."""
        text = (self.folder / "log").read_text()
        lines = text[: text.rfind("\n") + 1].splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def produce(self, *values: str, key: str | None = None) -> None:
        """Records of one key, or of none."""
        for value in values:
            self.producer.produce(self.topic, value, key)
        assert self.producer.flush(LIMIT_S) == 0

    def done(self) -> set[str]:
        """What was handled."""
        path = self.folder / "done"
        return set(path.read_text().split()) if path.exists() else set()


@pytest.fixture
def running(
    kafka_broker: LocalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Running]:
    """An app that has handled a record."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "sockets"))
    monkeypatch.chdir(tmp_path)
    made = Running(kafka_broker, tmp_path)
    try:
        made.produce("first")
        wait_for(lambda: made.done() == {"first"})
        yield made
    finally:
        made.process.kill()
        made.process.wait(LIMIT_S)
        made.log.close()


def test_a_run_is_paused_tuned_resumed_and_stopped(running: Running):
    """By the socket and by HTTP; each answer is printed, `why` and the log have the reason."""
    code, out, err = running.perkey("pause", "--topic", running.topic, "--for", "10m", *BECAUSE)
    assert code == 0, err
    assert f"done: paused topic {running.topic} until" in out
    running.produce("a", "b")

    def blocked() -> bool:
        sentences = json.loads(running.perkey("why", "--json")[1])[0]["sentences"]
        return any("paused by a command until" in one["text"] for one in sentences)

    wait_for(blocked)
    assert running.done() == {"first"}

    (address,) = wait_for(
        lambda: [one["address"] for one in running.lines() if one["event"] == "serving http"]
    )
    by_http = ("--url", f"http://{address}", "--token-file", "token")
    code, _, err = running.perkey("set", "concurrency=2", "--handler", "check", *BECAUSE, *by_http)
    assert code == 0, err
    code, _, err = running.perkey("set", "concurrency=1001", *BECAUSE, *by_http)
    assert code == 1
    code, _, err = running.perkey("pause", *BECAUSE, "--url", f"http://{address}")
    assert (code, "token required" in err) == (2, True)

    (told,) = json.loads(running.perkey("control", "log", "--json")[1])
    (member,) = told["members"]
    assert [one["action"] for one in member["in_force"]] == ["pause", "set"]
    assert [one["outcome"] for one in member["log"]] == ["done", "done", "refused"]

    code, _, err = running.perkey("resume", *BECAUSE, *by_http)
    assert code == 0, err
    wait_for(lambda: running.done() == {"first", "a", "b"})
    code, out, err = running.perkey("stop", *BECAUSE)
    assert code == 0, err
    assert running.process.wait(LIMIT_S) == 0
    events = {one["event"]: one for one in running.lines()}
    assert events["command pause"]["reason"] == "a test"
    assert events["command stop"]["outcome"] == "done"


def test_a_group_that_is_found_is_read_at_the_brokers_of_its_run(running: Running):
    """No --group and no --bootstrap-servers, for every command that reads its commits."""
    running.produce("bad")
    shown = wait_for(lambda: json.loads(running.perkey("parked", "ls", "--json")[1]))
    place = ":".join(str(shown[0][name]) for name in ("topic", "partition", "offset"))
    assert (shown[0]["topic"], shown[0]["attempts"]) == (running.topic, 2)
    code, out, err = running.perkey("parked", "show", place, "--values")
    assert (code, "value:        bad" in out) == (0, True), err
    for words in (["parked", "export", running.topic], ["record", "export", place]):
        code, out, err = running.perkey(*words)
        assert (code, json.loads(out)["value"]) == (0, "bad"), err
    (running.folder / "fixed").touch()
    code, out, err = running.perkey("parked", "release", running.topic, *BECAUSE)
    assert code == 0, err
    wait_for(lambda: running.done() == {"first", "bad"})


def test_named_brokers_are_read_nevertheless(running: Running):
    """Those of the run are only the default."""
    code, _, err = running.perkey("parked", "ls", "--bootstrap-servers", "localhost:1")
    assert (code, "localhost:1" in err) == (1, True)
