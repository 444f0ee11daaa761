"""When records came: by poll, for any record of it, and bounded."""

from __future__ import annotations

import json

import perkey
from perkey.runtime.handling import POLLS_MAX, Arrivals
from perkey.testing import run


def test_a_record_came_with_its_poll():
    """Each with the last poll that began at or before it; of other partitions nothing is known."""
    one = Arrivals()
    one.came("t", 0, 10, 1.0)
    one.came("t", 0, 20, 2.0)
    times = [one.at("t", 0, offset) for offset in (9, 10, 19, 20, 99)]
    assert times == [None, 1.0, 1.0, 2.0, 2.0]
    assert one.at("t", 1, 10) is None


def test_what_is_read_again_begins_again():
    """A new assignment, or a log that was made again, starts at a lower offset."""
    one = Arrivals()
    one.came("t", 0, 10, 1.0)
    one.came("t", 0, 20, 2.0)
    one.came("t", 0, 20, 3.0)
    assert [one.at("t", 0, offset) for offset in (10, 20)] == [None, 3.0]


def test_it_does_not_grow_without_end():
    """Of the oldest polls nothing is known any more; the newest are all there."""
    one = Arrivals()
    for number in range(3 * POLLS_MAX):
        one.came("t", 0, number, float(number))
        assert len(one._polls["t", 0][0]) <= POLLS_MAX
    assert one.at("t", 0, 0) is None
    newest = 3 * POLLS_MAX - 1
    assert one.at("t", 0, newest) == float(newest)


def test_the_wait_of_a_record_is_in_the_snapshot():
    """Records that wait for the only slot have waited; each sampled once."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "localhost:9092"})
    shots = []

    @app.consume("t", concurrency=1)
    def handler(record):
        shots.append(json.loads(json.dumps(app.snapshot())))

    run(app, [(None, b"x")] * 3)
    row = shots[-1]["handlers"]["handler"]["wait_buckets"]
    assert 1 <= sum(row["counts"]) <= 2  # of those that are done; the first one always
    assert row["sum"] >= 0.0
