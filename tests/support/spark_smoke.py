"""One run of each of Perkey's ways on Spark, for whatever PySpark is installed beside this Python.

    PYTHONPATH=src:. python -m tests.support.spark_smoke BOOTSTRAP FOLDER NAME...

Prints a line for each name: `NAME ok`, or `NAME` and what was said instead.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import uuid
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import perkey
from perkey.errors import ConfigError

RECORDS, KEYS, PARTITIONS = 60, 5, 2


class Smoke:
    """A session, a broker and a folder."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.bootstrap, self.folder = bootstrap, folder
        self._spark: Any = None

    @property
    def spark(self) -> Any:
        """A classic session, made when it is first asked for."""
        if self._spark is None:
            from pyspark.sql import SparkSession

            self._spark = self.configured(SparkSession.builder.master("local[2,4]")).getOrCreate()
            self._spark.sparkContext.setLogLevel("OFF")
        return self._spark

    def configured(self, builder: Any) -> Any:
        """The settings of either kind of session."""
        builder = builder.config("spark.ui.enabled", "false")
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        return builder.config("spark.sql.shuffle.partitions", "2")

    def topic(self, records: int = RECORDS) -> str:
        """A topic with so many records; values are their numbers."""
        name = f"smoke-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(60)
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number in range(records):
            producer.produce(name, b"%d" % number, b"k%d" % (number % KEYS), number % PARTITIONS)
        assert producer.flush(60) == 0
        return name

    def rows(self, reader: Any, topic: str, **options: str) -> Any:
        """A DataFrame of the source."""
        from perkey.spark import KafkaSource

        (reader._spark if hasattr(reader, "_spark") else self.spark).dataSource.register(
            KafkaSource
        )
        reader = reader.format("perkey").option("kafka.bootstrap.servers", self.bootstrap)
        return reader.options(subscribe=topic, startingOffsets="earliest", **options).load()

    def finish(self, writer: Any, name: str) -> None:
        """Run a streaming query to the end of what there is."""
        writer = writer.option("checkpointLocation", str(self.folder / f"{name}-checkpoint"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(200), f"{name} still runs"

    # -- the ways ----------------------------------------------------------------------------------

    def fleet(self) -> None:
        """Two members drain a topic; each record has its output."""
        source, target = self.topic(), self.topic(0)
        app = perkey.App(group=f"g-{source}", kafka={"bootstrap.servers": self.bootstrap})

        @app.consume(source, output=target)
        async def double(record: perkey.Record) -> str:
            return str(int(record.value) * 2)

        report = app.run(engine="spark", spark=self.spark, members=2, until="drained")
        assert report.exit_code == 0, report
        assert self.values(target) == sorted(2 * n for n in range(RECORDS))

    def source(self) -> None:
        """A batch, a stream to its end, and the same stream again after more has come."""
        topic = self.topic()
        assert self.rows(self.spark.read, topic).count() == RECORDS
        for total in (RECORDS, RECORDS + 2, RECORDS + 2):
            rows = self.rows(self.spark.readStream, topic)
            writer = rows.writeStream.format("parquet").option("path", str(self.folder / "rows"))
            self.finish(writer, "source")
            found = self.spark.read.parquet(str(self.folder / "rows"))
            assert (found.count(), found.distinct().count()) == (total, total)
            if total == RECORDS:
                self.more(topic, 2)

    def bounded(self) -> None:
        """A stream whose batches are bounded."""
        topic = self.topic()
        rows = self.rows(self.spark.readStream, topic, maxOffsetsPerTrigger="20")
        sizes = []
        self.finish(
            rows.writeStream.foreachBatch(lambda df, _: sizes.append(df.count())), "bounded"
        )
        assert len(sizes) >= 3, sizes
        assert sum(sizes) == RECORDS, sizes

    def sink(self) -> None:
        """A batch and a stream, each also in transactions."""
        source = self.topic()
        for transactional in ("false", "true"):
            for how in ("batch", "stream"):
                target = self.topic(0)
                options = {
                    "kafka.bootstrap.servers": self.bootstrap,
                    "topic": target,
                    "transactional": transactional,
                }
                if how == "batch":
                    rows = self.rows(self.spark.read, source).select("key", "value")
                    rows.write.format("perkey").mode("append").options(**options).save()
                else:
                    rows = self.rows(self.spark.readStream, source).select("key", "value")
                    writer = rows.writeStream.format("perkey").options(**options)
                    self.finish(writer, f"sink-{transactional}")
                assert self.values(target) == list(range(RECORDS)), (transactional, how)

    def process(self) -> None:
        """A batch with all that adds columns, and a stream of files."""
        self._process(self.spark)
        rows = self._made(self.spark)
        rows.write.parquet(str(self.folder / "files"))
        stream = self.spark.readStream.schema(rows.schema).parquet(str(self.folder / "files"))
        from perkey.spark import process

        out = process(stream, halved, value="json", metrics="calls")
        writer = out.writeStream.format("parquet").option("path", str(self.folder / "halved"))
        self.finish(writer, "process")
        assert self.spark.read.parquet(str(self.folder / "halved")).count() == RECORDS

    def connect(self) -> None:
        """The source, the sink's rows and the operator through a Connect server."""
        from pyspark.sql import SparkSession

        from perkey.spark.requirements import check_connect_packages

        check_connect_packages()
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        self._spark = self.configured(SparkSession.builder.remote("local[2]")).getOrCreate()
        self._process(self.spark)
        topic = self.topic()
        if sys.modules["pyspark"].__version__ >= "4":
            assert self.rows(self.spark.read, topic).count() == RECORDS
        app = perkey.App(group=f"g-{topic}", kafka={"bootstrap.servers": self.bootstrap})
        app.consume(topic)(nothing)
        report = app.run(engine="spark", spark=self.spark, members=1, until="drained")
        assert report.exit_code == 0, report

    # -- helpers -----------------------------------------------------------------------------------

    def _made(self, spark: Any) -> Any:
        return spark.range(RECORDS).selectExpr(
            "'t' as topic",
            "0 as partition",
            "id as offset",
            f"cast(concat('k', id % {KEYS}) as binary) as key",
            "cast(cast(id as string) as binary) as value",
        )

    def _process(self, spark: Any) -> None:
        from perkey.spark import process

        rows = process(
            self._made(spark), halved, value="json", carry="failed", schema="half double",
            retry=perkey.Retry(attempts=1),
        ).collect()  # fmt: skip
        assert len(rows) == RECORDS
        done = sorted(row.results[0].half for row in rows if row.status == "done")
        assert done == [n / 2 for n in range(RECORDS) if n != 7]
        (failed,) = [row for row in rows if row.status == "failed"]
        assert (failed.error, bytes(failed.value)) == ("ValueError: seven", b"7")

    def more(self, topic: str, count: int) -> None:
        """Write some more records."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number in range(count):
            producer.produce(topic, b"%d" % (1000 + number))
        assert producer.flush(60) == 0

    def values(self, topic: str) -> list[int]:
        """All numbers in a topic, sorted."""
        from tests.support.exactness import read_committed

        return sorted(
            int(record.value() or b"") for record in read_committed(self.bootstrap, topic)
        )


async def halved(record: perkey.Record) -> dict[str, float]:
    """One fails."""
    if record.value == 7:
        raise ValueError("seven")
    return {"half": record.value / 2}


async def nothing(record: perkey.Record) -> None:
    """Takes a record."""


def main() -> None:
    """Run what is named."""
    smoke = Smoke(sys.argv[1], Path(sys.argv[2]))
    for name in sys.argv[3:]:
        try:
            getattr(smoke, name)()
            said = "ok"
        except ConfigError as error:
            said = str(error)
        except Exception as error:
            traceback.print_exc()
            said = f"{type(error).__name__}: {error}"
        print(name, json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
