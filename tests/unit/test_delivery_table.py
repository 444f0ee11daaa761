"""The table of what goes together (design 3.2, docs/delivery.md), cell by cell.

Allowed is what decorates; anything else is refused right there, with one line that says why.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import perkey

HAS_SQL = importlib.util.find_spec("sqlalchemy") is not None
HAS_SPARK = importlib.util.find_spec("pyspark") is not None
URL = "postgresql://user@localhost/base"
MODES: dict[str, dict[str, Any]] = {
    "at_least_once": {},
    "at_most_once": {"delivery": "at_most_once"},
    "exactly_once": {"delivery": "exactly_once"},
    "ledger": {"ledger": perkey.SqlLedger(URL)},
}
#: row -> options, and the modes that take them
TABLE: dict[str, tuple[dict[str, Any], set[str]]] = {
    "ordering=key": ({"ordering": "key"}, set(MODES)),
    "ordering=partition": ({"ordering": "partition"}, set(MODES)),
    "ordering=unordered": ({"ordering": "unordered"}, set(MODES)),
    "async": ({"executor": "async"}, set(MODES)),
    "threads": ({"executor": "threads"}, set(MODES)),
    "processes": ({"executor": "processes", "concurrency": 2}, set(MODES)),
    "batch all": ({"batch": perkey.Batch(ack="all")}, set(MODES)),
    "batch explicit": ({"batch": perkey.Batch(ack="explicit")}, {"at_least_once"}),
    "prefetch": ({"prefetch": list}, set(MODES)),
    "output": ({"output": "out"}, {"at_least_once", "at_most_once", "exactly_once"}),
    "Commit(each=True)": ({"commit": perkey.Commit(each=True)}, {"at_least_once", "ledger"}),
    "Commit(max_records)": ({"commit": perkey.Commit(max_records=10)}, set(MODES)),
    "DeadLetter": ({"on_exhausted": perkey.DeadLetter("dlq")}, set(MODES)),
    "Skip": ({"on_exhausted": perkey.Skip()}, set(MODES)),
    "Stop": ({"on_exhausted": perkey.Stop()}, set(MODES)),
    "Park": ({"on_exhausted": perkey.Park()}, {"at_least_once", "exactly_once", "ledger"}),
    "Retry(1)": ({"retry": perkey.Retry(attempts=1)}, set(MODES)),
    "Retry(2)": ({"retry": perkey.Retry(attempts=2)}, {"at_least_once", "exactly_once", "ledger"}),
    "Retry(None)": (
        {"retry": perkey.Retry(attempts=None)},
        {"at_least_once", "exactly_once", "ledger"},
    ),
    "timeout_s": ({"timeout_s": 1.0}, set(MODES)),
    "rate_limit_per_s": ({"rate_limit_per_s": 5.0}, set(MODES)),
}
CELLS = [(row, mode) for row in TABLE for mode in MODES]


def plain(record: Any) -> None:
    """A handler that worker processes can find by its name."""


def plain_tx(record: Any, tx: Any) -> None:
    """The same with a ledger."""


def plain_batch(batch: Any) -> None:
    """The same for batches."""


def plain_batch_tx(batch: Any, tx: Any) -> None:
    """Both."""


async def waiting(record: Any) -> None:
    """An async handler."""


async def waiting_tx(record: Any, tx: Any) -> None:
    """The same with a ledger."""


async def waiting_batch(batch: Any) -> None:
    """The same for batches."""


async def waiting_batch_tx(batch: Any, tx: Any) -> None:
    """Both."""


def handler_for(options: dict[str, Any], *, use_async: bool) -> Callable[..., Any]:
    """A handler with the arguments that these options ask for."""
    name = "waiting" if use_async else "plain"
    name += "_batch" if "batch" in options else ""
    name += "_tx" if "ledger" in options else ""
    return globals()[name]


def kinds(options: dict[str, Any]) -> list[bool]:
    """Whether the handler may be async: both, where the executor does not say."""
    executor = options.get("executor")
    return [executor == "async"] if executor else [False, True]


def decorate(options: dict[str, Any], *, use_async: bool) -> None:
    perkey.App("g", {"bootstrap.servers": "localhost:1"}).consume("t", **options)(
        handler_for(options, use_async=use_async)
    )


@pytest.mark.skipif(not HAS_SQL, reason="the ledger column needs perkey[sql]")
@pytest.mark.parametrize(("row", "mode"), CELLS, ids=[f"{r} × {m}" for r, m in CELLS])
def test_a_cell_of_the_table(row: str, mode: str) -> None:
    """What the table allows decorates; what it does not is refused in one line."""
    options, allowed = TABLE[row]
    merged = {**options, **MODES[mode]}
    for use_async in kinds(merged):
        if mode in allowed:
            decorate(merged, use_async=use_async)
            continue
        with pytest.raises(perkey.ConfigError) as refused:
            decorate(merged, use_async=use_async)
        text = str(refused.value)
        assert text.startswith("@app.consume on ")
        assert "\n" not in text
        assert mode in text or mode.removesuffix("_once") in text


@pytest.mark.skipif(not HAS_SQL, reason="needs perkey[sql]")
@pytest.mark.parametrize("delivery", ["at_most_once", "exactly_once"])
def test_a_ledger_goes_with_at_least_once_alone(delivery: str) -> None:
    """A ledger beside another promise is refused."""
    with pytest.raises(perkey.ConfigError, match="ledger requires"):
        decorate({"delivery": delivery, "ledger": perkey.SqlLedger(URL)}, use_async=False)


def test_an_unknown_delivery_names_the_known_ones() -> None:
    """The line lists what there is."""
    with pytest.raises(perkey.ConfigError, match=r"at_least_once.*at_most_once.*exactly_once"):
        decorate({"delivery": "effectively_once"}, use_async=False)


def test_at_most_once_has_its_own_defaults() -> None:
    """One attempt, and then the record is skipped."""
    app = perkey.App("g", {"bootstrap.servers": "localhost:1"})
    app.consume("t", delivery="at_most_once")(plain)
    (handler,) = app.handlers
    assert handler.retry.attempts == 1
    assert isinstance(handler.on_exhausted, perkey.Skip)


@pytest.mark.parametrize("value", ["read_uncommitted", "READ_UNCOMMITTED"])
def test_exactly_once_does_not_read_what_was_not_committed(value: str) -> None:
    """`isolation.level=read_uncommitted` is refused, naming the reason; read_committed is fine."""
    app = perkey.App("g", {"bootstrap.servers": "localhost:1", "isolation.level": value})
    app.consume("t", delivery="exactly_once")(plain)
    with pytest.raises(perkey.ConfigError, match=r"isolation\.level"):
        app.start()


@pytest.mark.parametrize("name", ["transactional.id", "enable.idempotence"])
def test_the_producers_identity_is_perkeys(name: str) -> None:
    """The properties that carry the promise cannot be set beside it."""
    value: Any = "mine" if name == "transactional.id" else False
    with pytest.raises(perkey.ConfigError, match=name.replace(".", r"\.")):
        app = perkey.App("g", {"bootstrap.servers": "localhost:1"}, producer={name: value})
        app.consume("t", delivery="exactly_once")(plain)
        app.start()


@pytest.mark.skipif(not HAS_SPARK, reason="needs perkey[spark]")
@pytest.mark.parametrize("url", ["sqlite:///file.db", "sqlite+aiosqlite:///file.db"])
def test_a_fleet_takes_no_sqlite_ledger(url: str) -> None:
    """One machine's file cannot serve members on others: refused before Spark starts."""
    from perkey.spark.fleet import upfront

    app = perkey.App("g", {"bootstrap.servers": "localhost:1"})
    use_async = "aiosqlite" in url
    handler = waiting_tx if use_async else plain_tx
    app.consume("t", ledger=perkey.SqlLedger(url))(handler)
    with pytest.raises(perkey.ConfigError, match="SQLite"):
        upfront._check_ledgers(app)


def test_the_table_of_the_docs_is_this_one() -> None:
    """docs/delivery.md shows the cells that are tested here."""
    page = (Path(__file__).parents[2] / "docs" / "delivery.md").read_text()
    columns = ["at_least_once", "at_most_once", "exactly_once", "ledger"]
    rows = {
        "orderings": "ordering=key",
        "async, threads": "async",
        "processes": "processes",
        'batch `ack="all"`': "batch all",
        'batch `ack="explicit"`': "batch explicit",
        "prefetch": "prefetch",
        "outputs": "output",
        "`Commit(each=True)`": "Commit(each=True)",
    }
    lines = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("|")]
    cells = {line[0].strip(): [c.strip() for c in line[1:]] for line in lines if len(line) == 5}
    for shown, row in rows.items():
        pairs = zip(columns, cells[shown], strict=True)
        assert {mode for mode, cell in pairs if cell != "no"} == TABLE[row][1], shown
