"""Delta and Iceberg as the committer uses them: what a commit says comes back, and who is second."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from deltalake import DeltaTable as DeltaLog
from pyiceberg.catalog.sql import SqlCatalog

from perkey.errors import ConfigError
from perkey.spark.table import DeltaTable, IcebergTable
from perkey.spark.table.progress import Done, Entry, Progress, Source
from perkey.spark.table.rows import columns_of
from perkey.spark.table.store import Moved, Store, Unfit

COLUMNS = columns_of(pa.schema([("n", pa.int16()), ("tags", pa.list_(pa.string()))]))
SOURCE = Source("t", "id", 3)
HOLES = Entry(2, Done(2, 6, (2, 5)))

Open = Callable[..., Store]


@pytest.fixture(params=["delta", "iceberg"])
def opened(request, tmp_path) -> Iterator[Open]:
    """Opens the table for a group, as often as asked."""
    catalog = {
        "type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"
    }  # fmt: skip
    sink = (
        DeltaTable(tmp_path / "t", "n int")
        if request.param == "delta"
        else IcebergTable(catalog, "ns.t", "n int")
    )
    stores: list[Store] = []

    def opened(group: str = "g", columns: pa.Schema = COLUMNS) -> Store:
        stores.append(sink.opened(columns, group))
        return stores[-1]

    yield opened
    for store in stores:
        store.close()


def rows(*offsets: int) -> pa.Table:
    """One for each of these offsets."""
    n = len(offsets)
    return pa.table(
        [["t"] * n, [3] * n, offsets, [b"k"] * n, [0] * n, offsets, [["a"]] * n], schema=COLUMNS
    )


def add(store: Store, *offsets: int, entry: Entry = HOLES) -> int:
    progress = store.read([SOURCE]).with_done({SOURCE: entry})
    return store.append(rows(*offsets), progress, {SOURCE: entry})


def test_what_a_commit_says_comes_back(opened) -> None:
    """Exactly, to whoever opens the table next."""
    assert opened().read([SOURCE]).get(SOURCE) is None
    add(opened(), 0, 1)
    assert opened().read([SOURCE]).get(SOURCE) == HOLES


def test_another_group_has_its_own_progress(opened) -> None:
    """In the same table."""
    add(opened(), 0)
    other = opened("h")
    assert other.read([SOURCE]).get(SOURCE) is None
    add(other, 0, entry=Entry(1, Done(1, 0)))
    assert opened().read([SOURCE]).get(SOURCE) == HOLES


def test_the_second_of_two_is_told(opened) -> None:
    """Nothing of it is added; when it has read what is there it may try again."""
    first, second = opened(), opened()
    first.read(())
    second.read(())
    add(first, 0)
    with pytest.raises(Moved):
        second.append(rows(1), Progress(), {})
    assert second.read([SOURCE]).get(SOURCE) == HOLES
    add(second, 1, entry=Entry(3, Done(7, 6)))
    assert first.read([SOURCE]).get(SOURCE) == Entry(3, Done(7, 6))


def test_another_schema_and_another_run(opened) -> None:
    """Refused when it is opened; numbers that the format widens are the same."""
    opened()
    assert opened(columns=COLUMNS).columns.names == COLUMNS.names
    with pytest.raises(ConfigError, match="has another schema: it has n int"):
        opened(columns=columns_of(pa.schema([("n", pa.string()), ("tags", pa.list_(pa.string()))])))


def test_a_log_that_has_forgotten_knows_the_frontiers(tmp_path) -> None:
    """Of a Delta commit whose info is gone what stays are the versions of its transactions."""
    store = DeltaTable(tmp_path / "t", "n int").opened(COLUMNS, "g")
    add(store, 0, 1)
    store._known = None, Progress()
    store._found = lambda _version: Progress()
    assert store.read([SOURCE]).get(SOURCE) == Entry(0, Done(2, 1))
    assert DeltaLog(tmp_path / "t").transaction_version("perkey/g/t/id/3") == 2


def test_files_put_together_between_two_commits(tmp_path) -> None:
    """By the table's own tool: the writer reads, and goes on where it was."""
    store = DeltaTable(tmp_path / "t", "n int").opened(COLUMNS, "g")
    add(store, 0)
    add(store, 1)
    DeltaLog(tmp_path / "t").optimize.compact()
    with pytest.raises(Moved):
        store.append(rows(2), Progress(), {})
    assert store.read([SOURCE]).get(SOURCE) == HOLES
    add(store, 2)
    assert len(DeltaLog(tmp_path / "t").file_uris()) == 2


def test_a_table_that_is_changed_meanwhile_takes_no_rows(tmp_path) -> None:
    """That is another thing than a store that is away; values are not shown."""
    store = DeltaTable(tmp_path / "t", "n int").opened(COLUMNS, "g")
    DeltaLog(tmp_path / "t").alter.add_constraint({"few": "n < 1"})
    store.read(())
    with pytest.raises(Unfit, match=r"^a constraint of the table, such as NOT NULL, refuses rows$"):
        add(store, 5)


@pytest.mark.parametrize(
    ("catalog", "said"),
    [
        ({"type": "sql", "uri": "sqlite:////nowhere/c.db", "warehouse": "/w"}, "cannot be used"),
        ({"type": "none"}, "cannot be used: 'none' is not a valid"),
        ("of-none", "cannot be used: URI missing"),
    ],
)
def test_a_catalog_that_is_not_there_is_one_line(catalog, said) -> None:
    """With what the library says of it."""
    with pytest.raises(ConfigError, match=rf"^sink: the Iceberg table ns.t {said}[^\n]*$"):
        IcebergTable(catalog, "ns.t", "n int").opened(COLUMNS, "g")


def test_a_table_that_is_refused_leaves_no_catalog_open(tmp_path, monkeypatch) -> None:
    """A catalog in a database has a pool of connections; so has one that is closed by its store."""
    closed: list[str] = []
    close = SqlCatalog.close

    def counted(self: SqlCatalog) -> None:
        closed.append(self.name)
        close(self)

    monkeypatch.setattr(SqlCatalog, "close", counted)
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "name": "c",
               "warehouse": f"file://{tmp_path}/w"}  # fmt: skip
    with pytest.raises(ConfigError, match="there is no Iceberg table"):
        IcebergTable(catalog, "ns.t").opened(None, "g")
    assert closed == ["c"]
    IcebergTable(catalog, "ns.t", "n int").opened(COLUMNS, "g").close()
    assert closed == ["c", "c"]


@pytest.mark.parametrize(
    ("catalog", "name", "said"),
    [
        ("", "a.b", "catalog must be a name"),
        ({}, "a.b", "catalog must be a name"),
        ({"uri": 7}, "a.b", "catalog must be a name"),
        ("c", "table", "give NAMESPACE.TABLE"),
        ("c", 7, "give NAMESPACE.TABLE"),
    ],
)
def test_what_cannot_be_an_iceberg_table(catalog, name, said) -> None:
    """One line, when it is made; the catalog's properties are not shown."""
    with pytest.raises(ConfigError, match=said):
        IcebergTable(catalog, name, "n int")
    assert "planted" not in repr(IcebergTable({"token": "planted"}, "a.b", "n int"))
