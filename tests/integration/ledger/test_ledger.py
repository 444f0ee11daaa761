"""Once per id, on real databases."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from tests.integration.ledger.conftest import database

import perkey
from perkey import testing
from perkey.testing import MemoryKafka
from perkey.types import Committed

INSERT = text("insert into writes values (:v)")
Writes = Callable[[], list[Any]]


def run(app: perkey.App, records: list[Any], **how: Any) -> list[perkey.Result]:
    """`perkey.testing.run` on the database that the app itself names: it is what is tested."""
    (ledger,) = {handler.ledger for handler in app.handlers}
    return testing.run(app, records, ledger=ledger, **how)


def booking(url: str, *, use_async: bool = False, group: str = "g", **options: Any) -> perkey.App:
    """An app that writes each value once."""
    app = perkey.App(group=group, kafka={"bootstrap.servers": "nowhere:1"})
    ledger = options.pop("ledger", None) or perkey.SqlLedger(url)
    if use_async:

        @app.consume("orders", ledger=ledger, value="str", **options)
        async def book_async(record: perkey.Record, tx: Any) -> None:
            await tx.execute(INSERT, {"v": record.value})

    else:

        @app.consume("orders", ledger=ledger, value="str", **options)
        def book(record: perkey.Record, tx: Any) -> None:
            tx.execute(INSERT, {"v": record.value})

    return app


def repeats(app: perkey.App) -> int:
    """Records the ledger recognised."""
    rows = app.snapshot()["handlers"].values()
    return sum(row["repeats"] for row in rows)


@pytest.mark.parametrize("use_async", [False, True], ids=["def", "async"])
def test_a_repeated_record_is_recognised(url: str, writes: Writes, use_async: bool) -> None:
    """The same records handled again by the same group write nothing and count as done."""
    values = [f"{n:03}" for n in range(40)]
    with MemoryKafka() as broker:
        first, again = (booking(url, use_async=use_async) for _ in range(2))
        run(first, values, broker=broker)
        broker.commit("g", "orders", 0, 0)
        results = run(again, [], broker=broker)
    assert writes() == values
    assert [result.outcome for result in results] == ["done"] * 40
    assert (repeats(first), repeats(again)) == (0, 40)


def test_a_failed_handler_leaves_nothing_behind(url: str, writes: Writes) -> None:
    """Writes of an attempt that raised are rolled back; the next attempt writes them once."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere:1"})

    @app.consume("orders", ledger=perkey.SqlLedger(url), retry=perkey.Retry(delay_s=0.01))
    def book(record: perkey.Record, tx: Any) -> None:
        tx.execute(INSERT, {"v": record.value.decode()})
        if record.attempt == 1:
            raise ConnectionError("lost")

    results = run(app, [b"a", b"b"])
    assert writes() == ["a", "b"]
    assert [result.attempts for result in results] == [2, 2]


def test_an_id_of_ones_own_recognises_a_producers_duplicate(url: str, writes: Writes) -> None:
    """Two records with the same id are handled once, wherever they stand."""
    ledger = perkey.SqlLedger(url, id=lambda record: record.value)
    results = run(booking(url, ledger=ledger), [("k", "x"), ("k", "y"), ("k", "x")])
    assert writes() == ["x", "y"]
    assert len(results) == 3


@pytest.mark.parametrize("one", ["a\0b", "a\udcff"], ids=["NUL", "surrogate"])
@pytest.mark.parametrize("use_async", [False, True], ids=["def", "async"])
def test_an_id_of_any_text_is_kept(url: str, writes: Writes, one: str, use_async: bool) -> None:
    """JSON can hold both; PostgreSQL takes neither, so every such record failed."""
    ledger = perkey.SqlLedger(url, id=lambda _: one)
    app = booking(url, ledger=ledger, use_async=use_async, retry=perkey.Retry(attempts=1))
    results = run(app, [("k", "x"), ("k", "y")])
    assert [result.outcome for result in results] == ["done", "done"]
    assert writes() == ["x"]


@pytest.mark.parametrize("bad", [None, 1.5, True])
def test_an_id_that_is_no_id_fails_the_record(url: str, writes: Writes, bad: object) -> None:
    """Only str, int and bytes are ids; anything else is a failure that says so."""
    ledger = perkey.SqlLedger(url, id=lambda _: bad)
    app = booking(url, ledger=ledger, retry=perkey.Retry(attempts=1), on_exhausted=perkey.Skip())
    (result,) = run(app, ["x"])
    assert result.outcome == "skipped"
    assert result.error is not None
    assert "return str, int or bytes" in result.error.message
    assert writes() == []


@pytest.mark.parametrize("unique", [False, True], ids=["any", "unique"])
def test_two_members_at_once_write_once(url: str, writes: Writes, unique: bool) -> None:
    """While a partition moves both owners may handle a record: one of them is rolled back.

    Also where its writes break a constraint of the handler's own table first.
    """
    from perkey.ledger.ledger_run import LedgerRun

    if unique:
        with database(url).begin() as connection:
            connection.execute(text("create unique index one on writes (v)"))
    both = threading.Barrier(2, timeout=60)
    met: list[int] = []

    def book(record: perkey.Record, tx: Any) -> None:
        if "sqlite" not in url and len(met) < 2:  # SQLite lets one in at a time
            met.append(1)
            both.wait()
        tx.execute(INSERT, {"v": record.value})

    members = [LedgerRun(perkey.SqlLedger(url), "g", use_async=False, concurrency=1) for _ in "12"]
    members[0].prepare()
    record = perkey.Record("orders", 0, 7, 0, None, "x")
    threads = [threading.Thread(target=m.around(book), args=(record,)) for m in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert writes() == ["x"]
    assert sum(member.repeats for member in members) == 1
    for member in members:
        member.close()


@pytest.mark.parametrize("use_async", [False, True], ids=["def", "async"])
def test_a_constraint_of_the_handlers_own_fails_its_attempt(
    url: str, writes: Writes, use_async: bool
) -> None:
    """No one else has handled the record: it is no repeat."""
    with database(url).begin() as connection:
        connection.execute(text("create unique index one on writes (v)"))
    app = booking(url, use_async=use_async, retry=perkey.Retry(1), on_exhausted=perkey.Skip())
    results = run(app, [("k", "x"), ("k", "x")])
    assert [result.outcome for result in results] == ["done", "skipped"]
    assert writes() == ["x"]
    assert repeats(app) == 0


@pytest.mark.parametrize("call", ["commit", "rollback", "close"])
@pytest.mark.parametrize("use_async", [False, True], ids=["def", "async"])
def test_the_end_of_the_transaction_is_the_ledgers(
    url: str, writes: Writes, call: str, use_async: bool
) -> None:
    """A handler that ends the transaction itself has failed, and nothing of it is stored."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere:1"})
    options: dict[str, Any] = {
        "ledger": perkey.SqlLedger(url),
        "retry": perkey.Retry(attempts=1),
        "on_exhausted": perkey.Skip(),
    }

    async def end_async(record: perkey.Record, tx: Any) -> None:
        await tx.execute(INSERT, {"v": "x"})
        await getattr(tx, call)()

    def end(record: perkey.Record, tx: Any) -> None:
        tx.execute(INSERT, {"v": "x"})
        getattr(tx, call)()

    app.consume("orders", **options)(end_async if use_async else end)
    (result,) = run(app, ["v"])
    assert result.outcome == "skipped"
    assert result.error is not None
    assert "are the ledger's" in result.error.message
    assert writes() == []


def test_returning_outputs_is_refused(url: str, writes: Writes) -> None:
    """Outputs could be lost between two commits, so they are a failure that says why."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere:1"})

    @app.consume(
        "orders",
        ledger=perkey.SqlLedger(url),
        retry=perkey.Retry(attempts=1),
        on_exhausted=perkey.Skip(),
    )
    def book(record: perkey.Record, tx: Any) -> Any:
        tx.execute(INSERT, {"v": "x"})
        return perkey.Produce(b"x", topic="out")

    (result,) = run(app, ["v"])
    assert result.error is not None
    assert "returns None" in result.error.message
    assert writes() == []


def test_a_batch_is_one_transaction_without_what_is_known(url: str, writes: Writes) -> None:
    """A batch's records are handled once each; those of an earlier batch are left out."""
    sizes: list[int] = []

    def app() -> perkey.App:
        made = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere:1"})

        @made.consume(
            "orders",
            ledger=perkey.SqlLedger(url, id=lambda record: record.value),
            batch=perkey.Batch(10, linger_s=0.2),
            value="str",
        )
        def book(batch: perkey.RecordBatch, tx: Any) -> None:
            sizes.append(len(batch))
            for record in batch:
                tx.execute(INSERT, {"v": record.value})

        return made

    run(app(), ["a", "b", "c"])
    run(app(), ["b", "c", "d"])
    assert writes() == ["a", "b", "c", "d"]
    assert sizes == [3, 1]


def test_old_ids_are_pruned_behind_the_frontier(url: str, writes: Writes) -> None:
    """An offset goes when it is old and the frontier has passed it; one at the frontier stays."""
    from perkey.ledger.ledger_run import LedgerRun

    ledger = LedgerRun(perkey.SqlLedger(url, keep_s=1e-6), "g", use_async=False, concurrency=1)
    ledger.prepare()
    handle = ledger.around(lambda record, tx: None)
    for offset in range(3):
        handle(perkey.Record("orders", 0, offset, 0, None, "x"))
    ledger.prune_now([Committed("orders", 0, 2, 0)])
    ledger.close()
    with database(url).begin() as connection:
        left = [row[0] for row in connection.execute(text("select position from perkey_ledger"))]
    assert left == [2]


def test_a_table_of_a_newer_perkey_is_refused(url: str, writes: Writes) -> None:
    """A table with a later version than this one knows is one clear line."""
    from perkey.ledger.ledger_run import LedgerRun

    LedgerRun(perkey.SqlLedger(url), "g", use_async=False, concurrency=1).prepare()
    with database(url).begin() as connection:
        connection.execute(text("update perkey_ledger_meta set version = 99"))
    with pytest.raises(perkey.ConfigError, match="made by a newer Perkey"):
        run(booking(url), ["x"])


def test_a_database_that_does_not_answer_is_one_line() -> None:
    """A wrong address ends before anything is consumed, without the password."""
    app = booking("postgresql://user:secret@127.0.0.1:1/db")
    with pytest.raises(perkey.ConfigError, match="cannot be used") as caught:
        run(app, ["x"])
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "use_async"),
    [("sqlite+aiosqlite:///x", False), ("postgresql+asyncpg://h/d", False), ("mysql://h/d", True)],
)
def test_urls_that_do_not_fit_are_refused_at_decoration(url: str, use_async: bool) -> None:
    """Another database, or a driver of the other kind, is refused by name."""
    with pytest.raises(perkey.ConfigError, match="SqlLedger"):
        booking(url, use_async=use_async)


def test_the_repr_hides_the_password() -> None:
    """A ledger can be logged."""
    assert "secret" not in repr(perkey.SqlLedger("postgresql://user:secret@host/db"))
