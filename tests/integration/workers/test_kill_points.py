"""A worker killed with -9 at every step of its protocol, for each way of delivery.

What must hold is counted outside of Perkey: lines that the handlers wrote, records of the output
topic, rows of a database.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.integration.workers import booking, killing

import perkey
from perkey.ledger import SqlLedger
from perkey.runtime.calls.processes import link
from perkey.testing import MemoryKafka, run

RECORDS = 12
#: the steps at which a record has not begun, for whoever asks later
UNBEGUN = ("opening", "opened", "read", "took", "claimed")
#: a call that turns out slow has what waits behind it taken back, for a worker that has time
TAKEN_BACK = ("giving back", "gave back")
#: on a busy machine the other worker may be done before it is asked
TAKEN_BACK_RUNS = 5
WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "at_least_once": (killing.single, {}),
    "each": (killing.single, {"commit": perkey.Commit(each=True)}),
    "at_most_once": (
        killing.single,
        {
            "delivery": "at_most_once",
            "retry": perkey.Retry(attempts=1),
            "on_exhausted": perkey.Skip(),
        },
    ),
    "exactly_once": (killing.single, {"delivery": "exactly_once"}),
    "batch": (killing.batch, {"batch": perkey.Batch(2, linger_s=0.01)}),
    "explicit": (killing.explicit, {"batch": perkey.Batch(2, linger_s=0.01, ack="explicit")}),
    "ledger": (booking.booked, {}),
}


def handled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, step: str
) -> tuple[Counter[int], Counter[int]]:
    """How often each record was begun, and how often its effect is there, after one death."""
    monkeypatch.setenv(killing.STEP, step)
    monkeypatch.setenv(killing.FOLDER, str(tmp_path))
    if step in TAKEN_BACK:
        monkeypatch.setenv(killing.SLOW, "4")
        monkeypatch.setattr(link, "WINDOW_S", 1.0)  # much waits in a pipe, however slow we are
    handler, options = WAYS[way]
    ledger = None
    if way == "ledger":
        with closing(sqlite3.connect(tmp_path / "db")) as database:
            database.execute("create table rows (n int)")
        ledger = SqlLedger(f"sqlite:///{tmp_path}/db")
        options = {"ledger": ledger}
    app = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere:1"})
    options = {"concurrency": 2 if step in TAKEN_BACK else 1, **options}
    given = {"executor": "processes", "value": "json", "ordering": "unordered"}
    app.consume("work", **{**given, "retry": perkey.Retry(delay_s=0.01), **options})(handler)
    with MemoryKafka(auto_create=True) as kafka:
        run(app, [b"%d" % n for n in range(RECORDS)], broker=kafka, ledger=ledger)
        if way == "ledger":
            with closing(sqlite3.connect(tmp_path / "db")) as database:
                effects = [n for (n,) in database.execute("select n from rows")]
        else:
            effects = [int(record.value) for record in kafka.records("out")]
    begun = (tmp_path / "begun").read_text().split()
    return Counter(map(int, begun)), Counter(effects)


def comes_to(way: str, step: str) -> bool:
    """Whether this way has this step: acknowledgements, or more than one call in a pipe."""
    if step in ("acking", "acked"):
        return way == "explicit"
    return step not in TAKEN_BACK or way in ("at_least_once", "each", "exactly_once", "ledger")


def table() -> list[Any]:
    """Every way at every step; of a push those where something was lost or done twice before."""
    return [
        pytest.param(
            way,
            step,
            marks=() if way == "at_most_once" or step == "called" else pytest.mark.long,
        )
        for way in WAYS
        for step in killing.STEPS
        if comes_to(way, step)
    ]


@pytest.mark.parametrize(("way", "step"), table())
def test_what_is_promised_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, step: str
) -> None:
    """One worker dies, once; its successor has what it had not begun, and no more than that."""
    for attempt in range(TAKEN_BACK_RUNS if step in TAKEN_BACK else 1):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        begun, effects = handled(folder, monkeypatch, way, step)
        if (folder / "killed").exists():
            break
    else:
        pytest.fail("no worker came to this step")
    every = set(range(RECORDS))
    at_hand = 2 if way in ("batch", "explicit") else 1
    if way == "at_most_once":
        assert set(begun.values()) == {1}
        assert set(effects.values()) == {1}
        assert len(every - set(effects)) <= (0 if step in UNBEGUN else 1)
        return
    assert set(effects) == every
    assert sum(begun.values()) <= len(every) + at_hand
    assert set(effects.values()) == {1}, "what died with its worker had no effect yet"
