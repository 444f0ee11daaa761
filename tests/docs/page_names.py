"""The names that the code of a page uses without defining them: its reader's own app and services.

What a page has defined so far it keeps. The app alone is new in each block: two blocks may each show
a handler of the same topic.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Unpack

import pydantic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter
from pyspark.sql.types import BinaryType, StructType

import perkey
from perkey.handler_types import RunOptions
from perkey.spark import KafkaSource
from perkey.spark.processing import operator
from perkey.spark.processing.settings import check_arguments, handler_options, where_of
from perkey.spark.sink.writers import checked_options
from perkey.spark.source.options import source_options

#: Rows as a query writes them to Kafka.
ROWS = StructType().add("key", BinaryType()).add("value", BinaryType())


class Registrations:
    """`spark.dataSource`: takes classes of data sources."""

    def register(self, source: type[DataSource]) -> None:
        """Take a data source of Python."""
        assert issubclass(source, DataSource)


#: What a method of Spark's returns, by the name in its annotation.
KINDS: dict[str, type] = {
    "DataFrame": DataFrame,
    "ParentDataFrame": DataFrame,
    "DataSourceRegistration": Registrations,
    **{
        kind.__name__: kind
        for kind in (
            SparkSession, DataFrameReader, DataFrameWriter, DataStreamReader, DataStreamWriter,
            StreamingQuery,
        )
    },
}  # fmt: skip


class Spark:
    """An object of Spark without Spark: it has the methods of its class, and their parameters.

    The options of the format `perkey` are checked as a query checks them.
    """

    def __init__(self, kind: type, options: dict[str, str] | None = None) -> None:
        self._kind = kind
        self._options = {} if options is None else options

    def __getattr__(self, name: str) -> Any:
        member = inspect.getattr_static(self._kind, name)
        if isinstance(member, property):
            return self._returned(member.fget)

        def call(*arguments: Any, **named: Any) -> Any:
            given = inspect.signature(member).bind(self, *arguments, **named).arguments
            self._keep(name, given)
            return self._returned(member)

        return call

    def _returned(self, member: Any) -> Any:
        annotated = inspect.get_annotations(member)["return"]
        name = annotated if isinstance(annotated, str) else getattr(annotated, "__name__", "None")
        kind = KINDS.get(name.rpartition(".")[2].strip("'\""))
        chained = kind is self._kind and kind is not DataFrame
        return None if kind is None else Spark(kind, self._options if chained else None)

    def _keep(self, name: str, given: dict[str, Any]) -> None:
        """Collect the options of a reader or writer; check them where the query would start."""
        if name == "format":
            self._options["format"] = given.get("source", "")
        elif name == "option":
            self._options[given["key"]] = given["value"]
        elif name == "options":
            self._options.update(given["options"])
        elif self._options.get("format") == "perkey" and name in ("load", "save", "start"):
            options = {key: value for key, value in self._options.items() if key != "format"}
            if name == "load":
                source_options(options)
            else:
                checked_options(options, ROWS)


def process(df: Any, handler: Callable[..., Any], **options: Any) -> Spark:
    """`perkey.spark.process` up to its first call of Spark: names and values of its options."""
    assert isinstance(df, Spark)
    given = inspect.signature(operator.process).bind(df, handler, **options)
    given.apply_defaults()
    names = ("ordering", "concurrency", "retry", "timeout_s", "on_exhausted", "value")
    handler_options(handler, {name: given.arguments[name] for name in names})
    others = ("slots", "carry", "progress", "deadline_s", "metrics")
    chosen = {name: given.arguments[name] for name in others}
    streaming = options.get("deadline_s") is not None
    check_arguments(where_of(handler), streaming=streaming, **chosen)
    return Spark(DataFrame)


def replay(dead: Any, handler: Any, results: Any = None, **options: Any) -> Spark:
    """`perkey.spark.replay`, so too."""
    assert isinstance(dead, Spark)
    assert results is None or isinstance(results, Spark)
    return process(dead, handler, **options)


def once(write: Callable[[Any, int], Any]) -> Callable[[Any, int], None]:
    """`perkey.spark.once`: the function is called with a batch."""
    write(Spark(DataFrame), 0)
    return operator.once(write)


class Fleet(perkey.App):
    """An app whose fleet is not started: its options exist."""

    def run(self, **how: Unpack[RunOptions]) -> perkey.RunReport:
        """Check what is given."""
        assert how.get("engine") == "spark"
        assert how.keys() <= RunOptions.__annotations__.keys()
        return None  # type: ignore[return-value]  # no page looks at it


def app() -> perkey.App:
    """The reader's app."""
    return perkey.App(group="billing", kafka={"bootstrap.servers": "localhost:9092"})


def budget() -> dict[str, Any]:
    """A client of a language model."""

    async def create(model: str, input: str) -> SimpleNamespace:  # noqa: A002  # its name there
        return SimpleNamespace(usage=SimpleNamespace(total_tokens=len(model + input)))

    responses = SimpleNamespace(create=create)
    return {"app": app(), "client": SimpleNamespace(responses=responses), "perkey": perkey}


def options() -> dict[str, Any]:
    """Customers that arrive when they have been looked for, a card's error, and a schema registry."""

    class CardDeclined(Exception):
        pass

    asked: set[bytes] = set()

    async def find(key: bytes) -> bytes | None:
        if key in asked:
            return key
        asked.add(key)
        return None

    async def schema(topic: str, number: bytes) -> SimpleNamespace:
        return SimpleNamespace(read=lambda value: (topic, number, value))

    return {
        "app": app(),
        "perkey": perkey,
        "CardDeclined": CardDeclined,
        "Position": tuple,
        "customers": SimpleNamespace(find=find),
        "registry": SimpleNamespace(schema=schema),
    }


def plain() -> dict[str, Any]:
    """An app, and imports."""
    return {"app": app(), "json": json, "perkey": perkey}


def on_spark() -> dict[str, Any]:
    """A session, DataFrames, and functions of `perkey.spark` that need no Spark."""

    async def check(record: perkey.Record) -> dict[str, bool]:
        return {"inside": record.value["inside"]}

    frames = ("df", "rides", "alerts", "positions", "results")
    return {
        **plain(),
        "app": Fleet(group="billing", kafka={"bootstrap.servers": "localhost:9092"}),
        **dict.fromkeys(frames, Spark(DataFrame)),
        "spark": Spark(SparkSession),
        "BaseModel": pydantic.BaseModel,
        "KafkaSource": KafkaSource,
        "check": check,
        "kafka": {"kafka.bootstrap.servers": "localhost:9092"},
        "once": once,
        "process": process,
        "replay": replay,
    }


#: Page -> what makes its names. The others define all that they use.
NAMES: dict[str, Callable[[], dict[str, Any]]] = {
    "budget.md": budget,
    "commands.md": plain,
    "dead-letters.md": plain,
    "options.md": options,
    "outages.md": plain,
    "parked.md": plain,
    **dict.fromkeys(
        (
            "results-to-tables.md", "spark-process.md", "spark-sink.md", "spark-source.md",
            "spark.md",
        ),
        on_spark,
    ),
}  # fmt: skip


def give(page: str, module: dict[str, Any]) -> None:
    """Define what the next block of this page may use."""
    names = NAMES[page]()
    module.update({**names, **module, "app": names["app"]})
