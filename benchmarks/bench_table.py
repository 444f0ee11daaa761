"""What a fleet's one writer adds to a Delta table, with members as threads of this process.

    python benchmarks/bench_table.py [--members 1 8 32] [--rows 2000] [--seconds 5] [--iceberg]

Each member hands over as soon as it is answered, as in a hurry. Rows are counted in the table.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from perkey.kafka.ports import OutMessage, ToCommit
from perkey.spark.table import DeltaTable, IcebergTable
from perkey.spark.table.committer import TableCommitter
from perkey.spark.table.line import TableLine, TablePlan
from perkey.spark.table.rows import as_rows, columns_of, row_of
from perkey.spark.table.sink import TABLE, TableSink
from perkey.types import Record

COLUMNS = columns_of(pa.schema([("inside", pa.bool_()), ("zone", pa.string())]))
VALUE = b'{"inside": true, "zone": "north-west"}'


class Count:
    """Hand-overs and rows that the table has, over all members."""

    def __init__(self) -> None:
        self.hands = 0
        self.rows = 0
        self.versions: set[int] = set()
        self.lock = threading.Lock()


def member(number: int, committer: TableCommitter, rows: int, end: float, count: Count) -> None:
    """Hand over batch after batch, each once the one before is in the table."""
    records = [Record("t", number, offset, 1, b"key", VALUE) for offset in range(rows)]
    table, _ = as_rows([row_of(OutMessage(TABLE, VALUE, b"key"), one) for one in records], COLUMNS)
    assert table is not None
    plan = TablePlan(COLUMNS.serialize().to_pybytes(), 0.0)

    def send(message: Mapping[str, Any]) -> bool:
        committer.take(message, line.hear)
        return True

    line = TableLine(plan, send, _never)
    line.claim([("t", number)], {"t": "id"}, 1, 60.0)
    first = 0
    while time.monotonic() < end:
        offsets = pa.array(range(first, first + rows), pa.int64())
        batch = table.set_column(2, "offset", offsets)
        first += rows
        done = [ToCommit("t", number, first, "")]
        answer = line.hand_over(batch, done, lambda: True, lambda: False)
        assert answer is not None
        with count.lock:
            count.hands += 1
            count.rows += rows
            count.versions.add(answer["version"])


_never = threading.Event()


def measure(sink: TableSink, members: int, rows: int, seconds: float) -> None:
    """One line for so many members."""
    committer = TableCommitter(sink.opened(COLUMNS, "bench"), 0.0, print)
    committer.start()
    count, began, cpu = Count(), time.monotonic(), time.process_time()
    threads = [
        threading.Thread(target=member, args=(n, committer, rows, began + seconds, count))
        for n in range(members)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took, cpu = time.monotonic() - began, time.process_time() - cpu
    committer.close()
    print(
        f"{members:4} members: {count.rows / took:9,.0f} rows/s, {count.hands / took:6.1f} "
        f"hand-overs/s in {len(count.versions) / took:5.1f} commits/s, "
        f"{1e6 * cpu / count.rows:5.1f} µs of processor time a row"
    )


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rows", type=int, default=2000, help="of a hand-over")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--iceberg", action="store_true")
    given = parser.parse_args()
    for members in given.members:
        with tempfile.TemporaryDirectory() as folder:
            sink: TableSink = DeltaTable(f"{folder}/t", "a int")
            if given.iceberg:
                where = {"uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"}
                sink = IcebergTable({"type": "sql", **where}, "ns.t", "a int")
            measure(sink, members, given.rows, given.seconds)


if __name__ == "__main__":
    main()
