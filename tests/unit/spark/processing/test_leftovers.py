"""`deadline_s`: rows that wait for the next micro-batch, through crashes of tasks and of queries."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import islice
from zlib import crc32

import pytest
from tests.unit.spark.processing import seen
from tests.unit.spark.processing.conftest import record_batch

import perkey
from perkey.errors import ConfigError, FatalError
from perkey.spark.processing import leftovers
from perkey.spark.processing import task as task_module
from perkey.spark.processing.leftovers import Leftovers, TaskOfBatch, shared_folder
from perkey.spark.processing.payload import packed
from perkey.spark.processing.settings import TaskSettings, handler_options
from perkey.spark.processing.task import run_task

SLOTS = 2


@pytest.fixture(autouse=True)
def facts():
    """What handlers told, in order."""
    seen.FACTS.clear()
    return seen.FACTS


async def handle(record):
    """Tells its beginning and end; some records fail at first, some for ever."""
    where = (record.partition, record.key, record.offset)
    seen.tell(("begin", *where, record.attempt))
    seen.tell(("end", *where, record.attempt))
    if record.value == b"bad" or (record.value == b"slow" and record.attempt < 3):
        raise ValueError("not yet")
    return b"%d" % record.offset


class Query:
    """Spark's half: batches, tasks that are tried again, a sink that knows its batches."""

    def __init__(self, folder, chance, monkeypatch):
        options = handler_options(
            handle, {"concurrency": 3, "retry": perkey.Retry(attempts=4, delay_s=0.0001)}
        )
        settings = TaskSettings(
            options, None, None, sort=True, progress=str(folder), deadline_s=1.0
        )
        self.payload, self.chance, self.patch = packed(settings), chance, monkeypatch
        #: batch -> its rows: what came first is what counts
        self.sink = {}

    def attempt(self, batch, task, rows, looks):
        """One attempt of a task; its time is up after so many looks at the clock."""
        clock = iter([0.0] * (looks + 1))
        self.patch.setattr(task_module, "clock", lambda: next(clock, 2.0))
        self.patch.setattr(task_module, "task_of_batch", lambda: TaskOfBatch("q", batch, task))
        parts = [record_batch(rows)] if rows else []
        for found in run_task(self.payload, iter(parts)):
            yield from found.to_pylist()

    def task(self, batch, task, rows):
        """A task until it succeeds: attempts may die, or be two at once."""
        while True:
            tried = self.attempt(batch, task, rows, self.chance.choice([0, 0, 1, 2, 5, 100]))
            found = list(islice(tried, self.chance.choice([0, 3, None])))
            if not self.chance.randrange(4):
                tried.close()
                continue
            if not self.chance.randrange(4):  # another attempt overtakes it
                list(self.attempt(batch, task, rows, self.chance.choice([0, 2])))
            try:
                return found + list(tried)
            except FatalError as error:
                if "another attempt of this task has decided" not in str(error):
                    raise

    def run(self, batch, rows):
        """One micro-batch, again and again until Spark has noted that it is done."""
        shares = defaultdict(list)
        for row in rows:
            shares[crc32(row[3]) % SLOTS].append(row)
        while True:
            found = [row for n in range(SLOTS) for row in self.task(batch, n, shares[n])]
            if not self.chance.randrange(4):
                continue  # the driver dies before the sink has the batch
            self.sink.setdefault(batch, found)
            if self.chance.randrange(4):
                return


def drive(folder, monkeypatch, seed):
    """A query of some batches and of as many more as it takes; all rows that went in."""
    chance = random.Random(seed)
    query, rows, ends = Query(folder, chance, monkeypatch), [], [0, 0]
    for batch in range(6):
        new = []
        for _ in range(chance.choice([0, 5, 20])):
            partition = chance.randrange(2)
            value = chance.choice([b"", b"", b"", b"slow", b"bad"])
            new.append(("t", partition, ends[partition], b"k%d" % chance.randrange(4), value))
            ends[partition] += 1
        rows += new
        query.run(batch, new)
    for batch in range(6, 60):
        if sum(map(len, query.sink.values())) >= len(rows):
            break
        query.run(batch, [])
    return query, rows


@pytest.mark.push
@pytest.mark.parametrize("seed", range(12))
def test_every_row_comes_once_and_keys_keep_their_order(tmp_path, monkeypatch, facts, seed):
    """Attempts that die, two at once, batches that are repeated with and without the sink's rows."""
    query, rows = drive(tmp_path, monkeypatch, seed)
    found = [(r["partition"], r["offset"]) for batch in query.sink.values() for r in batch]
    assert sorted(found) == sorted((p, o) for _, p, o, _, _ in rows), seed
    by_lane = defaultdict(list)
    for number, batch in query.sink.items():
        for row in batch:
            by_lane[row["partition"], row["key"]].append((row["offset"], number))
    for lane in by_lane.values():
        in_order = sorted(lane)
        assert [number for _, number in in_order] == sorted(n for _, n in in_order), seed
    ended = defaultdict(set)
    for what, partition, key, offset, _ in facts:
        earlier = {o for _, p, o, k, _ in rows if (p, k) == (partition, key) and o < offset}
        assert what == "end" or earlier <= ended[partition, key], (seed, partition, key, offset)
        if what == "end":
            ended[partition, key].add(offset)


@pytest.mark.push
def test_a_repeated_batch_that_decides_again_is_seen(tmp_path, monkeypatch):
    """The checker is one: without the decision's file rows are lost or come twice."""

    class Forgetful(Leftovers):
        def __init__(self, uri, where):
            super().__init__(uri, where)
            self.decided = None
            (self._folder / self._name).unlink(missing_ok=True)

    monkeypatch.setattr(task_module, "Leftovers", Forgetful)

    def is_exact(seed):
        query, rows = drive(tmp_path / str(seed), monkeypatch, seed)
        found = [(r["partition"], r["offset"]) for batch in query.sink.values() for r in batch]
        return sorted(found) == sorted((p, o) for _, p, o, _, _ in rows)

    assert not all(map(is_exact, range(12)))


def test_attempts_of_earlier_batches_count(tmp_path, monkeypatch, facts):
    """A record that fails for ever is failed after its four attempts, over however many batches."""
    query = Query(tmp_path, random.Random(1), monkeypatch)
    found = list(query.attempt(0, 0, [(0, b"k", b"bad"), (1, b"k", b"")], 1))
    for batch in range(1, 30):
        found += query.attempt(batch, 0, [], 1)
    assert [(r["offset"], r["status"], r["attempts"]) for r in found] == [
        (0, "failed", 4), (1, "done", 1)
    ]  # fmt: skip
    assert [fact[4] for fact in facts if fact[:4] == ("begin", 0, b"k", 0)] == [1, 2, 3, 4]


def test_old_decisions_go(tmp_path, monkeypatch):
    """As many are kept as Spark keeps batches."""
    monkeypatch.setattr(leftovers, "BATCHES_KEPT", 3)
    for batch in range(9):
        Leftovers(str(tmp_path), TaskOfBatch("q", batch, 0)).decide(None, {})
    assert [path.name[:20] for path in sorted((tmp_path / "q" / "00000").iterdir())] == [
        f"{batch:020}" for batch in (5, 6, 7, 8)
    ]


def test_other_columns_than_those_that_wait(tmp_path):
    """One line with the way back."""
    rows = record_batch([(0, b"k", b"v")])
    first = Leftovers(str(tmp_path), TaskOfBatch("q", 0, 0))
    (table,) = [list(first.with_earlier(iter([rows])))]
    import pyarrow as pa

    first.decide(pa.Table.from_batches(table), {("t", 0, 0): 1})
    with pytest.raises(ConfigError, match="rows that wait from the batch before have other"):
        list(Leftovers(str(tmp_path), TaskOfBatch("q", 1, 0)).with_earlier(
            iter([rows.add_column(5, "more", pa.array([1]))])
        ))  # fmt: skip


def test_rows_wait_in_a_shared_folder_only(tmp_path):
    """An object store is refused, a path and a file: URI are taken."""
    assert shared_folder(tmp_path.as_uri()) == shared_folder(str(tmp_path)) == tmp_path
    with pytest.raises(ConfigError, match="not in an object store: give a path"):
        shared_folder("s3://bucket/left")
