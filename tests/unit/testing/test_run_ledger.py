"""`perkey.testing.run` never opens the app's own database, nor its lifespan where another is given."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

import perkey
from perkey.testing import run


def app_on(url, **options):
    app = perkey.App(group="pay", kafka={"bootstrap.servers": "kafka.example:9092"}, **options)

    @app.consume("payments", ledger=perkey.SqlLedger(url), retry=perkey.Retry(attempts=1))
    def pay(record, tx):
        tx.exec_driver_sql("INSERT INTO paid VALUES (?)", (record.value.decode(),))

    return app


def database(path):
    with contextlib.closing(sqlite3.connect(path)) as made:
        made.execute("CREATE TABLE paid (what TEXT)")
        made.commit()
    return f"sqlite:///{path}"


def rows(path):
    with contextlib.closing(sqlite3.connect(path)) as opened:
        return sorted(row[0] for row in opened.execute("SELECT what FROM paid"))


def tables(path):
    with contextlib.closing(sqlite3.connect(path)) as opened:
        return {row[0] for row in opened.execute("SELECT name FROM sqlite_master")}


def test_the_apps_own_database_is_never_written(tmp_path):
    """Without `ledger=` an empty file stands in; the handler's missing table is its failure."""
    app = app_on(database(tmp_path / "real.db"))
    (result,) = run(app, [b"10 EUR"])
    assert result.outcome == "parked"
    assert "no such table: paid" in result.error.message
    assert tables(tmp_path / "real.db") == {"paid"}
    assert rows(tmp_path / "real.db") == []


def test_an_execute_that_is_not_awaited_is_a_failed_attempt(tmp_path):
    """It wrote nothing, and the record counted as done."""
    app = perkey.App(group="pay", kafka={"bootstrap.servers": "kafka.example:9092"})
    insert = "INSERT INTO paid VALUES ('x')"

    @app.consume("payments", ledger=perkey.SqlLedger("sqlite://"), retry=perkey.Retry(attempts=1))
    async def pay(record, tx):
        await tx.exec_driver_sql("CREATE TABLE IF NOT EXISTS paid (what TEXT)")
        made = tx.exec_driver_sql(insert)
        if record.value == b"good":
            await made

    good, bad = run(app, [("a", b"good"), ("b", b"bad")], timeout_s=30)
    assert (good.outcome, bad.outcome) == ("done", "parked")
    assert bad.error.message == (
        "tx.exec_driver_sql(...) was not awaited: write await tx.exec_driver_sql(...)"
    )


def test_a_handler_without_tables_needs_none(tmp_path):
    """The stand-in recognises repeats like any ledger, and is gone afterwards."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "kafka.example:9092"})
    by_value = perkey.SqlLedger("postgresql://nobody:secret@db.example/pay", id=lambda r: r.value)
    app.consume("t", ledger=by_value)(lambda record, tx: None)
    assert [one.outcome for one in run(app, [b"a", b"b", b"a"])] == ["done"] * 3
    assert app.handlers[0].ledger is by_value


def test_the_given_database_has_the_writes(tmp_path):
    """`ledger=` names the test's database; the app has its own again afterwards."""
    app = app_on(database(tmp_path / "real.db"))
    test = perkey.SqlLedger(database(tmp_path / "test.db"))
    own = app.handlers[0].ledger
    assert [one.outcome for one in run(app, [b"a", b"b"], ledger=test)] == ["done", "done"]
    assert rows(tmp_path / "test.db") == ["a", "b"]
    assert rows(tmp_path / "real.db") == []
    assert app.handlers[0].ledger is own


def test_a_ledger_for_no_one_is_refused():
    """Given to an app without a ledger it would do nothing."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "kafka.example:9092"})
    app.consume("t")(print)
    with pytest.raises(perkey.ConfigError, match="no handler of this app has a ledger"):
        run(app, [b"1"], ledger=perkey.SqlLedger("sqlite://"))


def test_a_lifespan_stands_in_for_the_apps_own():
    """The test's connections instead of the real ones; None opens none."""

    @contextlib.contextmanager
    def real():
        raise AssertionError("the real lifespan was opened")
        yield

    @contextlib.contextmanager
    def fake():
        yield "a fake service"

    app = perkey.App(group="g", kafka={"bootstrap.servers": "kafka.example:9092"}, lifespan=real)
    seen = []
    app.consume("t")(lambda record: seen.append(app.state))
    run(app, [b"1"], lifespan=fake)
    run(app, [b"1"], lifespan=None)
    assert seen == ["a fake service", None]
    assert app.options.lifespan is real


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_database_in_memory(url):
    """SQLite in memory serves as a stand-in: every call sees the same one."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "kafka.example:9092"})
    ledger = perkey.SqlLedger("postgresql://nobody@db.example/pay", id=lambda record: record.value)
    handled = []
    app.consume("t", ledger=ledger)(lambda record, tx: handled.append(record.value))
    results = run(app, [b"a", b"b", b"a", b"c"] * 20, ledger=perkey.SqlLedger(url))
    assert {one.outcome for one in results} == {"done"}
    assert sorted(handled) == [b"a", b"b", b"c"]
