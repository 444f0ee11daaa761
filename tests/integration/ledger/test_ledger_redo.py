"""`perkey redo` of what a ledger knows: handled all the same, and its row replaced with its writes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import text
from tests.integration.ledger.conftest import database
from tests.support.waiting import wait_for

import perkey
from perkey.observe.orders import Answer, Order
from perkey.testing import MemoryKafka

LIMIT_S = 60.0
INSERT = text("insert into writes values (:v)")
Writes = Callable[[], list[Any]]

#: handles the record again and dies before the transaction ends, or with it
CRASH = """
import os, sys
from sqlalchemy import text
from perkey.ledger import SqlLedger
from perkey.ledger.ledger_run import LedgerRun
from perkey.types import Record, Redone

ledger = LedgerRun(SqlLedger(sys.argv[1]), "g", use_async=False, concurrency=1)

def book(record, tx):
    tx.execute(text("insert into writes values ('again')"))
    if sys.argv[2] == "inside":
        os._exit(9)

ledger.around(book)(Redone(*Record("t", 0, 0, 0, b"k", b"v")))
os._exit(9)
"""


class Booking:
    """An app that writes each value; `fails`: afterwards."""

    def __init__(self, url: str, kafka: MemoryKafka, **options: Any) -> None:
        self.fails = False
        self.app = perkey.App(group="g", kafka={"bootstrap.servers": kafka.bootstrap})
        use_async = options.pop("use_async", False)
        consume = self.app.consume(
            "t", ledger=perkey.SqlLedger(url, **options.pop("ids", {})), **options
        )
        consume(self.book_async if use_async else self.book)
        self.run: Any = self.app.start()

    def book(self, argument: Any, tx: Any) -> None:
        """A record, or a batch."""
        for record in [argument] if isinstance(argument, perkey.Record) else argument:
            tx.execute(INSERT, {"v": record.value.decode()})
        self._end()

    async def book_async(self, record: perkey.Record[bytes], tx: Any) -> None:
        """The same."""
        await tx.execute(INSERT, {"v": record.value.decode()})
        self._end()

    def _end(self) -> None:
        if self.fails:
            raise ValueError("after its writes")

    def redo(self, *offsets: int) -> Answer:
        """A person's command."""
        places = tuple((0, offset) for offset in offsets)
        answer: Answer = self.run.control.obey(Order("redo", "a test", "id", "t", records=places))
        return answer


@contextmanager
def booked(url: str, values: list[bytes], **options: Any) -> Iterator[Booking]:
    """One that has handled these."""
    with MemoryKafka() as kafka:
        kafka.create_topic("t")
        booking = Booking(url, kafka, **options)
        for value in values:
            kafka.produce("t", value, b"k")
        wait_for(lambda: (held := kafka.committed("g", "t")) and held.frontier >= len(values))
        yield booking
        booking.run.stop("now")
        booking.run.wait(LIMIT_S)


def rows(url: str) -> dict[str, float]:
    """What the ledger has, and since when."""
    with database(url).begin() as connection:
        found = connection.execute(text("select id, done_at from perkey_ledger"))
        return dict(map(tuple, found))


@pytest.mark.parametrize("use_async", [False, True], ids=["def", "async"])
def test_it_is_handled_although_its_id_is_known(url: str, writes: Writes, use_async: bool) -> None:
    """Its row is a new one; the others' are what they were."""
    with booked(url, [b"a", b"b"], use_async=use_async) as booking:
        before = rows(url)
        answer = booking.redo(0)
        assert (answer.outcome, "redone 1" in answer.detail) == ("done", True)
        assert writes() == ["a", "a", "b"]
        after = rows(url)
        assert after["0"] > before["0"]
        assert {**after, "0": 0.0} == {**before, "0": 0.0}


def test_one_that_fails_changes_nothing(url: str, writes: Writes) -> None:
    """Neither its writes nor its row; the answer has the error, and it may be ordered again."""
    with booked(url, [b"a"]) as booking:
        before = rows(url)
        booking.fails = True
        answer = booking.redo(0)
        assert answer.outcome == "refused"
        assert "failed: ValueError: after its writes: it stays done" in answer.detail
        assert (writes(), rows(url)) == (["a"], before)
        booking.fails = False
        assert booking.redo(0).outcome == "done"
        assert writes() == ["a", "a"]


def test_one_whose_row_was_pruned_gets_it_back(url: str, writes: Writes) -> None:
    """It is known again from then on."""
    with booked(url, [b"a"]) as booking:
        with database(url).begin() as connection:
            connection.execute(text("delete from perkey_ledger"))
        assert booking.redo(0).outcome == "done"
        assert (writes(), list(rows(url))) == (["a", "a"], ["0"])


def test_two_with_one_id_in_a_batch_are_one_row(url: str, writes: Writes) -> None:
    """Both are handled again, though the second would be a repeat."""
    options: dict[str, Any] = {"batch": perkey.Batch(2, linger_s=0.2), "ids": {"id": one_id}}
    with booked(url, [b"a", b"a"], **options) as booking:
        assert writes() == ["a"]
        assert booking.redo(0, 1).outcome == "done"
        assert writes() == ["a", "a", "a"]
        assert len(rows(url)) == 1


def one_id(record: perkey.Record[bytes]) -> bytes:
    """Its value."""
    return record.value


@pytest.mark.parametrize(("dies", "left"), [("inside", ["a"]), ("behind", ["a", "again"])])
def test_a_crash_leaves_the_old_or_the_new_result(
    url: str, writes: Writes, dies: str, left: list[str]
) -> None:
    """Row and writes together, whenever the process dies."""
    with booked(url, [b"a"]):
        before = rows(url)
    done = subprocess.run([sys.executable, "-c", CRASH, url, dies], check=False, timeout=120)
    assert done.returncode == 9
    assert writes() == left
    assert (rows(url) == before) == (dies == "inside")
