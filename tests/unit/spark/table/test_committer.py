"""The one writer of a table: many members at once, a store that fails, and who need not wait."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable as DeltaLog

from perkey.kafka.ports import KafkaUnavailable, OutMessage, ToCommit
from perkey.spark.table import DeltaTable
from perkey.spark.table.committer import TableCommitter
from perkey.spark.table.line import TableLine, TablePlan
from perkey.spark.table.rows import as_rows, columns_of, row_of
from perkey.spark.table.sink import TABLE
from perkey.spark.table.store import Unavailable, Unfit
from perkey.types import Record

COLUMNS = columns_of(pa.schema([("n", pa.int64())]))
NEVER, AT_ONCE = (lambda: False), (lambda: True)
LIMIT_S = 60.0


class Fleet:
    """A committer, and lines to it."""

    def __init__(self, folder, interval_s: float = 0.2) -> None:
        self.uri = str(folder / "t")
        self.store = DeltaTable(self.uri, "n long").opened(COLUMNS, "g")
        self.unfit: list[str] = []
        self.committer = TableCommitter(self.store, interval_s, self.unfit.append)
        self.plan = TablePlan(COLUMNS.serialize().to_pybytes(), interval_s)
        self.gone = threading.Event()

    def line(self, number: int, generation: int = 1) -> TableLine:
        """Of a member that has claimed this partition."""

        def send(message) -> bool:
            self.committer.take(message, line.hear)
            return True

        line = TableLine(self.plan, send, self.gone)
        line.claim([("t", number)], {"t": "id"}, generation, LIMIT_S)
        return line

    def rows(self) -> Counter:
        """(partition, offset), as another reader counts them."""
        files = DeltaLog(self.uri).file_uris()
        if not files:
            return Counter()
        query = 'select partition, "offset" from read_parquet(?)'
        return Counter(duckdb.connect().execute(query, [files]).fetchall())


def hand(line: TableLine, number: int, *offsets: int, hurried=AT_ONCE, over=NEVER):
    """These offsets of a partition, below whose last one all is done."""
    table, _ = as_rows(
        [
            row_of(OutMessage(TABLE, b'{"n":%d}' % o, b"k"), Record("t", number, o, 1, b"k", b""))
            for o in offsets
        ],
        COLUMNS,
    )
    return line.hand_over(table, [ToCommit("t", number, offsets[-1] + 1, "")], hurried, over)


@pytest.fixture
def fleet(tmp_path):
    fleet = Fleet(tmp_path)
    fleet.committer.start()
    yield fleet
    fleet.committer.close()


def test_forty_members_share_few_commits(fleet) -> None:
    """Each row once, and some files an interval in all, not some for each member."""

    def member(number: int) -> None:
        line = fleet.line(number)
        for first in range(0, 50, 10):
            answer = hand(line, number, *range(first, first + 10), hurried=NEVER)
            assert answer is not None
            assert answer["version"] > 0

    threads = [threading.Thread(target=member, args=(n,), daemon=True) for n in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert fleet.rows() == {(p, o): 1 for p in range(40) for o in range(50)}
    assert len(DeltaLog(fleet.uri).file_uris()) <= 40


def test_what_comes_again_is_recognised(fleet) -> None:
    """After an answer that was lost, and from the next member."""
    first = fleet.line(0)
    hand(first, 0, 0, 1)
    hand(first, 0, 0, 1, 2)
    hand(fleet.line(0), 0, 2, 3)
    assert fleet.rows() == {(0, o): 1 for o in range(4)}


def test_who_lost_a_partition_is_refused(fleet) -> None:
    """A newer member has claimed it; a claim that comes late is not granted."""
    first, second = fleet.line(0, generation=1), fleet.line(0, generation=2)
    assert hand(first, 0, 0)["stale"] == "t:0"
    assert first.claim([("t", 0)], {"t": "id"}, 1, LIMIT_S) == {}
    assert hand(second, 0, 0)["version"] > 0
    assert fleet.rows() == {(0, 0): 1}


def test_a_member_in_a_hurry_need_not_wait(tmp_path) -> None:
    """Also if it is so only after it has handed its rows over."""
    fleet = Fleet(tmp_path, interval_s=60.0)
    fleet.committer.start()
    line = fleet.line(0)
    hand(line, 0, 0)
    began, looks = time.monotonic(), iter([False, False])
    assert hand(line, 0, 1, hurried=lambda: next(looks, True)) is not None
    assert time.monotonic() - began < 30.0
    fleet.committer.close()


def test_a_hurry_that_a_broken_line_lost_comes_with_the_rows_again(tmp_path) -> None:
    """The rows are sent again when the line is back, and do not wait for the interval."""
    fleet = Fleet(tmp_path, interval_s=60.0)
    fleet.committer.start()
    line = fleet.line(0)
    hand(line, 0, 0)
    send, lost = line._send, threading.Event()

    def accepts_and_loses(message) -> bool:
        if message["what"] == "hurry":
            lost.set()
        return True

    line._send = accepts_and_loses
    looks = iter([False])  # the rows are sent without it
    with ThreadPoolExecutor(1) as pool:
        added = pool.submit(hand, line, 0, 1, hurried=lambda: next(looks, True))
        assert lost.wait(LIMIT_S)
        line._send = send
        line.again()
        assert added.result(30.0)["version"] > 0
    fleet.committer.close()


class Faulty:
    """A store in front of a real one: refuses so often, before or after it has added the rows."""

    def __init__(self, inner, faults: list[str]) -> None:
        self._inner, self.faults, self.name = inner, faults, inner.name
        self.columns, self.close = inner.columns, inner.close

    def read(self, wanted):
        return self._inner.read(wanted)

    def append(self, *given):
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "before":
            raise Unavailable("503 Slow Down")
        if fault == "unfit":
            raise Unfit("Cannot cast schema")
        version = self._inner.append(*given)
        if fault == "after":
            raise Unavailable("connection reset")
        return version


def faulty(tmp_path, *faults: str) -> Fleet:
    """A fleet over such a store, begun."""
    fleet = Fleet(tmp_path)
    fleet.committer._store = Faulty(fleet.store, list(faults))
    fleet.committer.start()
    return fleet


@pytest.mark.parametrize("fault", ["before", "after"])
def test_a_store_that_fails_is_tried_again(tmp_path, fault) -> None:
    """The member waits, and the rows are there once whether or not the commit had gone through."""
    fleet = faulty(tmp_path, fault, "before")
    assert "version" in hand(fleet.line(0), 0, 0, 1)
    assert fleet.rows() == {(0, 0): 1, (0, 1): 1}
    fleet.committer.close()


def test_a_table_that_takes_no_rows_ends_the_run(tmp_path) -> None:
    """With the reason; the member's rows are not taken for added."""
    fleet = faulty(tmp_path, "unfit")
    assert hand(fleet.line(0), 0, 0)["error"] == "Cannot cast schema"
    assert fleet.unfit == [
        f"Delta table {fleet.store._table.table_uri} takes no rows any more: Cannot cast schema"
    ]
    fleet.committer.close()


def test_nobody_waits_for_a_driver_that_is_gone(tmp_path) -> None:
    """Nor for one that does not answer in time, nor longer than the run lasts."""
    fleet = Fleet(tmp_path)
    line = TableLine(fleet.plan, lambda _message: False, fleet.gone)
    with pytest.raises(KafkaUnavailable, match="the driver does not answer"):
        line.claim([("t", 0)], {"t": "id"}, 1, 0.01)
    assert hand(line, 0, 0, over=AT_ONCE) is None
    fleet.gone.set()
    assert hand(line, 0, 0) is None


def test_a_line_that_broke_asks_again(tmp_path) -> None:
    """What was handed over and perhaps never arrived is said once more."""
    fleet = Fleet(tmp_path)
    said: list[dict] = []
    heard = threading.Event()

    def send(message) -> bool:
        said.append(message)
        heard.set()
        return False

    line = TableLine(fleet.plan, send, fleet.gone)
    answers: list = []
    thread = threading.Thread(target=lambda: answers.append(hand(line, 0, 0)), daemon=True)
    thread.start()
    assert heard.wait(LIMIT_S)
    line.again()
    assert said[0] == said[1]
    line.hear({"id": said[1]["id"], "version": 3})
    thread.join(LIMIT_S)
    assert answers == [{"id": said[1]["id"], "version": 3}]


def test_its_end_closes_the_table(tmp_path, monkeypatch) -> None:
    """On its own thread, which alone uses the table."""
    fleet = Fleet(tmp_path)
    closed: list[str] = []
    monkeypatch.setattr(
        fleet.store, "close", lambda: closed.append(threading.current_thread().name)
    )
    fleet.committer.start()
    fleet.committer.close()
    assert closed == ["perkey-table"]
