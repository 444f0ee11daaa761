"""A fleet's table in an S3-compatible store that refuses, slows down and goes away meanwhile."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator

import boto3
import pyarrow as pa
import pytest
from deltalake import DeltaTable as DeltaLog
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from pyiceberg.catalog import load_catalog
from werkzeug.serving import make_server

from perkey.errors import ConfigError
from perkey.kafka.ports import OutMessage, ToCommit
from perkey.spark.table import DeltaTable, IcebergTable
from perkey.spark.table.committer import TableCommitter
from perkey.spark.table.line import TableLine, TablePlan
from perkey.spark.table.rows import as_rows, columns_of, row_of
from perkey.spark.table.sink import TABLE, TableSink
from perkey.types import Record

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

COLUMNS = columns_of(pa.schema([("n", pa.int64())]))
MEMBERS, HANDS, ROWS = 4, 4, 5
AWAY_S = 3.0


class Bucket:
    """moto's S3 on a port of its own; it slows down at every so many requests, or refuses all."""

    def __init__(self) -> None:
        self.refuse_each = 0
        self.away_until = 0.0
        self.refused = 0
        self._asked = 0
        self._inner = DomainDispatcherApplication(create_backend_app)
        self._server = make_server(
            "127.0.0.1", 0, self._serve, threaded=True, request_handler=MotoRequestHandler
        )
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        client = boto3.client(
            "s3", endpoint_url=self.url, region_name="us-east-1",
            aws_access_key_id="key", aws_secret_access_key="planted",
        )  # fmt: skip
        client.create_bucket(Bucket="tables")

    def _serve(self, environ, start_response):
        self._asked += 1
        late = self.refuse_each and self._asked % self.refuse_each == 0
        if late or time.monotonic() < self.away_until:
            self.refused += 1
            start_response("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        return self._inner(environ, start_response)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    bucket = Bucket()
    yield bucket
    bucket.close()


def delta(bucket: Bucket, **more: str) -> DeltaTable:
    """A Delta table there."""
    options = {
        "AWS_ENDPOINT_URL": bucket.url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "planted", **more,
    }  # fmt: skip
    return DeltaTable("s3://tables/delta", "n long", storage_options=options)


def iceberg(bucket: Bucket, tmp_path) -> IcebergTable:
    """An Iceberg table there, its catalog in a file."""
    catalog = {
        "name": "here", "type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": "s3://tables/iceberg",
        "s3.endpoint": bucket.url, "s3.access-key-id": "key", "s3.secret-access-key": "planted",
        "s3.region": "us-east-1",
    }  # fmt: skip
    return IcebergTable(catalog, "ns.t", "n long")


def rows_in(sink: TableSink) -> Counter:
    """(partition, offset) of all rows."""
    if isinstance(sink, DeltaTable):
        log = DeltaLog(sink.uri, storage_options=dict(sink.storage_options))
        found = pa.table(log.to_pyarrow_table())
    else:
        assert isinstance(sink, IcebergTable)
        catalog = sink.catalog
        assert not isinstance(catalog, str)
        found = load_catalog(**catalog).load_table(sink.name).scan().to_arrow()
    return Counter(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_every_row_once_in_a_store_that_refuses(bucket, tmp_path, kind) -> None:
    """Each eleventh request is answered with 503, for a time all: members wait, no row is lost."""
    sink = delta(bucket, max_retries="3") if kind == "delta" else iceberg(bucket, tmp_path)
    store = sink.opened(COLUMNS, "g")
    bucket.refuse_each = 11
    unfit: list[str] = []
    committer = TableCommitter(store, 0.1, unfit.append)
    committer.start()

    def member(number: int) -> None:
        def send(message) -> bool:
            committer.take(message, line.hear)
            return True

        plan = TablePlan(COLUMNS.serialize().to_pybytes(), 0.1)
        line = TableLine(plan, send, threading.Event())
        while ("t", number) not in claimed(line, number):
            pass
        for first in range(0, HANDS * ROWS, ROWS):
            if (number, first) == (0, ROWS):
                bucket.away_until = time.monotonic() + AWAY_S
            records = [Record("t", number, first + n, 1, b"k", b"") for n in range(ROWS)]
            table, _ = as_rows(
                [row_of(OutMessage(TABLE, b'{"n":1}', b"k"), one) for one in records], COLUMNS
            )
            offsets = [ToCommit("t", number, first + ROWS, "")]
            answer = line.hand_over(table, offsets, lambda: True, lambda: bool(unfit))
            assert answer is not None, "no answer"
            assert "version" in answer, answer

    threads = [threading.Thread(target=member, args=(n,), daemon=True) for n in range(MEMBERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    committer.close()
    assert unfit == []
    assert bucket.refused
    bucket.refuse_each = 0
    assert rows_in(sink) == {(p, o): 1 for p in range(MEMBERS) for o in range(HANDS * ROWS)}


def claimed(line: TableLine, number: int) -> dict:
    """As a member does it: again until it is known what the table has."""
    from perkey.kafka.ports import KafkaUnavailable

    try:
        return dict(line.claim([("t", number)], {"t": "id"}, 1, 60.0))
    except KafkaUnavailable:
        return {}


def test_a_store_that_refuses_is_said_before_anything_starts(bucket) -> None:
    """One line without what opens the store; also where nothing listens."""
    bucket.refuse_each = 1
    for _ in ("refuses", "is away"):
        sink = delta(bucket, max_retries="0")
        with pytest.raises(ConfigError) as refused:
            sink.opened(COLUMNS, "g")
        assert str(refused.value).startswith("sink: the Delta table s3://tables/delta cannot be")
        assert "\n" not in str(refused.value)
        assert "planted" not in str(refused.value)
        bucket.close()
