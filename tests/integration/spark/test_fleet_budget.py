"""`perkey.Budget` in a fleet: each member has the share of its partitions, as in any group."""

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
from tests.integration.spark.fleet_kit import fill, kill
from tests.support.plain_fleet import PlainSession
from tests.support.waiting import wait_for

import perkey
from perkey.broker import LocalBroker
from perkey.core.budgets import BURST_S

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

WAIT_S = 200.0
Start = Callable[..., perkey.App]


def most_together(events: list[dict[str, Any]]) -> int:
    """The most calls at the same time."""
    now = most = 0
    for one in events:
        now += {"begin": 1, "end": -1}[one["what"]]
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
        name, log = f"shared-{uuid.uuid4().hex[:12]}", str(tmp_path / "calls")
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


def test_two_members_together_never_exceed_the_numbers(start, noted, kafka_broker) -> None:
    """Each has a partition of two, so half of the calls: four in all, and `per_s`."""
    per_s = 60.0
    app = start(perkey.Budget("b", per_s=per_s, in_flight=4), 2, 0.05)
    fill(kafka_broker.bootstrap, app.options.group, 240, 2)
    wait_for(lambda: done(app) == 240, WAIT_S)
    events = noted()
    begins = [one["at"] for one in events if one["what"] == "begin"]
    assert len({one["pid"] for one in events}) == 2
    assert most_together(events) <= 4
    # A call may be noted later than it started: the whole time has what each saved up, and no more.
    assert len(begins) <= per_s * (max(begins) - min(begins) + 1.0) + 2 * per_s * BURST_S


@pytest.mark.long
def test_a_member_whose_partition_is_idle_leaves_its_share_unused(
    start, noted, kafka_broker
) -> None:
    """All records in one of two partitions: its member never has more than half of the calls."""
    app = start(perkey.Budget("b", in_flight=4), 2, 0.02)
    fill(kafka_broker.bootstrap, app.options.group, 200, 1)
    wait_for(lambda: done(app) == 200, WAIT_S)
    assert len({one["pid"] for one in noted()}) == 1
    assert most_together(noted()) == 2


@pytest.mark.long
def test_the_share_of_a_killed_member_goes_with_its_partition(start, noted, kafka_broker) -> None:
    """Its successor, or the other member, handles the rest."""
    app = start(perkey.Budget("b", in_flight=4), 2, 0.05)
    fill(kafka_broker.bootstrap, app.options.group, 600, 2)
    wait_for(lambda: len({one["pid"] for one in noted()}) == 2, WAIT_S)
    kill(noted()[-1]["pid"])
    wait_for(lambda: sum(r["committed"] or 0 for r in app.snapshot()["partitions"]) == 600, WAIT_S)
