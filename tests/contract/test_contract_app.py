"""Whole apps: what the guarantees say, on both brokers with the same code."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.contract.clusters import ANSWER_S, FAST, LIMIT_S, PROTOCOLS, Cluster
from tests.support.waiting import wait_for

import perkey
from perkey.codec import OffsetMap, decode

SEED = 11
SOON = perkey.Commit(interval_s=0.05)


def app_on(cluster: Cluster, group: str, **options: Any) -> perkey.App:
    """An app on the cluster under test."""
    kafka = {"bootstrap.servers": cluster.broker.bootstrap, **FAST, **options.pop("kafka", {})}
    return perkey.App(group=group, kafka=kafka, **options)


def held(cluster: Cluster, group: str, topic: str, partition: int = 0) -> OffsetMap:
    """What the group has committed for a partition."""
    consumer = cluster.connection(group).consumer()
    found = consumer.find([(topic, partition)], LIMIT_S)[topic, partition]
    consumer.leave(5.0)
    assert found.committed is not None
    return decode(found.committed, found.metadata)


class Log:
    """What a handler did, from whatever thread."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []
        self.lanes: defaultdict[tuple[int, bytes | None], list[int]] = defaultdict(list)
        self.running: Counter[tuple[int, bytes | None]] = Counter()
        self.at_once = 0
        self.highest = 0
        self.overlaps = 0
        self._lock = threading.Lock()

    def enter(self, record: perkey.Record) -> None:
        """A call begins."""
        lane = (record.partition, record.key)
        with self._lock:
            self.calls.append((record.partition, record.offset))
            self.lanes[lane].append(record.offset)
            self.running[lane] += 1
            self.overlaps += self.running[lane] > 1
            self.at_once += 1
            self.highest = max(self.highest, self.at_once)

    def leave(self, record: perkey.Record) -> None:
        """It ends."""
        with self._lock:
            self.running[record.partition, record.key] -= 1
            self.at_once -= 1

    def ordered(self) -> bool:
        """Every lane was handled one at a time and in order."""
        return not self.overlaps and all(lane == sorted(lane) for lane in self.lanes.values())


def logged(log: Log, kind: str, work_s: Callable[[], float]) -> Callable[..., Any]:
    """A handler of this kind that takes so long and logs it."""

    async def on_loop(record: perkey.Record) -> None:
        log.enter(record)
        await asyncio.sleep(work_s())
        log.leave(record)

    def on_thread(record: perkey.Record) -> None:
        log.enter(record)
        time.sleep(work_s())  # the handler's work
        log.leave(record)

    return on_loop if kind == "async" else on_thread


def fill_keys(cluster: Cluster, topic: str, count: int, partitions: int, keys: int) -> None:
    """Records of several keys in turn, over all partitions."""
    for number in range(count):
        key = b"key %d" % (number % keys)
        where = (number % keys) % partitions
        cluster.produce(topic, b"%d" % number, key, partition=where, flush=False)
    cluster.flush()


@pytest.mark.parametrize("kind", ["async", "threads"])
def test_keys_are_handled_in_order_and_concurrently(cluster: Cluster, kind: str) -> None:
    """Each key one at a time in offset order, many keys together, each record once."""
    dice = random.Random(SEED)
    topic = cluster.topic(3)
    fill_keys(cluster, topic, 300, 3, 20)
    log = Log()
    app = app_on(cluster, topic)
    app.consume(topic, concurrency=10)(logged(log, kind, lambda: dice.uniform(0, 0.002)))
    report = app.run(until="drained")
    assert (report.exit_code, report.done) == (0, 300)
    assert log.ordered(), f"seed {SEED}"
    assert set(Counter(log.calls).values()) == {1}
    assert len(log.calls) == 300
    assert 1 < log.highest <= 10
    assert [held(cluster, topic, topic, n).not_done for n in range(3)] == [(), (), ()]


@pytest.mark.parametrize(("ordering", "together"), [("partition", 2), ("unordered", 8)])
def test_orderings_decide_what_runs_together(
    cluster: Cluster, ordering: str, together: int
) -> None:
    """With two partitions: two calls at once by partition, as many as allowed unordered."""
    topic = cluster.topic(2)
    fill_keys(cluster, topic, 60, 2, 2)
    log = Log()
    app, company = app_on(cluster, topic), asyncio.Event()

    @app.consume(topic, ordering=ordering, concurrency=8)
    async def handle(record: perkey.Record) -> None:
        log.enter(record)
        if log.highest >= together:
            company.set()
        # The first ones stay until all of their company are there.
        await asyncio.wait_for(company.wait(), LIMIT_S)
        await asyncio.sleep(0.003)
        log.leave(record)

    assert app.run(until="drained").done == 60
    assert log.highest == together


def test_an_exhausted_record_ends_in_the_dead_letter_topic(cluster: Cluster) -> None:
    """With its key, value, headers, timestamp, and headers that say where it came from and why."""
    topic = cluster.topic()
    cluster.broker.create_topic(f"{topic}.dlq")
    for number in range(5):
        cluster.produce(topic, b"%d" % number, b"k", headers=(("h", b"1"),), timestamp_ms=1_700_000_000_000)  # fmt: skip
    app = app_on(cluster, topic)
    retry = perkey.Retry(attempts=3, delay_s=0.01)
    attempts = []

    @app.consume(topic, retry=retry, on_exhausted=perkey.DeadLetter("{topic}.dlq"))
    async def handle(record: perkey.Record) -> None:
        if record.value == b"2":
            attempts.append(record.attempt)
            raise ValueError("not this one")

    results = app.results()
    report = app.run(until="drained")
    assert (report.exit_code, report.done, report.dead_lettered) == (0, 4, 1)
    assert attempts == [1, 2, 3]
    (dead,) = [result for result in results if result.outcome == "dead_lettered"]
    assert (dead.record.offset, dead.attempts, dead.error.type) == (2, 3, "ValueError")
    (letter,) = cluster.records(f"{topic}.dlq", 1)
    assert (letter.key, letter.value, letter.timestamp_ms) == (b"k", b"2", 1_700_000_000_000)
    headers = dict(letter.headers)
    assert headers["h"] == b"1"
    assert headers["__dlq.errors.topic"] == topic.encode()
    assert headers["__dlq.errors.offset"] == b"2"
    assert headers["__dlq.errors.delivery.count"] == b"3"
    assert held(cluster, topic, topic).frontier == 5


def test_a_restart_repeats_only_what_was_not_done(cluster: Cluster) -> None:
    """One record is parked at the front; the commit remembers what is done beyond it.

    With `remember=False` the restart tries the parked one again.
    """
    topic = cluster.topic()
    fill_keys(cluster, topic, 40, 1, 8)
    bad = {3}
    calls: list[int] = []
    app = app_on(cluster, topic)

    @app.consume(topic, retry=perkey.Retry(attempts=1, remember=False))
    async def handle(record: perkey.Record) -> None:
        calls.append(record.offset)
        if record.offset in bad:
            raise ValueError("not yet")

    report = app.run(until="drained")
    lane = [offset for offset in range(40) if offset % 8 == 3]
    assert (report.exit_code, report.parked, report.done) == (3, 1, 40 - len(lane))
    kept = held(cluster, topic, topic)
    assert (kept.frontier, kept.highest_seen) == (3, 39)
    assert list(kept.not_done) == lane
    bad.clear()
    calls.clear()
    assert app.run(until="drained").exit_code == 0
    assert calls == lane
    assert held(cluster, topic, topic).frontier == 40


def test_outputs_are_there_before_the_record_is_done(cluster: Cluster) -> None:
    """Each result has its outputs' places, and every one of them can be read."""
    topic, target = cluster.topic(2), cluster.topic(2)
    fill_keys(cluster, topic, 50, 2, 10)
    app = app_on(cluster, topic)

    @app.consume(topic, output=target, value="json")
    async def double(record: perkey.Record) -> Any:
        if record.value % 10 == 9:
            return [perkey.Produce(b"a"), perkey.Produce(b"b", key=None, headers={"h": "1"})]
        return 2 * record.value

    results = app.results()
    assert app.run(until="drained").done == 50
    sent = [out for result in results for out in result.outputs]
    assert len(sent) == len({(out.partition, out.offset) for out in sent}) == 55
    records = {(r.partition, r.offset): r for r in cluster.records(target, 55)}
    assert {(r.value, r.headers) for r in records.values() if r.key is None} == {
        (b"b", (("h", b"1"),))
    }
    for out in sent:
        assert records[out.partition, out.offset].key == out.key


def test_drained_waits_for_retries(cluster: Cluster) -> None:
    """A record that succeeds at its third attempt is done when the app returns."""
    topic = cluster.topic()
    cluster.fill(topic, 3)
    app = app_on(cluster, topic)

    @app.consume(topic, retry=perkey.Retry(attempts=5, delay_s=0.1, jitter=0))
    def handle(record: perkey.Record) -> None:
        if record.offset == 1 and record.attempt < 3:
            assert record.attempt == 1 or record.last_error.type == "ValueError"
            raise ValueError

    report = app.run(until="drained")
    assert (report.done, report.retried, report.failed_attempts) == (3, 2, 2)
    assert report.seconds >= 0.3


def test_drained_is_not_fooled_by_holes(cluster: Cluster) -> None:
    """An aborted transaction at the end of the log leaves offsets that no record has."""
    topic = cluster.topic()
    cluster.fill(topic, 4)
    source = cluster.topic()
    owner = cluster.join(source, source)
    owner.until(lambda: owner.assigned)
    port = cluster.connection(source).transactions(source)
    port.open()
    messages = [perkey_message(topic, b"never"), perkey_message(topic, b"x" * 2_000_000)]
    end = port.transact(messages, [], owner.consumer.membership(), lambda _: None)
    assert end.outcome == "aborted"
    port.close()
    # The coordinator answers before its marker is in the log; until then the transaction is open.
    owner.until(lambda: owner.consumer.stable_ends([(topic, 0)], ANSWER_S)[topic, 0] > 4)
    app = app_on(cluster, topic)
    seen = []
    app.consume(topic)(lambda record: seen.append(record.offset))
    assert app.run(until="drained").exit_code == 0
    assert sorted(seen) == [0, 1, 2, 3]
    assert held(cluster, topic, topic).frontier > 4


def perkey_message(topic: str, value: bytes) -> Any:
    """A message of a producer's."""
    from perkey.kafka.ports import OutMessage

    return OutMessage(topic, value, None, (), 0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_second_member_takes_over_without_repeats(cluster: Cluster, protocol: str) -> None:
    """While one app works another joins: everything is handled once, keys stay in order."""
    topic = cluster.topic(4)
    fill_keys(cluster, topic, 600, 4, 40)
    log = Log()
    handles = []

    begun: set[int] = set()

    def work_s(number: int) -> float:
        """Much until both have some of it: the first must not be through before the second is in."""
        begun.add(number)
        return 0.01 if len(begun) == 2 or len(log.calls) < 20 else 0.25

    try:
        for number in range(2):
            app = app_on(cluster, topic, kafka=PROTOCOLS[protocol])
            work = partial(work_s, number)
            app.consume(topic, concurrency=4, commit=SOON)(logged(log, "async", work))
            handles.append(app.start(until="drained"))
            wait_for(lambda n=number: len(log.calls) > 20 * (n + 1))
        reports = [handle.wait(LIMIT_S * 2) for handle in handles]
    finally:
        for handle in handles:
            handle.stop("now")
    assert [report.exit_code for report in reports] == [0, 0]
    assert len(set(log.calls)) == 600
    assert len(log.calls) == 600
    assert log.ordered()
    assert all(report.done > 0 for report in reports)


def test_stop_commits_what_is_done_and_leaves_the_rest(cluster: Cluster) -> None:
    """What runs is finished, what waits is not started, and the next run goes on there."""
    topic = cluster.topic()
    fill_keys(cluster, topic, 200, 1, 200)
    log = Log()
    app = app_on(cluster, topic)
    stopped = threading.Event()

    @app.consume(topic, concurrency=5)
    async def handle(record: perkey.Record) -> None:
        log.enter(record)
        if len(log.calls) > 20:
            await asyncio.to_thread(stopped.wait, LIMIT_S)
        log.leave(record)

    running: Any = app.start()
    wait_for(lambda: len(log.calls) > 20)
    running.stop()
    wait_for(lambda: running.member.engine.state.stop_mode == "in_flight")
    stopped.set()
    report = running.wait(LIMIT_S)
    assert report.exit_code == 0
    assert report.done == len(log.calls) < 200
    assert app.run(until="drained").done == 200 - report.done
    assert set(Counter(log.calls).values()) == {1}


def test_callbacks_report_assignments_and_commits(cluster: Cluster) -> None:
    """`on_assign`, `on_revoke` with the partitions, `on_commit` with the frontier."""
    topic = cluster.topic(2)
    cluster.fill(topic, 10)
    told: list[tuple[str, Any]] = []
    app = app_on(
        cluster,
        topic,
        on_assign=lambda where: told.append(("assign", sorted(where))),
        on_revoke=lambda where: told.append(("revoke", sorted(where))),
        on_commit=lambda committed: told.extend(("commit", one) for one in committed),
    )

    @app.consume(topic, commit=SOON)
    async def handle(record: perkey.Record) -> None:
        await asyncio.sleep(0.02)

    app.run(until="drained")
    both = [(topic, 0), (topic, 1)]
    assert [what for what in told if what[0] != "commit"] == [("assign", both), ("revoke", both)]
    frontiers = [one.frontier for what, one in told if what == "commit" and one.partition == 0]
    assert frontiers == sorted(frontiers)


def test_exactly_once_shows_every_result_once(cluster: Cluster) -> None:
    """Outputs and offsets come together: what is read is what was handled, in lane order."""
    topic, target = cluster.topic(2), cluster.topic(1)
    fill_keys(cluster, topic, 60, 2, 6)
    app = app_on(cluster, topic)

    @app.consume(topic, output=target, delivery="exactly_once", commit=SOON)
    async def copy(record: perkey.Record) -> bytes:
        await asyncio.sleep(0.001)
        return record.value

    report = app.run(until="drained")
    assert (report.exit_code, report.done) == (0, 60)
    lanes = defaultdict(list)
    for record in cluster.records(target, 60):
        lanes[record.key].append(int(record.value))
    assert all(lane == sorted(lane) for lane in lanes.values())
    assert held(cluster, topic, topic, 1).frontier == 30


def test_a_topic_that_is_missing_is_bad_input(cluster: Cluster) -> None:
    """One line that names it, before anything is consumed."""
    app = app_on(cluster, "g")
    app.consume("no-such-topic")(lambda _: None)
    with pytest.raises(perkey.ConfigError, match="no-such-topic"):
        app.run(until="drained")


def test_a_missing_dead_letter_topic_is_bad_input_or_made(cluster: Cluster) -> None:
    """`on_missing="error"` refuses to start, "create" makes it."""
    topic = cluster.topic()
    app = app_on(cluster, topic)
    app.consume(topic, on_exhausted=perkey.DeadLetter("{topic}.dlq"))(lambda _: None)
    with pytest.raises(perkey.ConfigError, match=f"{topic}.dlq"):
        app.run(until="drained")
    app = app_on(cluster, topic)
    letters = perkey.DeadLetter("{topic}.dlq", on_missing="create")
    app.consume(topic, on_exhausted=letters)(lambda _: None)
    assert app.run(until="drained").exit_code == 0
    assert cluster.records(f"{topic}.dlq", 0) == []


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("partitions", [3, 1])
def test_a_letter_keeps_its_partition_where_the_topic_has_it(
    cluster: Cluster, delivery: str, partitions: int
) -> None:
    """With as many partitions it stays in its own; with fewer all are stored all the same."""
    topic = cluster.topic(3)
    cluster.broker.create_topic(f"{topic}.dlq", partitions)
    for number in range(6):
        cluster.produce(topic, b"%d" % (number % 3), b"k", partition=number % 3)
    app = app_on(cluster, topic)
    letters = perkey.DeadLetter("{topic}.dlq")
    fail = perkey.Retry(attempts=1)

    @app.consume(topic, retry=fail, on_exhausted=letters, delivery=delivery)
    async def handle(record: perkey.Record) -> None:
        raise ValueError

    assert app.run(until="drained").dead_lettered == 6
    found = cluster.records(f"{topic}.dlq", 6)
    kept = [one.partition == int(one.value) for one in found]
    assert all(kept) if partitions == 3 else {one.partition for one in found} == {0}
