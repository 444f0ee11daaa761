"""Every fault of the matrix in every way of delivery, on a real broker.

A push takes each fault of one node once; `make test-all` the whole of it.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import Guarded
from tests.support.matrix import ways
from tests.support.matrix.cell import EARLY_DONE, WAIT_S, Cell
from tests.support.matrix.checking import problems
from tests.support.matrix.faults import FAULTS, Fault
from tests.support.matrix.ways import WAYS, Way

import perkey
from perkey.kafka import failures

FIRST, AFTER = 400, 60
LOST = (1, 33)
PROTOCOLS = ("classic", "consumer")
#: of a push: each fault once, but for those that want three nodes, a slow quota, or a session that
#: ends (a refused login is shown by test_admin.py and test_offsets_cli.py, too)
PUSHED = {
    "ACL denied": "exactly_once",
    "topic made again": "ledger",
    "DeleteRecords": "processes",
    "open transaction": "at_most_once",
}


def table() -> list[Any]:
    """All cells; the protocols take turns."""
    return [
        pytest.param(
            fault,
            way,
            PROTOCOLS[(row + column) % 2],
            id=f"{fault.name}-{way.name}".replace(" ", "_"),
            marks=() if PUSHED.get(fault.name) == way.name else pytest.mark.long,
        )
        for row, fault in enumerate(FAULTS)
        for column, way in enumerate(WAYS)
    ]


@pytest.fixture
def cell(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A cell on the broker that its fault needs; what it started is ended after it."""
    fault, way, protocol = (request.getfixturevalue(n) for n in ("fault", "way", "protocol"))
    if fault.cluster:
        made = Cell(request.getfixturevalue("three_nodes"), way, protocol, tmp_path, replication=3)
    else:
        guarded: Guarded = request.getfixturevalue("rights_broker")
        made = Cell(guarded.broker, way, protocol, tmp_path)
        made.login = guarded.login
    yield made
    made.end()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("fault", "way", "protocol"), table())
def test_what_is_promised_holds(
    cell: Cell,
    fault: Fault,
    way: Way,
    protocol: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing is lost, repeats and order are as promised, the run ends or goes on, and says why."""
    caplog.set_level(logging.INFO, "perkey")
    live(cell, fault, protocol, monkeypatch)
    cell.lived.log = caplog.text
    assert "secret" not in caplog.text
    assert problems(cell.lived) == []


def live(cell: Cell, fault: Fault, protocol: str, patch: pytest.MonkeyPatch) -> None:
    """The fault strikes in the middle of the work; afterwards all the rest is done."""
    patch.setattr(failures, "GRACE_S", 3.0)
    lived = cell.lived
    fault.prepare(cell)
    cell.produce(FIRST)
    run = cell.start(patch)
    cell.until(lambda: len(cell.done()) >= EARLY_DONE or run.over, "the first are done")
    lived.struck_at, lived.done_before = time.monotonic(), len(cell.done())
    lived.ends, lived.says = fault.ends, fault.says
    fault.strike(cell)
    if fault.ends:
        cell.until(lambda: run.over, f"it ends with {fault.ends!r}")
    else:
        fault.meanwhile(cell)
    if run.over:
        lived.struck, lived.over_at = run.wait(1), time.monotonic()
    fault.heal(cell)
    cell.produce(AFTER)
    if run.over:  # what it had not committed is handled again, until all is
        lived.last = cell.start(patch, until="drained").wait(WAIT_S)
    else:
        cell.until_done(lived.wanted, "the rest is done")
        run.stop()
        lived.last = run.wait(WAIT_S)
    lived.entries, lived.effects = list(cell.entries()), cell.effects()
    if protocol == "classic":
        # What was fetched at the former topic's position before the other id was seen (see
        # docs/delivery.md); under KIP-848 the broker takes the partitions away first.
        lived.doubled = {name for name in lived.produced if name[0] > 1}


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("fault", "way", "protocol"),
    [(FAULTS[0], next(way for way in WAYS if way.name == "at_least_once"), "classic")],
    ids=["ACL_denied-at_least_once"],
)
def test_a_lost_effect_is_red(
    cell: Cell, fault: Fault, way: Way, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: one record whose output never comes is found, and nothing else is."""
    plain = ways.output_of

    def lose_one(record: perkey.Record) -> perkey.Produce | None:
        return None if ways.name_of(record) == LOST else plain(record)

    monkeypatch.setattr(ways, "output_of", lose_one)
    live(cell, fault, protocol, monkeypatch)
    assert [line for line in problems(cell.lived) if not line.startswith("nothing said")] == [
        f"lost 1: [{LOST}]"
    ], way
