"""A backfill that is repeated goes on where it was: what tasks keep of finished rows."""

from __future__ import annotations

import random
from operator import itemgetter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.spark.processing import seen
from tests.unit.spark.processing.conftest import record_batch

from perkey.errors import ConfigError
from perkey.spark.processing import stretches
from perkey.spark.processing.payload import packed
from perkey.spark.processing.settings import TaskSettings, handler_options
from perkey.spark.processing.stretches import HASH, Folder, pinned
from perkey.spark.processing.task import run_task


@pytest.fixture(autouse=True)
def facts():
    """What handlers told, in order."""
    seen.FACTS.clear()
    return seen.FACTS


def handle(record):
    """Tells its record."""
    seen.tell((record.partition, record.offset))
    return record.value


def with_hashes(records):
    """A task's input: the hash of a record is its value's."""
    batch = record_batch(records)
    marks = pa.array([hash(row["value"]) for row in batch.to_pylist()], pa.int64())
    return pa.RecordBatch.from_arrays(
        [*batch.columns, marks], schema=pa.schema([*batch.schema, (HASH, pa.int64())])
    )


@pytest.fixture
def task(tmp_path):
    """One run of a task; its rows as they come."""

    def start(records, pieces=1):
        options = handler_options(handle, {})
        settings = TaskSettings(
            options, None, None, sort=False, others={HASH: HASH}, progress=str(tmp_path / "done")
        )
        batch = with_hashes(records)
        each = -(-batch.num_rows // pieces)
        parts = [batch.slice(n, each) for n in range(0, batch.num_rows, each)]
        for rows in run_task(packed(settings), iter(parts)):
            assert HASH not in rows.schema.names
            yield from rows.to_pylist()

    return start


def records_of(count, partitions=3):
    """Records of several partitions, in offset order."""
    return [
        ("t", n % partitions, n // partitions, b"k%d" % (n % 7), b"%d" % n) for n in range(count)
    ]


def check_kills(task, facts, monkeypatch, seed):
    """Kill a task by this seed; each record must be one row, and be handled no more afterwards."""
    chance = random.Random(seed)
    monkeypatch.setattr(stretches, "STRETCH_ROWS", chance.randint(1, 30))
    monkeypatch.setattr("perkey.spark.processing.task.ROWS_EACH", chance.randint(1, 20))
    records = records_of(100)
    for _ in range(chance.randint(1, 4)):
        attempts = [task(records, pieces=chance.randint(1, 9)) for _ in range(chance.randint(1, 2))]
        for _ in range(chance.randint(0, 120)):
            next(chance.choice(attempts), None)
        for attempt in attempts:
            attempt.close()
    rows = list(task(records))
    expected = sorted((p, o, v) for _, p, o, _, v in records)
    assert sorted((r["partition"], r["offset"], r["outputs"][0]["value"]) for r in rows) == expected
    facts.clear()
    again = list(task(records))
    key = itemgetter("partition", "offset")
    assert (sorted(again, key=key), facts) == (sorted(rows, key=key), []), seed


@pytest.mark.push
@pytest.mark.parametrize("seed", range(30))
def test_every_record_is_one_row_however_often_the_task_is_killed(task, facts, monkeypatch, seed):
    """Kills at any row, two attempts at once, stretches of any size: by a seed."""
    check_kills(task, facts, monkeypatch, seed)


@pytest.mark.parametrize(
    ("method", "broken"),
    [
        ("_is_done", lambda self, batch: np.zeros(batch.num_rows, np.bool_)),
        ("flush", lambda self: None),
        ("load", lambda self: iter(())),
    ],
    ids=["does all again", "keeps nothing", "gives nothing back"],
)
def test_the_check_of_kills_finds_a_broken_task(task, facts, monkeypatch, method, broken):
    """Each mutant of the folder turns it red."""
    monkeypatch.setattr(stretches.Stretches, method, broken)
    with pytest.raises(AssertionError):
        check_kills(task, facts, monkeypatch, seed=0)


def test_what_is_in_a_stretch_is_not_done_again(task, facts, monkeypatch):
    """The second run calls the handler for the rest alone."""
    monkeypatch.setattr(stretches, "STRETCH_ROWS", 10)
    list(task(records_of(60)))
    facts.clear()
    assert len(list(task(records_of(90)))) == 90
    assert sorted(facts) == sorted((p, o) for _, p, o, _, _ in records_of(90)[60:])


def test_rows_that_the_dataframe_has_no_more_are_left_out(task, facts):
    """A filter, or another month: the result has the rows of this DataFrame alone."""
    list(task(records_of(60)))
    facts.clear()
    fewer = [*records_of(60)[:20], ("t", 1, 999, b"k", b"new")]
    rows = list(task(fewer))
    assert sorted((r["partition"], r["offset"]) for r in rows) == sorted(
        (p, o) for _, p, o, _, _ in fewer
    )
    assert facts == [(1, 999)]


def test_another_record_in_the_place_of_one_that_is_done(task):
    """The input has changed: one line, instead of another record's result."""
    list(task([(0, b"k", b"a"), (1, b"k", b"b")]))
    with pytest.raises(ConfigError, match=r"result of another record for t\[0\]@1: the input has"):
        list(task([(0, b"k", b"a"), (1, b"k", b"c")]))


def test_a_stretch_that_cannot_be_read_is_done_again(task, tmp_path, facts, caplog):
    """An empty file behind a power cut costs its rows' calls, not the job."""
    list(task(records_of(20)))
    (file,) = (tmp_path / "done" / "00000").iterdir()
    file.write_bytes(b"")
    facts.clear()
    assert len(list(task(records_of(20)))) == len(facts) == 20
    assert "stretch unreadable" in caplog.text


JOB = {"ordering": "key", "columns": "a int"}


def test_a_folder_belongs_to_one_job(tmp_path):
    """Its slots are those of its first run; another number or other columns are one line."""
    uri = str(tmp_path / "done")
    assert pinned(uri, None, lambda: 6, JOB) == 6
    assert pinned(uri, None, lambda: 8, JOB) == pinned(uri, 6, lambda: 8, JOB) == 6
    with pytest.raises(ConfigError, match="a job with slots=6, and this one has 7: give the same"):
        pinned(uri, 7, lambda: 6, JOB)
    with pytest.raises(ConfigError, match="with columns='a int', and this one has 'b int'"):
        pinned(uri, None, lambda: 6, {**JOB, "columns": "b int"})


def test_a_file_of_another_program_is_one_line(tmp_path):
    """Its name is that of the job's settings, and its content is not."""
    (tmp_path / "process.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"progress=.* cannot be used"):
        pinned(str(tmp_path), 1, lambda: 1, JOB)


@pytest.mark.parametrize(
    "uri", ["ftp://host/a", "nowhere://x", "/dev/null/here"], ids=["ftp", "unknown", "a-file"]
)
def test_a_folder_that_cannot_be(uri):
    """One line on the driver, before a job starts."""
    with pytest.raises(ConfigError, match="progress=") as error:
        pinned(uri, 1, lambda: 1, JOB)
    assert "\n" not in str(error.value)


def test_files_are_there_whole_or_not_at_all(tmp_path):
    """Under another name until they are written."""
    folder = Folder(tmp_path.as_uri())
    folder.write("a/b", b"x")
    assert folder.read("a/b") == Folder(f"file:{tmp_path}").read("a/b") == b"x"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    assert folder.read("a/c") is None
    assert folder.names("nothing", "") == []
    assert Path(tmp_path, "a", "b").exists()
