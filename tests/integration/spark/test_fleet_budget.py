"""`perkey.Budget` in a fleet: the driver lends it, so together the members keep it exactly."""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.spark.fleet_kit import fill, kill, running, write_app
from tests.support.plain_fleet import PlainSession
from tests.support.waiting import wait_for

import perkey
from perkey.broker import LocalBroker
from perkey.core.leases import LEASE_S

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

WAIT_S = 200.0
Start = Callable[..., perkey.App]


def most_together(events: list[dict[str, Any]], without: int | None = None) -> int:
    """The most calls at the same time; `without` those of a process that was killed."""
    now = most = 0
    for one in events:
        if one["pid"] != without:
            now += {"begin": 1, "end": -1}.get(one["what"], 0)
            most = max(most, now)
    return most


@pytest.fixture
def noted(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """What the handlers have noted so far."""

    def read() -> list[dict[str, Any]]:
        path = tmp_path / "calls"
        text = path.read_bytes() if path.exists() else b""
        return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]

    return read


@pytest.fixture
def start(kafka_broker: LocalBroker, tmp_path: Path, monkeypatch) -> Iterator[Start]:
    """A fleet of processes with a handler that notes its calls; ended after the test."""
    monkeypatch.setattr("perkey.spark.fleet.run.open_session", PlainSession().open)
    begun: list[Any] = []

    def begin(budget: perkey.Budget, members: int, seconds: float = 0.005) -> perkey.App:
        name, log = f"lent-{uuid.uuid4().hex[:12]}", str(tmp_path / "calls")
        kafka_broker.create_topic(name, partitions=members)
        app = perkey.App(group=name, kafka={"bootstrap.servers": kafka_broker.bootstrap})

        @app.consume(name, concurrency=20, budget=budget)
        async def handle(record):
            def note(what):
                row = {"what": what, "pid": os.getpid(), "at": time.time(), "o": record.offset}
                with open(log, "ab", buffering=0) as file:  # noqa: PTH123  # one write a line
                    file.write(json.dumps(row).encode() + b"\n")

            note("begin")
            await asyncio.sleep(seconds)
            note("end")

        begun.append(app.start(engine="spark", members=members))
        holders = lambda: {row["member"] for row in app.snapshot()["partitions"]}  # noqa: E731  # asked again and again
        wait_for(lambda: len(holders()) == members, WAIT_S)
        return app

    yield begin
    for fleet in begun:
        fleet.stop("now")
        fleet.wait(WAIT_S)


def done(app: perkey.App) -> int:
    """Records that are handled."""
    return int(app.snapshot()["handlers"]["handle"]["done"])


def test_fewer_calls_than_members(start, noted, kafka_broker) -> None:
    """Two calls for three members: never more run, and all is handled."""
    app = start(perkey.Budget("b", in_flight=2), 3)
    fill(kafka_broker.bootstrap, app.options.group, 240, 3)
    wait_for(lambda: done(app) == 240, WAIT_S)
    assert most_together(noted()) <= 2


@pytest.mark.long
def test_what_was_lent_to_a_killed_member_is_lent_to_others(start, noted, kafka_broker) -> None:
    """Its calls are given to others once its process has ended; all is handled."""
    app = start(perkey.Budget("b", in_flight=4), 2, 0.05)
    fill(kafka_broker.bootstrap, app.options.group, 600, 2)
    wait_for(lambda: len({one["pid"] for one in noted()}) == 2, WAIT_S)
    dead = noted()[-1]["pid"]
    kill(dead)
    wait_for(lambda: len({one["o"] for one in noted() if one["what"] == "end"}) == 300, WAIT_S)
    wait_for(lambda: sum(r["committed"] or 0 for r in app.snapshot()["partitions"]) == 600, WAIT_S)
    assert most_together(noted(), without=dead) <= 4


@pytest.mark.long
def test_a_member_with_all_the_work_gets_nearly_all(kafka_broker, tmp_path) -> None:
    """On local Spark, of a topic of four partitions one has records: never over the numbers."""
    per_s, records, members = 40, 800, 3
    name = f"lent-{uuid.uuid4().hex[:12]}"
    kafka_broker.create_topic(name, partitions=4)
    budget = f'perkey.Budget("b", per_s={per_s}, in_flight=2)'
    write_app(tmp_path, kafka_broker.bootstrap, name, options={"budget": budget}, together=members)
    with running(tmp_path, "--members", str(members)) as fleet:
        wait_for(lambda: len(fleet.events("open")) == members, WAIT_S, "all members")
        fill(kafka_broker.bootstrap, name, records, 1)  # all into partition 0
        wait_for(lambda: len(fleet.done()) == records, WAIT_S, "all records")
        begins = [one["at"] for one in fleet.events("begin")]
        events = fleet.events()
    took_s = max(begins) - min(begins)
    lease = per_s * LEASE_S + 1
    assert most_together(events) <= 2
    # A call may be noted later than it started; the whole time tells what was lent.
    assert len(begins) <= per_s * (took_s + 1.0) + lease
    # A third of the members, and a quarter of the partitions, would have had a share of ten.
    assert len(begins) / took_s > per_s * 0.5
