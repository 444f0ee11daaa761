"""The handlers of pages that show parts of a program do what their page says, in memory."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.docs import page_names as names
from tests.docs.page_names import Fleet, Spark, process
from tests.docs.test_site_blocks import DOCS, module_of

import perkey
from perkey.app import app_of
from perkey.testing import MemoryKafka, VirtualClock, run


def page(name: str) -> Any:
    """The code of a page, run."""
    module = ModuleType(name)
    exec(compile(module_of(DOCS / name), name, "exec", dont_inherit=True), module.__dict__)
    return module


def app_with(handler: Any) -> perkey.App:
    """The app of a handler: each block has its own."""
    app = app_of(handler)
    assert app is not None
    return app


def results_of(handler: Any, topic: str, *values: str, **headers: bytes) -> list[perkey.Result]:
    """The results of records of one topic, with keys 0, 1, …; waiting takes no time."""
    with MemoryKafka(clock=VirtualClock(), auto_create=True) as kafka:
        kafka.create_topic(topic, 1)
        for number, value in enumerate(values):
            kafka.produce(topic, value, key=str(number), headers=list(headers.items()))
        return run(app_with(handler), [], broker=kafka)


def test_the_handlers_of_the_budget_page_share_a_budget() -> None:
    """Both handle their records; a call charges the tokens that it used."""
    code = page("budget.md")
    assert [one.outcome for one in results_of(code.embed, "documents", "a", "b")] == ["done"] * 2
    (result,) = results_of(code.answer, "questions", "1234")
    assert (result.outcome, result.error) == ("done", None)
    assert code.TOKENS.cost(result.record) == 201


def test_a_record_waits_for_its_customer() -> None:
    """NotNow of options.md: handled 30 s later, as the first attempt."""
    clock = VirtualClock()
    (result,) = run(app_with(page("options.md").book), [("ada", "1")], clock=clock)
    assert (result.outcome, result.attempts) == ("done", 1)
    assert clock.elapsed_s >= 30


@pytest.mark.parametrize(
    ("error", "policy"),
    [
        ("CardDeclined", perkey.DeadLetter("payments.declined")),
        ("ConnectionError", perkey.Retry(attempts=20, delay_s=30)),
        ("ValueError", perkey.Park()),
    ],
)
def test_a_function_decides_by_the_error(error: str, policy: object) -> None:
    """on_exhausted of options.md: a policy for each kind of error."""
    code = page("options.md")
    kind = getattr(code, error, None) or getattr(__import__("builtins"), error)
    assert code.decide(None, kind()) == policy
    (result,) = results_of(code.charge, "payments", "1")
    assert result.outcome == "done"


def test_a_decoder_reads_with_the_schema_of_the_record() -> None:
    """The async decoder of options.md gets topic and headers."""
    app, values = names.app(), []

    @app.consume("gps.positions", value=page("options.md").position)
    async def check(record: perkey.Record) -> None:
        values.append(record.value)

    results_of(check, "gps.positions", "v", **{"schema-id": b"7"})
    assert values == [("gps.positions", b"7", b"v")]


@pytest.mark.parametrize(
    ("name", "outcome"), [("outages.md", "dead_lettered"), ("parked.md", "parked")]
)
def test_a_handler_that_waits_or_gives_up_handles_records(name: str, outcome: str) -> None:
    """The last block of the page: a good record is done, the policy applies to another one."""
    code = page(name)
    assert [one.outcome for one in results_of(code.charge, "orders", "1", "2")] == ["done"] * 2
    (spec,) = app_with(code.charge).handlers
    given_up = {"parked": perkey.Park, "dead_lettered": perkey.DeadLetter}[outcome]
    assert isinstance(spec.on_exhausted, given_up)


def test_a_repair_changes_letters_or_leaves_them_out() -> None:
    """fix() of dead-letters.md."""
    fix = page("dead-letters.md").fix
    (result,) = results_of(page("parked.md").charge, "orders", '{"id": 1}')
    assert fix(result.record) == {"id": 1, "currency": "EUR"}
    with pytest.raises(perkey.Reject, match="no id"):
        fix(result.record._replace(value=b"{}"))


def test_the_ledger_page_books_in_its_transaction(tmp_path: Path) -> None:
    """The row of each record is in the table."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        database.execute("create table bookings (v text)")
        ledger = perkey.SqlLedger(f"sqlite:///{tmp_path}/shop.db")
        (result,) = run(page("ledger.md").app, ["10 EUR"], ledger=ledger)
        assert (result.outcome, result.error) == ("done", None)
        assert database.execute("select * from bookings").fetchall() == [("10 EUR",)]


# -- the names of pages about Spark ----------------------------------------------------------------


MISSPELT: dict[str, Any] = {"engine": "spark", "member": 2}


def perkey_source() -> Any:
    """A reader of the format `perkey`."""
    return Spark(SparkSession).read.format("perkey").option("kafka.bootstrap.servers", "a:1")


def test_a_query_as_its_page_has_it_passes() -> None:
    """Methods return what Spark's return: a reader, a DataFrame, a writer, a query."""
    query = perkey_source().option("subscribe", "a").load().selectExpr("key").writeStream
    query = query.format("perkey").option("kafka.bootstrap.servers", "a:1").option("topic", "b")
    assert query.option("checkpointLocation", "c").start().awaitTermination() is None


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda: Spark(SparkSession).readStrom, AttributeError),
        (lambda: Spark(DataFrame).selectExpression("a"), AttributeError),
        (lambda: Spark(DataFrame).write.parquet("a", partition="b"), TypeError),
        (Spark(DataFrame).write.parquet, TypeError),
        (lambda: perkey_source().option("subscribed", "a").load(), perkey.ConfigError),
        (lambda: perkey_source().load(), perkey.ConfigError),
        (lambda: Spark(DataFrame).write.format("perkey").option("topics", "a").save(), perkey.ConfigError),
        (lambda: process(Spark(DataFrame), print, slot=3), TypeError),
        (lambda: process(Spark(DataFrame), print, slots=0), perkey.ConfigError),
        (lambda: process(Spark(DataFrame), print, ordering="keys"), perkey.ConfigError),
        (lambda: Fleet(group="g", kafka={}).run(**MISSPELT), AssertionError),
    ],
    ids=["attribute", "method", "keyword", "argument", "source option", "source", "sink option", "process", "slots", "ordering", "fleet"],
)  # fmt: skip
def test_a_query_that_spark_or_perkey_would_refuse_is_an_error(wrong: Any, error: Any) -> None:
    """Without a session: names, keyword arguments and options of the format are checked."""
    with pytest.raises(error):
        wrong()
