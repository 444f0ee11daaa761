"""A Spark session and small Kafka tools for the tests in this folder."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from tests.support import spark_python
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from perkey.broker import LocalBroker


#: A busy machine takes its time for Java and Python; a test that hangs still ends.
LIMIT_S = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of this folder may take longer than others."""
    for item in items:
        if Path(__file__).parent in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LIMIT_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session on two cores for all tests, with the format `perkey` registered.

    Its event log and the marker are for test_fleet_secrets.py.
    """
    from pyspark.sql import SparkSession

    from perkey.spark import KafkaSource

    os.environ["PYSPARK_PYTHON"] = spark_python.launcher(tmp_path_factory.mktemp("python"))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", tmp_path_factory.mktemp("events").as_uri())
        .config("spark.eventLog.compress", "false")
        .config("spark.marker", "planted-marker")
        # Without it query.stop() waits for ever for a batch that hangs.
        .config("spark.sql.streaming.stopTimeout", "60s")
        # So long Java and Python wait for each other's hello; 15 s where nobody says more.
        .config("spark.python.authenticate.socketTimeout", "120s")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    session.dataSource.register(KafkaSource)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _nothing_stays_in_the_session(request: pytest.FixtureRequest) -> Iterator[None]:
    """Queries and jobs that a failed test left would hold the session's two slots for ever."""
    yield
    if "spark" not in request.fixturenames:
        return
    session = request.getfixturevalue("spark")
    for query in session.streams.active:
        query.stop()
    session.sparkContext.cancelAllJobs()


@pytest.fixture
def topic(kafka_broker: LocalBroker) -> Callable[..., str]:
    """Make a topic with a name of its own and return the name."""

    def make(partitions: int = 1, prefix: str = "t", config: dict[str, Any] | None = None) -> str:
        name = f"{prefix}-{uuid.uuid4().hex[:12]}"
        kafka_broker.create_topic(name, partitions=partitions, config=config)
        return name

    return make


def named_partitions(client: Producer, topic: str) -> Collection[int]:
    """The partitions that a broker names now."""
    return client.list_topics(topic, timeout=60).topics[topic].partitions.keys()


@pytest.fixture
def produce(kafka_broker: LocalBroker) -> Callable[..., None]:
    """Write values to one partition and wait until the broker has them; `keys`: one for each."""

    def write(
        topic: str,
        values: Iterable[str | bytes | None],
        partition: int = 0,
        keys: Iterable[bytes] = (),
        **more: Any,
    ) -> None:
        # A producer of its own each time: it must know partitions that were added just now.
        config = {"bootstrap.servers": kafka_broker.bootstrap, "linger.ms": 0}
        # Idempotent: a broker that is fenced refuses what it has written, and it is sent again.
        producer = Producer({**config, "enable.idempotence": True})
        # A broker that is behind names fewer, and then the client refuses what goes to the others.
        wait_for(lambda: partition in named_partitions(producer, topic), 60)
        failed: list[str] = []
        key_of = iter(keys)
        for value in values:
            producer.produce(
                topic,
                value,
                next(key_of, more.get("key")),
                partition=partition,
                on_delivery=lambda error, _: failed.append(error.str()) if error else None,
                **{name: given for name, given in more.items() if name != "key"},
            )
        assert (producer.flush(60), failed) == (0, [])

    return write


@pytest.fixture
def read(spark: SparkSession, kafka_broker: LocalBroker) -> Callable[..., DataFrame]:
    """A batch DataFrame of the source; `read(topic, startingOffsets="earliest")`."""

    def load(topic: str | None = None, **options: Any) -> DataFrame:
        return options_of(spark.read, kafka_broker, topic, options).load()

    return load


@pytest.fixture
def read_stream(spark: SparkSession, kafka_broker: LocalBroker) -> Callable[..., DataFrame]:
    """A streaming DataFrame of the source."""

    def load(topic: str | None = None, **options: Any) -> DataFrame:
        return options_of(spark.readStream, kafka_broker, topic, options).load()

    return load


def options_of(reader: Any, broker: LocalBroker, topic: str | None, options: dict[str, Any]) -> Any:
    """The reader with its options; `__` in a name stands for a dot."""
    named = {name.replace("__", "."): str(value) for name, value in options.items()}
    if topic is not None:
        named["subscribe"] = topic
    return reader.format("perkey").options(**{"kafka.bootstrap.servers": broker.bootstrap, **named})
