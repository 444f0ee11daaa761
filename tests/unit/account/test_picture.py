"""A partition as a picture: what each cell shows."""

from __future__ import annotations

import pytest

import perkey
from perkey.account import picture as module
from perkey.account.account import take
from perkey.account.picture import CELLS, CELLS_MAX, maps
from perkey.runtime.run.run_snapshot import picture_of
from perkey.testing import run


@pytest.fixture
def app():
    return perkey.App(group="g", kafka={"bootstrap.servers": "localhost:9092"})


def pictures(app, records, on, **options):
    """What the picture was when the handler saw the record at offset `on`."""
    seen = []

    @app.consume("t", concurrency=1, **options)
    def handler(record):
        if record.offset in on:
            seen.append(picture_of(app._run.member, "t", 0))
            raise perkey.Reject("no")

    run(app, records)
    return seen


def test_cells_show_the_worst_that_is_in_them(app):
    """Parked, running and waiting records have their letters; the rest beyond them is done."""
    drawn = pictures(app, [(b"k%d" % n, b"") for n in range(6)], {0, 3})
    assert drawn[0]["cells"] == "rqqqqq"
    assert drawn[1]["cells"] == "pddrqq"
    assert (drawn[1]["from"], drawn[1]["to"], drawn[1]["per_cell"]) == (0, 6, 1)
    assert drawn[1]["partition"]["frontier"] == 0
    assert {row["offset"]: row["place"] for row in drawn[1]["records"]} == {
        0: "parked",
        3: "running",
    }
    assert set("".join(one["cells"] for one in drawn)) <= CELLS.keys()


@pytest.mark.parametrize(
    ("count", "per_cell"), [(CELLS_MAX - 1, 1), (CELLS_MAX, 1), (CELLS_MAX + 1, 2)]
)
def test_a_picture_has_a_bounded_number_of_cells(app, count, per_cell):
    """At the limit a cell is one offset, beyond it two."""
    (drawn,) = pictures(app, [(b"", b"")] * count, {0})
    assert drawn["per_cell"] == per_cell
    assert ("shares" in drawn) is (per_cell > 1)
    assert len(drawn["cells"]) == -(-count // per_cell) <= CELLS_MAX
    assert drawn["cells"][0] == "r"


def test_a_cell_of_many_offsets_has_its_share(app):
    """In tenths, how many of its offsets are not done."""
    (drawn,) = pictures(app, [(b"", b"")] * (CELLS_MAX + 1), {0})
    assert (len(drawn["shares"]), set(drawn["shares"])) == (len(drawn["cells"]), {"5", "9"})
    assert drawn["shares"][-1] == "5"  # of its two offsets one is not in the log yet


def test_the_edge_is_where_nothing_starts(app):
    """What lies before it may start; it is told once it was measured."""
    seen = pictures(app, [(b"k%d" % n, b"") for n in range(6)], {0, 3})
    assert all(one["edge"] is None or one["edge"] > one["to"] for one in seen)


def test_a_partition_of_others_has_no_picture(app):
    """Neither has a topic that is not there."""
    seen = []

    @app.consume("t")
    def handler(record):
        seen.extend([picture_of(app._run.member, *where) for where in (("t", 7), ("x", 0))])

    run(app, [(b"", b"")])
    assert seen == [None, None]
    assert picture_of(None, "t", 0) is None


def test_a_reported_map_reaches_to_the_last_done(app):
    """What waits beyond it is not in it; a partition whose records are done in order has none."""
    seen = []

    @app.consume("t", concurrency=1)
    def handler(record):
        seen.append(app._run.snapshot(mapped=True)["maps"])
        if record.offset in (0, 3):
            raise perkey.Reject("no")

    run(app, [(b"k%d" % n, b"") for n in range(6)])
    assert seen[0] == []
    assert seen[2] == [
        {"topic": "t", "partition": 0, "from": 0, "to": 2, "per_cell": 1, "cells": "pd"}
    ]
    assert [one["cells"] for one in seen[-1]] == ["pddpd"]


def test_the_maps_that_reach_furthest_are_reported(make_desk, monkeypatch):
    """Of more partitions than a report holds; holes of before the restart are holes."""
    monkeypatch.setattr(module, "MAPS_MAX", 1)
    desk = make_desk()
    (near,) = desk.assign(0)
    desk.poll(near, 0, key=b"stuck")
    desk.poll(near, 1, key=b"other")
    desk.do("calls_ended", [one for one in desk.started() if one.record.offset])
    desk.assign(1, start=100, restored_top=104, restored_not_done=(100, 102))
    (drawn,) = maps(take(desk.engine, 0.0).parts())
    assert (drawn["partition"], drawn["from"], drawn["cells"]) == (1, 100, "ududd")
