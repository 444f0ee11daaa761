"""`perkey.Hold` and `perkey.Brake` from end to end: a service away, a release that fails."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace

import pytest
from tests.support.waiting import wait_for

import perkey
from perkey.observe.orders import Order

pytestmark = pytest.mark.push


class Away(Exception):
    """The service does not answer."""


class Service:
    """Something that handlers call; it may be away for some."""

    def __init__(self) -> None:
        self.away: set[bytes] = set()
        self.calls: list[bytes] = []
        self.lock = threading.Lock()

    def call(self, key: bytes) -> None:
        """One call, counted."""
        with self.lock:
            self.calls.append(key)
        if key[:1] in self.away:
            raise Away(f"{key!r}")


def test_no_record_is_given_up_while_the_service_is_away(kafka):
    """One attempt each, nothing parked or dead-lettered, and few calls until it answers."""
    topic, service = kafka.topic(2), Service()
    kafka.fill(topic, [{"value": b"v", "key": f"a{n}"} for n in range(200)])
    service.away = {b"a"}
    app, letters = kafka.app(), kafka.topic()
    hold = perkey.Hold(on=Away, probe_s=0.2)
    once = perkey.Retry(attempts=1)

    @app.consume(
        topic, concurrency=5, retry=once, on_exhausted=perkey.DeadLetter(letters), hold=hold
    )
    def handler(record):
        service.call(record.key)

    run = kafka.start(app)
    wait_for(lambda: len(service.calls) >= 8)  # the first five, and probes
    (halt,) = [one for one in run.snapshot()["halts"] if one["cause"] == "outage"]
    assert halt["error"]["type"] == "Away"
    tried = len(service.calls)
    service.away = set()
    wait_for(lambda: run.snapshot()["handlers"]["handler"]["done"] == 200)
    assert tried < 100
    row = run.snapshot()["handlers"]["handler"]
    assert (row["dead_lettered"], row["parked"]) == (0, 0)
    assert not [one for one in run.snapshot()["halts"] if one["cause"] == "outage"]


def test_others_continue_while_one_value_waits(kafka):
    """Records of keys with `a` wait, all others are done meanwhile."""
    topic, service = kafka.topic(1), Service()
    kafka.fill(topic, [{"value": b"v", "key": f"{'ab'[n % 2]}{n}"} for n in range(100)])
    service.away = {b"a"}
    app = kafka.app()

    @app.consume(topic, hold=perkey.Hold(on=Away, probe_s=0.2, by=lambda record: record.key[:1]))
    async def handler(record):
        service.call(record.key)

    run = kafka.start(app)
    wait_for(lambda: run.snapshot()["handlers"]["handler"]["done"] == 50)
    part = run.snapshot()["partitions"][0]
    wait_for(lambda: run.snapshot()["partitions"][0]["places"]["outage"] > 0)
    assert part["parked"] == part["retrying"] == 0
    service.away = set()
    wait_for(lambda: run.snapshot()["handlers"]["handler"]["done"] == 100)
    assert Counter(key for key in service.calls if key[:1] == b"b").most_common(1)[0][1] == 1


def test_a_brake_keeps_records_out_of_the_dead_letter_topic(kafka):
    """A release that fails every record: a few letters, then it holds; a person lets it continue."""
    topic, letters = kafka.topic(2), kafka.topic()
    kafka.fill(topic, [{"value": b"v", "key": f"k{n}"} for n in range(300)])
    app, fixed = kafka.app(), threading.Event()
    brake = perkey.Brake(share=0.5, at_least=10, probe_s=600)

    @app.consume(
        topic, concurrency=5, retry=perkey.Retry(attempts=1), on_exhausted=perkey.DeadLetter(letters),
        brake=brake,
    )  # fmt: skip
    def handler(record):
        if not fixed.is_set():
            raise KeyError("id")

    run = kafka.start(app)
    (halt,) = wait_for(lambda: [o for o in run.snapshot()["halts"] if o["cause"] == "brake"])
    assert (halt["error"]["type"], halt["exhausted"]) == ("KeyError", 10)
    fixed.set()
    order = Order("resume", "fixed", "id", handler="handler")
    assert run.control.obey(replace(order, dry_run=True)).outcome == "would"
    assert run.control.obey(order).outcome == "done"
    assert run.control.obey(order).outcome == "unchanged"
    row = wait_for(lambda: _ended(run, 300))
    assert 10 <= row["dead_lettered"] < 15  # a call that had begun may fail after the command


def _ended(run, count):
    row = run.snapshot()["handlers"]["handler"]
    return row if row["done"] + row["dead_lettered"] == count else None
