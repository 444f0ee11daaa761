"""What a run's log says, on a real broker: failures, worker processes, who is waited for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from tests.support.waiting import wait_for

pytestmark = pytest.mark.broker

HEAD = """
import logging, time, perkey
app = perkey.App(group={group!r}, kafka={{"bootstrap.servers": {bootstrap!r}, **{kafka!r}}})
"""


SESSION = "session.timeout.ms"


@pytest.fixture
def start(kafka, tmp_path):
    """Start `perkey run` on a module of this text; its log goes to a file, and it ends with the test."""
    children = []

    def run(text, *arguments, group, name="shop", **properties):
        head = HEAD.format(group=group, bootstrap=kafka.bootstrap, kafka=properties)
        (tmp_path / f"{name}.py").write_text(head + textwrap.dedent(text))
        log = tmp_path / f"{name}-{len(children)}.log"
        command = [sys.executable, "-m", "perkey.cli.main", "run", f"{name}:app", *arguments]
        with log.open("w") as stderr:
            child = subprocess.Popen(command, cwd=tmp_path, stderr=stderr, env=dict(os.environ))
        children.append(child)
        return child, log

    yield run
    for child in children:
        if child.poll() is None:
            child.kill()
        child.wait(60)


def lines_of(log):
    """The log's lines that are whole, as JSON."""
    return [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]


def told(log, what):
    """Lines of this event."""
    return [line for line in lines_of(log) if line["event"] == what]


def test_80_dead_letters_and_their_failures_are_in_the_log(kafka, start):
    """The first with its traceback, the sums at the end: nothing is dropped unsaid."""
    source, group = kafka.topic(), kafka.name("g")
    letters = kafka.topic()
    kafka.fill(source, [b"x"] * 80)
    child, log = start(
        f"""
        @app.consume({source!r}, retry=perkey.Retry(attempts=3, delay_s=0.01),
                     on_exhausted=perkey.DeadLetter({letters!r}))
        async def check(record): raise ValueError("no such customer")
        """,
        "--until", "drained", "--log-format", "json", group=group,
    )  # fmt: skip
    assert child.wait(60) == 0
    first = told(log, "attempt failed")[0]
    assert (first["level"], first["handler"], first["topic"]) == ("warning", "check", source)
    assert first["traceback"].endswith("ValueError: no such customer")
    failed = told(log, "attempt failed") + told(log, "more attempts failed")
    assert sum(line.get("left_out", 0) for line in failed) + len(told(log, "attempt failed")) == 240
    assert len(told(log, "record dead-lettered")) == 1
    assert sum(line["count"] for line in told(log, "more records given up")) == 79


def test_worker_processes_log_as_their_parent_does(kafka, start):
    """INFO lines of a handler in a worker are JSON, with their fields, in the one log."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"x"] * 3)
    child, log = start(
        f"""
        shop = logging.getLogger("shop")

        @app.consume({source!r}, executor="processes", concurrency=2)
        def check(record):
            shop.info("paid", extra={{"cents": 990}})
            shop.debug("not shown")
            try:
                1 / 0
            except ZeroDivisionError:
                shop.exception("odd")
        """,
        "--until", "drained", "--log-format", "json", group=group,
    )  # fmt: skip
    assert child.wait(60) == 0
    paid = told(log, "paid")
    assert [(line["level"], line["logger"], line["cents"]) for line in paid] == [
        ("info", "shop", 990)
    ] * 3
    assert told(log, "not shown") == []
    assert "ZeroDivisionError" in told(log, "odd")[0]["traceback"]


def test_a_users_own_logging_stays_his(kafka, start):
    """What the module sets up is used, for Perkey's lines as for his own, in workers too."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"x"])
    child, log = start(
        f"""
        logging.basicConfig(level="INFO", format="MINE %(name)s %(message)s")

        @app.consume({source!r}, executor="processes", concurrency=1)
        def check(record): logging.getLogger("shop").info("paid")
        """,
        "--until", "drained", group=group,
    )  # fmt: skip
    assert child.wait(60) == 0
    lines = log.read_text().splitlines()
    assert all(line.startswith("MINE ") for line in lines), lines
    assert "MINE shop paid" in lines


@pytest.mark.long
def test_a_killed_members_session_is_waited_for_aloud(kafka, start):
    """After kill -9, the next member says whom the group waits for, until it has a partition."""
    source, group = kafka.topic(), kafka.name("g")
    text = f"""
    from perkey.runtime.run import watching
    # Said often from the first moment: the rest of the session is for a slow start.
    watching.UNASSIGNED_S = [number / 2 for number in range(1, 100)]
    watching.GROUP_ASKED_EVERY_S = 0.5

    @app.consume({source!r})
    async def check(record): ...
    """
    session = {SESSION: 15_000}
    first, log = start(text, "--log-format", "json", group=group, **session)
    wait_for(lambda: told(log, "assigned"))
    first.send_signal(signal.SIGKILL)
    first.wait(60)
    _, log = start(text, "--log-format", "json", group=group, **session)
    line = wait_for(
        lambda: [one for one in told(log, "no partition yet") if SESSION in one["reason"]]
    )[0]
    assert (line["level"], line["group"]) == ("warning", group)
    wait_for(lambda: told(log, "assigned"))
