"""The table's files as a log: one number, one file; each row once, whoever writes it."""

from __future__ import annotations

import os
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weft.errors import ConfigError
from weft.spark.table import log as table_log
from weft.spark.table.log import STAGING, TableLog, last_file, sweep
from weft.spark.table.progress import Done

IDS = {"t": "id"}


def publish(log: TableLog, offsets: list[int], done: Done, partition: int = 0) -> int:
    """Rows of these offsets, and what is done then."""
    places = [("t", partition, offset) for offset in offsets]
    rows = pa.table({"partition": [partition] * len(offsets), "offset": offsets})
    return log.publish(rows, places, IDS, {("t", partition): done})


def rows_of(folder) -> list[tuple[int, int]]:
    """(partition, offset) of all rows that a reader of the folder sees."""
    files = sorted(folder.glob("*.parquet"))
    return sorted(
        (r["partition"], r["offset"]) for f in files for r in pq.read_table(f).to_pylist()
    )


def test_rows_are_there_once_when_they_come_again(tmp_path) -> None:
    """A batch that is repeated adds nothing; of one that is partly new the new part."""
    log = TableLog(tmp_path, "g")
    assert publish(log, [0, 1], Done(2, 1)) == 1
    assert publish(log, [0, 1], Done(2, 1)) == 1
    assert publish(TableLog(tmp_path, "g"), [1, 2], Done(3, 2)) == 2
    assert rows_of(tmp_path) == [(0, 0), (0, 1), (0, 2)]


def test_several_rows_of_one_record_go_together(tmp_path) -> None:
    """All rows of a record are in one file, and all of them are left out the next time."""
    log = TableLog(tmp_path, "g")
    publish(log, [0, 0, 0], Done(1, 0))
    publish(log, [0, 0, 0, 1], Done(2, 1))
    assert rows_of(tmp_path) == [(0, 0)] * 3 + [(0, 1)]


def test_another_group_writes_the_same_records(tmp_path) -> None:
    """Progress is a group's."""
    publish(TableLog(tmp_path, "g"), [0], Done(1, 0))
    publish(TableLog(tmp_path, "h"), [0], Done(1, 0))
    assert rows_of(tmp_path) == [(0, 0)] * 2


def test_a_member_that_was_pushed_out_adds_nothing_twice(tmp_path) -> None:
    """Two who believe to own a partition: what one has published the other leaves out."""
    zombie, owner = TableLog(tmp_path, "g"), TableLog(tmp_path, "g")
    owner.progress()
    publish(zombie, [0, 1], Done(2, 1))
    publish(owner, [0, 1, 2], Done(3, 2))
    publish(zombie, [2], Done(3, 2))
    assert rows_of(tmp_path) == [(0, 0), (0, 1), (0, 2)]


def test_many_writers_at_once_lose_and_repeat_nothing(tmp_path) -> None:
    """Eight writers, two of each partition, racing for the same numbers."""

    def write(partition: int) -> None:
        log = TableLog(tmp_path, "g")
        for offset in range(15):
            publish(log, [offset], Done(offset + 1, offset), partition)

    threads = [threading.Thread(target=write, args=(n % 4,), daemon=True) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert rows_of(tmp_path) == [(p, o) for p in range(4) for o in range(15)]
    assert last_file(tmp_path) == 60


def test_a_taken_number_is_noticed(tmp_path, monkeypatch) -> None:
    """Between the look and the link another member takes the number: its footer is read."""
    log, other = TableLog(tmp_path, "g"), TableLog(tmp_path, "g")
    real = table_log.linked

    def slow(staged, target) -> bool:
        monkeypatch.setattr(table_log, "linked", real)
        publish(other, [0], Done(1, 0))
        return real(staged, target)

    monkeypatch.setattr(table_log, "linked", slow)
    assert publish(log, [0, 1], Done(2, 1)) == 2
    assert rows_of(tmp_path) == [(0, 0), (0, 1)]


def test_what_was_never_linked_is_not_in_the_table(tmp_path, monkeypatch) -> None:
    """Killed between writing and linking: the rows are not there, and come with the next try."""

    def killed(_staged, _target) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(table_log, "linked", killed)
    with pytest.raises(KeyboardInterrupt):
        publish(TableLog(tmp_path, "g"), [0], Done(1, 0))
    monkeypatch.undo()
    assert rows_of(tmp_path) == []
    publish(TableLog(tmp_path, "g"), [0], Done(1, 0))
    assert rows_of(tmp_path) == [(0, 0)]


def test_the_newest_file_must_say_what_the_table_has(tmp_path) -> None:
    """A file under the log's names without progress is one line, not a second copy of rows."""
    pq.write_table(pa.table({"a": [1]}), tmp_path / "part-000000000001.parquet")
    with pytest.raises(ConfigError, match="Keep the newest file"):
        TableLog(tmp_path, "g").progress()


def test_only_old_leftovers_are_swept(tmp_path) -> None:
    """What a member writes now stays; what was left long ago goes."""
    (tmp_path / STAGING).mkdir()
    old, new = (tmp_path / STAGING / f"{name}.parquet" for name in ("old", "new"))
    old.touch()
    new.touch()
    os.utime(old, (time.time() - 3_600,) * 2)
    sweep(tmp_path)
    assert list((tmp_path / STAGING).iterdir()) == [new]
