"""`sink=`: what is refused before a job starts, and what a member checks where it runs."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel
from pyspark.sql.types import BooleanType, LongType, StringType, StructType

import weft
from weft.errors import ConfigError
from weft.spark.fleet.settings import fleet_settings
from weft.spark.table import ParquetTable
from weft.spark.table.handlers import with_table, without_table
from weft.spark.table.plan import planned
from weft.spark.table.sink import TABLE

SCHEMA = StructType().add("inside", BooleanType()).add("zone", StringType())
OTHER = StructType().add("inside", BooleanType()).add("zone", LongType())


def plan_of(folder, schema=SCHEMA):
    """What members get of a table there."""
    return planned(ParquetTable(folder, schema), spark=None)


def test_a_table_is_made_and_found_again(tmp_path) -> None:
    """The second run finds the first one's table, and a member the driver's folder."""
    first, second = plan_of(tmp_path / "new" / "table"), plan_of(tmp_path / "new" / "table")
    assert first == second
    names = ["topic", "partition", "offset", "key", "timestamp", "inside", "zone"]
    assert first.schema.names == names
    first.check_here()


def test_a_model_is_a_schema(tmp_path) -> None:
    """Its fields are the columns."""

    class Checked(BaseModel):
        inside: bool
        zone: str | None

    assert plan_of(tmp_path, Checked).schema == plan_of(tmp_path).schema


def test_another_schema_is_refused(tmp_path) -> None:
    """A table without a file yet has a schema too; one line says what is different."""
    plan_of(tmp_path)
    with pytest.raises(ConfigError, match=r"it has zone string and this run has zone int64"):
        plan_of(tmp_path, OTHER)


def test_files_of_others_with_another_schema_are_refused(tmp_path) -> None:
    """Nobody's Parquet files are mixed with ours."""
    pq.write_table(pa.table({"a": [1]}), tmp_path / "theirs.parquet")
    with pytest.raises(ConfigError, match=r"another schema: it has a int64"):
        plan_of(tmp_path)


@pytest.mark.parametrize("name", ["_spark_metadata", "_delta_log", "metadata"])
def test_folders_with_a_log_of_their_own_are_refused(tmp_path, name) -> None:
    """Their readers would not see our files."""
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match="give another folder"):
        plan_of(tmp_path)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path) -> None:
    """A file in its way."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a file"):
        plan_of(tmp_path / "file")
    with pytest.raises(ConfigError, match="cannot be written"):
        plan_of(tmp_path / "file" / "below")


def test_a_member_elsewhere_is_refused(tmp_path) -> None:
    """The same path on a machine that does not share it would be a table of its own."""
    plan = plan_of(tmp_path)
    with pytest.raises(ConfigError, match="not the driver's folder"):
        replace(plan, table_id="another").check_here()
    with pytest.raises(ConfigError, match="not the driver's folder"):
        replace(plan, path=str(tmp_path / "nowhere")).check_here()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"path": "s3://bucket/table"}, "object store"),
        ({"path": ""}, "give a folder"),
        ({"schema": " "}, "give the columns"),
        ({"schema": 7}, "give the columns"),
        ({"interval_s": -0.1}, "from 0 to 60"),
        ({"interval_s": 60.1}, "from 0 to 60"),
        ({"interval_s": float("nan")}, "from 0 to 60"),
    ],
)
def test_what_cannot_be_a_sink(arguments, said) -> None:
    """One line, when it is made."""
    with pytest.raises(ConfigError, match=said):
        ParquetTable(**{"path": "/table", "schema": "a int", **arguments})


def test_the_limits_of_the_interval() -> None:
    """0 and 60 seconds are allowed."""
    assert ParquetTable("/t", "a int", interval_s=0).interval_s == 0
    assert ParquetTable("file:///t", "a int", interval_s=60).path == "/t"


def test_sink_is_for_fleets() -> None:
    """In one process it has no meaning, and it is nothing but a table."""
    with pytest.raises(ConfigError, match=r"give weft\.spark\.ParquetTable"):
        fleet_settings(2, "local[2]", None, None, "/table")
    app = app_with()
    with pytest.raises(ConfigError, match='sink requires engine="spark"'):
        app.run(sink=ParquetTable("/t", "a int"))


def app_with(**options) -> weft.App:
    """An app with one handler."""
    app = weft.App(group="g", kafka={"bootstrap.servers": "localhost:9092"})

    @app.consume("t", **options)
    def handle(record):
        return None

    return app


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delivery": "at_most_once"}, "cannot feed a table"),
        ({"commit": weft.Commit(each=True)}, "a file a record"),
    ],
)
def test_handlers_that_cannot_feed_a_table(options, said) -> None:
    """What goes with a table is said by the driver."""
    with pytest.raises(ConfigError, match=said):
        with_table(app_with(**options))


def test_batch_handlers_cannot_feed_a_table() -> None:
    """Their outputs belong to no single record."""
    app = weft.App(group="g", kafka={"bootstrap.servers": "localhost:9092"})

    @app.consume("t", batch=weft.Batch())
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
