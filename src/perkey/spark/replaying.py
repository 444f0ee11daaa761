"""Process a time range of one topic with its handler again, as one bounded Spark job.

The group's offsets do not change. Outputs, and dead letters if that is the handler's policy, go to
their topics; each record is handled once, unless Spark runs a task twice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812  # the name every Spark job gives it

from perkey.errors import ConfigError
from perkey.options import HandlerOptions
from perkey.routing import Routes
from perkey.spark.datasource import KafkaSource
from perkey.spark.fleet.settings import check_java
from perkey.spark.processing import process

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from perkey.app import App

FAILURES_SHOWN = 10
#: properties that any client of a cluster needs; the others of an app belong to its consumer
CONNECTION = (
    "bootstrap.servers", "security.", "sasl.", "ssl.", "socket.", "client.id", "client.rack",
    "broker.", "enable.ssl.", "enable.sasl.", "api.version",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of records: from (included) and to (excluded) in milliseconds; one key or all."""

    topic: str
    from_ms: int
    to_ms: int
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class Replayed:
    """The outcomes of a replay."""

    records: int
    failed: int
    outputs: int
    #: the first failures, as lines
    failures: tuple[str, ...]


def handler_for(app: App, topic: str) -> HandlerOptions:
    """The handler that consumes the topic; ConfigError if none does."""
    routes = Routes(app.handlers)
    if routes.reads(topic) is None:
        raise ConfigError(
            f"no handler of the app consumes {topic}: there are {', '.join(routes.topics)}"
        )
    return app.handlers[routes.handler_of(topic)]


def source_properties(kafka: Mapping[str, Any]) -> dict[str, str]:
    """The app's connection as options; values by reference, so that no plan shows them.

    Raises ConfigError for a callback, which cannot be shipped to the executors.
    """
    options: dict[str, str] = {}
    for number, (name, value) in enumerate(sorted(kafka.items())):
        if not name.startswith(CONNECTION):
            if name == "oauth_cb":
                raise ConfigError("an app with oauth_cb cannot be replayed on Spark: use OIDC")
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        os.environ[f"PERKEY_REPLAY_{number}"] = text
        options[f"kafka.{name}"] = f"${{env:PERKEY_REPLAY_{number}}}"
    return options


def session(master: str | None, conf: Mapping[str, str], topic: str) -> SparkSession:
    """A session for one job; raises ConfigError without Java."""
    from pyspark.sql import SparkSession

    check_java()
    quiet = {"spark.log.level": "OFF"}
    builder = SparkSession.builder.appName(f"perkey replay {topic}").master(master or "local[*]")
    for name, value in {**quiet, **conf}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(KafkaSource)
    return spark


def records_of(spark: SparkSession, kafka: Mapping[str, str], stretch: Stretch) -> DataFrame:
    """The records of the range, as a batch."""
    reader = spark.read.format("perkey").options(**kafka).option("subscribe", stretch.topic)
    reader = reader.option("includeHeaders", "true")
    reader = reader.option("startingTimestamp", str(stretch.from_ms))
    reader = reader.option("endingTimestamp", str(stretch.to_ms))
    df = reader.option("startingOffsetsByTimestampStrategy", "latest").load()
    return df if stretch.key is None else df.where(F.col("key") == F.lit(bytearray(stretch.key)))


def replay_stretch(
    spark: SparkSession, app: App, stretch: Stretch, kafka: Mapping[str, str]
) -> Replayed:
    """Handle the records and write their outputs to the topics.

    `kafka`: from `source_properties`, called before the session existed.
    """
    handler = handler_for(app, stretch.topic)
    rows = process(records_of(spark, kafka, stretch), handler.function)
    # Handled here, once; rows lost with an executor end the job, and nothing is called twice.
    rows = rows.localCheckpoint(eager=True)
    outputs = rows.selectExpr("inline(outputs)").where("topic is not null")
    count = outputs.count()
    if count:
        outputs.write.format("perkey").mode("append").options(**kafka).save()
    failed = rows.where("status = 'failed'")
    lines = [
        f"{row.topic}[{row.partition}]@{row.offset} ({row.attempts} attempts): {row.error}"
        for row in failed.orderBy("partition", "offset").limit(FAILURES_SHOWN).collect()
    ]
    return Replayed(rows.count(), failed.count(), count, tuple(lines))
