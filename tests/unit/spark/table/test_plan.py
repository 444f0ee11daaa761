"""`sink=`: what is refused before a job starts, and what members are given."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable as Table
from pydantic import BaseModel
from pyspark.sql.types import BooleanType, LongType, StringType, StructType

import perkey
import perkey.spark
from perkey.errors import ConfigError
from perkey.spark.fleet.settings import fleet_settings
from perkey.spark.table import DeltaTable, delta, sink
from perkey.spark.table.committer import planned
from perkey.spark.table.sink import TABLE, with_table, without_table

SCHEMA = StructType().add("inside", BooleanType()).add("zone", StringType())
OTHER = StructType().add("inside", BooleanType()).add("zone", LongType())


def plan_of(folder, schema=SCHEMA):
    """What members get of a table there."""
    return planned(DeltaTable(folder, schema), "g", spark=None)[0]


def test_a_table_is_made_and_found_again(tmp_path) -> None:
    """The second run finds the first one's table, also without a schema."""
    first, second = plan_of(tmp_path / "new" / "table"), plan_of(tmp_path / "new" / "table")
    assert first == second == plan_of(tmp_path / "new" / "table", None)
    names = ["topic", "partition", "offset", "key", "timestamp", "inside", "zone"]
    assert first.schema.names == names


def test_members_are_not_given_the_way_in(tmp_path) -> None:
    """Neither the address nor what opens the store travels, or is shown."""
    options = {"AWS_SECRET_ACCESS_KEY": "planted"}
    table = DeltaTable(tmp_path / "t", SCHEMA, storage_options=options)
    assert "planted" not in repr(table)
    plan = planned(table, "g", spark=None)[0]
    assert str(tmp_path) not in repr(plan)
    assert "planted" not in repr(plan)


def test_a_model_is_a_schema(tmp_path) -> None:
    """Its fields are the columns."""

    class Checked(BaseModel):
        inside: bool
        zone: str | None

    assert plan_of(tmp_path, Checked).schema == plan_of(tmp_path).schema


def test_another_schema_is_refused(tmp_path) -> None:
    """A table without a row yet has a schema too; one line says what is different."""
    plan_of(tmp_path)
    with pytest.raises(ConfigError, match=r"it has zone string and this run has zone int64"):
        plan_of(tmp_path, OTHER)


def test_a_table_of_ones_own_may_lack_what_is_of_the_record(tmp_path) -> None:
    """Its value columns must be the same; those of the record it takes as it has them."""
    columns = pa.schema([("zone", pa.string()), ("inside", pa.bool_()), ("offset", pa.int64())])
    Table.create(str(tmp_path), columns, partition_by=["zone"])
    assert plan_of(tmp_path).schema.names[-2:] == ["inside", "zone"]
    assert plan_of(tmp_path, None).schema.names[-2:] == ["zone", "inside"]


def test_a_column_of_the_record_with_another_type_is_refused(tmp_path) -> None:
    """It would be filled with what does not fit."""
    columns = pa.schema([("inside", pa.bool_()), ("zone", pa.string()), ("offset", pa.string())])
    Table.create(str(tmp_path), columns)
    with pytest.raises(ConfigError, match="it has offset string and this run has offset int64"):
        plan_of(tmp_path)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("_spark_metadata", "of a streaming query"),
        ("metadata", "an Iceberg table"),
        ("part-0.parquet", "has files and is no Delta table"),
    ],
)
def test_a_table_of_another_kind_is_refused(tmp_path, name, what) -> None:
    """Its readers would not see our rows."""
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match=f"{what}.*: give an"):
        DeltaTable(tmp_path, SCHEMA).check()


def test_what_is_in_the_way_is_named(tmp_path) -> None:
    """A file; a folder below a file; no table and no columns."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a file"):
        DeltaTable(tmp_path / "file", SCHEMA).check()
    with pytest.raises(ConfigError, match=r"^sink: the Delta table .* cannot be used: [^\n]*$"):
        plan_of(tmp_path / "file" / "below")
    with pytest.raises(ConfigError, match=r"there is no Delta table .*: give schema="):
        plan_of(tmp_path / "none", None)


def test_a_table_that_may_not_be_written_is_reported_immediately(tmp_path, monkeypatch) -> None:
    """A commit without a row is tried before anything starts."""
    plan_of(tmp_path)

    def refuses(*_arguments, **_more):
        raise OSError("403 Forbidden")

    monkeypatch.setattr(delta, "write_deltalake", refuses)
    with pytest.raises(ConfigError, match="cannot be used: 403 Forbidden"):
        plan_of(tmp_path)


def test_the_missing_library_is_named(tmp_path, monkeypatch) -> None:
    """With what installs it."""
    monkeypatch.setattr(sink.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"needs deltalake.*pip install 'perkey\[delta\]'"):
        DeltaTable(tmp_path, SCHEMA).check()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"uri": ""}, "give a folder"),
        ({"uri": 7}, "give a folder"),
        ({"uri": "://x"}, "give a folder"),
        ({"schema": " "}, "give the columns"),
        ({"schema": 7}, "give the columns"),
        ({"interval_s": -0.1}, "from 0 to 60"),
        ({"interval_s": 60.1}, "from 0 to 60"),
        ({"interval_s": float("nan")}, "from 0 to 60"),
        ({"storage_options": ["AWS_REGION"]}, "must be a dict of text"),
        ({"storage_options": {"timeout": 5}}, "must be a dict of text"),
    ],
)
def test_what_cannot_be_a_sink(arguments, said) -> None:
    """One line, when it is made."""
    with pytest.raises(ConfigError, match=said):
        DeltaTable(**{"uri": "/table", "schema": "a int", **arguments})


def test_the_limits_of_the_interval() -> None:
    """0 and 60 seconds are allowed."""
    assert DeltaTable("/t", "a int", interval_s=0).interval_s == 0
    assert DeltaTable("file:///t", "a int", interval_s=60).uri == "/t"
    assert DeltaTable("file:/t", "a int").uri == "/t"


def test_sink_is_for_fleets() -> None:
    """In one process it has no meaning, and it is nothing but a table."""
    with pytest.raises(ConfigError, match=r"give perkey\.spark\.DeltaTable"):
        fleet_settings(2, "local[2]", None, None, "/table")
    app = app_with()
    with pytest.raises(ConfigError, match='sink requires engine="spark"'):
        app.run(sink=DeltaTable("/t", "a int"))


def app_with(**options) -> perkey.App:
    """An app with one handler."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "localhost:9092"})

    @app.consume("t", **options)
    def handle(record):
        return None

    return app


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delivery": "at_most_once"}, "cannot feed a table"),
        ({"commit": perkey.Commit(each=True)}, "to the table for each record"),
    ],
)
def test_handlers_that_cannot_feed_a_table(options, said) -> None:
    """What goes with a table is said by the driver."""
    with pytest.raises(ConfigError, match=said):
        with_table(app_with(**options))


def test_batch_handlers_cannot_feed_a_table() -> None:
    """Their outputs belong to no single record."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "localhost:9092"})

    @app.consume("t", batch=perkey.Batch())
    def handle(batch):
        return None

    with pytest.raises(ConfigError, match="no single record"):
        with_table(app)


def test_the_travelling_app_writes_rows() -> None:
    """Its handlers' values are rows, in transactions; the driver's app is as it was."""
    app = app_with(output="checked")
    travelling = with_table(app)
    assert [(one.output, one.delivery) for one in travelling.handlers] == [(TABLE, "exactly_once")]
    assert [one.output for one in app.handlers] == ["checked"]
    assert [one.output for one in without_table(travelling.handlers)] == [None]
