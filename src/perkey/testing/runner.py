"""Run an app on an in-memory broker, from its first record to its last, in one call."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from perkey.errors import ConfigError, FatalError
from perkey.kafka.ports import OutMessage
from perkey.ledger.policy import SqlLedger
from perkey.policies import Stop, letters_of
from perkey.testing.clock import VirtualClock
from perkey.testing.memory_cluster import MemoryCluster
from perkey.testing.memory_connection import MemoryKafka
from perkey.types import Record, Result

if TYPE_CHECKING:
    from perkey.app import App

#: the app's properties that control its behaviour, not the location of its cluster
KEPT = ("isolation.level", "group.protocol", "partition.assignment.strategy")
STOP_S = 30.0


def OWN_LIFESPAN() -> None:  # noqa: N802  # a constant for "not given"
    """The app's own lifespan."""


LOOK_S = 0.1
IN_MEMORY = ("://", ":memory:")


def run(
    app: App,
    records: Iterable[Any],
    *,
    partitions: int = 1,
    clock: VirtualClock | None = None,
    broker: MemoryKafka | None = None,
    ledger: SqlLedger | None = None,
    lifespan: Callable[..., Any] | None = OWN_LIFESPAN,
    timeout_s: float = 60.0,
) -> list[Result]:
    """Handle these records with the app's own handlers and return their results as they ended.

    The app's cluster is not used: it runs on a separate MemoryKafka, or on `broker`, until
    everything is done or parked. `records`: values, (key, value) pairs, or perkey.Record
    (converted by perkey.testing.runner). Missing topics are created, with `partitions` each. With
    `clock=VirtualClock()`, waiting for retries takes no real time.

    A ledger's own database is not used either: `ledger` replaces it, with the handler's tables, or
    an empty SQLite file for this run. `lifespan` replaces the app's own; None opens none.

    Raises ConfigError for bad input, FatalError if the run broke (`Stop` and a crash point are no
    such case), TimeoutError after `timeout_s` of real time.
    """
    if broker is not None and clock is not None:
        raise ConfigError("run(clock=, broker=): give the clock to the broker: MemoryKafka(clock=)")
    if isinstance(records, str | bytes) or not isinstance(records, Iterable):
        raise ConfigError(f"run(app, {records!r:.40}): give the records as a list")
    kafka = broker or MemoryKafka(clock=clock, auto_create=True)
    try:
        # The topics that the app names; patterns add none
        read = [t for handler in app.handlers for t in handler.topics if not t.startswith("^")]
        written = [handler.output for handler in app.handlers if handler.output is not None]
        for handler in app.handlers:
            letters = [letters_of(handler.on_exhausted, topic) for topic in handler.topics]
            written += filter(None, letters)
        for topic in [*read, *(topic for topic in written if not topic.startswith("^"))]:
            ensure_topic(kafka, topic, partitions)
        put(kafka, records, read, partitions)
        with _on(app, kafka, lifespan), _ledger_on(app, ledger):
            results = _run(app, kafka, timeout_s)
    finally:
        if broker is None:
            kafka.close()
    if app.options.on_result is not None:
        for result in results:
            app.options.on_result(result)
    return results


@contextmanager
def _on(app: App, kafka: MemoryKafka, lifespan: Callable[..., Any] | None) -> Iterator[None]:
    """Replace the app's cluster by the in-memory one, and its lifespan by the given one."""
    before = app.options
    behaviour = {name: before.kafka[name] for name in KEPT if name in before.kafka}
    app._options = replace(  # noqa: SLF001  # the kit is a part of Perkey
        before,
        kafka=behaviour | {"bootstrap.servers": kafka.bootstrap, "auto.offset.reset": "earliest"},
        producer={},
        on_result=None,  # called here, because only one reader is allowed
        lifespan=before.lifespan if lifespan is OWN_LIFESPAN else lifespan,
    )
    try:
        yield
    finally:
        app._options = before  # noqa: SLF001  # see above


@contextmanager
def _ledger_on(app: App, given: SqlLedger | None) -> Iterator[None]:
    """Keep the handlers' ledgers from their own databases."""
    before = app.handlers
    if given is not None and not any(handler.ledger for handler in before):
        raise ConfigError("run(ledger=...): no handler of this app has a ledger: omit it")
    with TemporaryDirectory(prefix="perkey-testing-") as folder:
        instead = given or SqlLedger("sqlite://")
        if instead.url.endswith(IN_MEMORY):  # each connection would have a separate one
            scheme = instead.url.partition(":")[0]
            instead = replace(instead, url=f"{scheme}:///{folder}/ledger.db")
        app._handlers = [  # noqa: SLF001  # the kit is a part of Perkey
            one
            if one.ledger is None
            else replace(one, ledger=replace(instead, id=instead.id or one.ledger.id))
            for one in before
        ]
        try:
            yield
        finally:
            app._handlers = list(before)  # noqa: SLF001  # see above


def _run(app: App, kafka: MemoryKafka, timeout_s: float) -> list[Result]:
    deadline = time.monotonic() + timeout_s
    stream = app.results()
    crashes = len(kafka.crashes)
    handle = app.start(until="drained")
    results: list[Result] = []
    while not stream.over and time.monotonic() < deadline:
        results += stream.take(LOOK_S)
    if not stream.over:
        shot = handle.snapshot()
        handle.stop("now")
        handle.wait(STOP_S)
        raise TimeoutError(f"not drained within {timeout_s} s: {shot}")
    report = handle.wait(STOP_S)
    stops = any(isinstance(handler.on_exhausted, Stop) for handler in app.handlers)
    stops = stops or any(one.outcome == "failed" for one in results)  # a function returned Stop
    if report.exit_code == 1 and not stops and len(kafka.crashes) == crashes:
        raise FatalError(report.reason)
    return results


def put(
    kafka: MemoryCluster, records: Iterable[Any], topics: Sequence[str], partitions: int
) -> None:
    """Write these; missing topics are created with this many partitions.

    A `perkey.Record` goes to its own topic, partition and offset (offsets ascend, and missing ones
    become gaps). A pair is (key, value). Anything else is a value: bytes, str, None, a pydantic
    model, or what JSON can hold. Pairs and values go to the app's one topic, to the partition that
    Kafka's own producers would choose. A topic has at least the partitions that its Records name.
    """
    for record in records:
        if isinstance(record, Record):
            ensure_topic(kafka, record.topic, max(partitions, record.partition + 1))
            with kafka.changed:
                if record.partition >= kafka.broker.partition_counts[record.topic]:
                    kafka.add_partitions(record.topic, record.partition + 1)
                log = kafka.broker.logs[record.topic, record.partition]
                if record.offset < log.end:
                    raise ConfigError(
                        f"{record!r}: offset {record.offset} is taken, the next is {log.end}: give "
                        "ascending offsets, or (key, value) pairs instead of Records"
                    )
                log.gap(record.offset - log.end)
                value = value_bytes(record.value)
                where = (record.partition, record.timestamp_ms)
                kafka.store(OutMessage(record.topic, value, record.key, record.headers, *where))
        else:
            key, value = _pair(record)
            if len(topics) != 1:
                raise ConfigError(
                    f"the app reads {', '.join(topics) or 'patterns only'}: give "
                    "perkey.Record(topic, ...), so that each record has a topic"
                )
            kafka.produce(topics[0], value, key)


def _pair(record: Any) -> tuple[bytes | None, bytes | None]:
    if not isinstance(record, tuple):
        return None, value_bytes(record)
    if len(record) != 2:
        raise ConfigError(
            f"a tuple of {len(record)} is not a record: give (key, value), a value or a "
            "perkey.Record"
        )
    key, value = record
    if isinstance(key, str):
        key = key.encode()
    if key is not None and not isinstance(key, bytes):
        raise ConfigError(f"key {key!r:.60}: give bytes, str or None")
    return key, value_bytes(value)


def value_bytes(value: Any) -> bytes | None:
    """A value as bytes for Kafka."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    dump = getattr(value, "model_dump_json", None)
    if dump is not None:
        return str(dump()).encode()
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"a value of type {type(value).__name__} is none: give bytes, str, None, a pydantic "
            f"model or what JSON can hold ({error})"
        ) from error


def ensure_topic(kafka: MemoryCluster, topic: str, partitions: int) -> None:
    """Create the topic unless it exists."""
    with kafka.changed:
        if topic not in kafka.broker.partition_counts:
            kafka.create_topic(topic, partitions)
