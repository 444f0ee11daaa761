"""`perkey run --sink`: which table it means, and one line for what is none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perkey.cli.run import patience_of, table_of
from perkey.errors import ConfigError
from perkey.spark.table import DeltaTable, IcebergTable

COLUMNS = "inside boolean"


def test_a_folder_and_its_columns_are_a_table() -> None:
    """As in app.run(sink=...); without the option there is none."""
    assert table_of("delta:/shared/checked", COLUMNS) == DeltaTable("/shared/checked", COLUMNS)
    assert table_of("delta:s3://b/checked", None) == DeltaTable("s3://b/checked")
    assert table_of("iceberg:c:ns.t", COLUMNS) == IcebergTable("c", "ns.t", COLUMNS)
    assert table_of(None, None) is None


@pytest.mark.parametrize(
    ("sink", "schema", "told"),
    [
        (None, COLUMNS, "--sink-schema requires --sink: write --sink delta:"),
        ("parquet:/x", COLUMNS, "plain Parquet tables are gone: write --sink delta:"),
        ("/x", COLUMNS, "--sink '/x' is not a table: write --sink delta:"),
        ("delta:", COLUMNS, "is not a table: write --sink delta:"),
        ("iceberg:ns.t", COLUMNS, "is not a table: write --sink delta:"),
        ("iceberg:c:t", COLUMNS, "give NAMESPACE.TABLE"),
        ("orc:/x", COLUMNS, "is not a table: write --sink delta:"),
        ("delta:/x", " ", "give the columns of what handlers return"),
    ],
)
def test_what_is_no_table_is_one_line(sink, schema, told) -> None:
    """With what to write instead."""
    with pytest.raises(ConfigError) as error:
        table_of(sink, schema)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_a_table_is_for_fleets(tmp_path) -> None:
    """In one process there is none: exit code 2 and one line."""
    (tmp_path / "geofence.py").write_text(
        "import perkey\n"
        'app = perkey.App(group="g", kafka={"bootstrap.servers": "127.0.0.1:1"})\n'
        '@app.consume("t")\n'
        "def handle(record): pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "perkey", "run", "geofence:app", "--sink", f"delta:{tmp_path}/t",
         "--sink-schema", COLUMNS],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.strip().endswith('sink requires engine="spark": omit it')


def test_how_long_a_start_waits():
    """Seconds above 0, or `none` for ever."""
    assert (patience_of("none"), patience_of("40")) == (None, 40.0)
    for wrong in ("0", "-1", "x", "nan", ""):
        with pytest.raises(ConfigError, match="give seconds above 0, or none"):
            patience_of(wrong)
