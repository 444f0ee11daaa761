"""One cell of the matrix: a topic, an app of one way on a real broker, and what was seen of it."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from tests.support.exactness import read_committed
from tests.support.handler_log import Entry, Tail
from tests.support.matrix import ways
from tests.support.matrix.checking import Lived, Name
from tests.support.matrix.ways import Way
from tests.support.waiting import wait_for

import perkey
from perkey.broker import LocalBroker
from perkey.runtime.run.run import Run

WAIT_S = 90.0
PARTITIONS, KEYS = 2, 20
VALUE_BYTES = 1_000
COMMIT_S = 0.2
#: so that not everything is fetched when the fault strikes
FETCH = {
    "max.partition.fetch.bytes": 20_000,
    "fetch.max.bytes": 40_000,
    "message.max.bytes": 20_000,
    "queued.min.messages": 10,
    "fetch.wait.max.ms": 50,
}
EARLY_DONE = 20  # so many are done when the fault strikes


class Cell:
    """What the faults act on, and what the checker looks at."""

    def __init__(
        self, broker: LocalBroker, way: Way, protocol: str, folder: Path, replication: int = 1
    ) -> None:
        """`replication` is that of the outputs: the fault must not take them, too."""
        self.broker, self.way, self.folder = broker, way, folder
        name = f"{way.name}-{uuid.uuid4().hex[:8]}"
        self.topic, self.output, self.group = name, f"{name}-out", name
        #: the app's properties; a fault may change them before the start
        self.kafka: dict[str, Any] = {"group.protocol": protocol, **FETCH}
        quiet = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
        self.admin = AdminClient(quiet)
        self._producer = Producer({**quiet, "linger.ms": 2})
        self.incarnation, self._numbers = 1, 0
        self.offsets: dict[Name, tuple[int, int]] = {}
        self.lived = Lived(way, {})
        self.runs: list[Run] = []
        #: the faults' own: the address that asks for a password, whether most records wait for
        #: the fault, what the broker said of a quota, the broker that is down, somebody's open
        #: transaction
        self.login = ""
        self.held = False
        self.throttled: list[Any] = []
        self.down = 0
        self.writer: Producer | None = None
        self._tail = Tail(folder / "handlers.log")
        self._seen: list[Entry] = []
        broker.create_topic(self.topic, PARTITIONS)
        broker.create_topic(self.output, replication=replication)
        if way.name == "ledger":
            with closing(sqlite3.connect(self._database)) as database:
                database.execute("create table effects (incarnation int, number int)")

    @property
    def released(self) -> Path:
        """Made when what was held goes on."""
        return self.folder / "released"

    @property
    def _database(self) -> Path:
        return self.folder / "effects.db"

    # -- records -----------------------------------------------------------------------------------

    def produce(self, count: int, *, but: int = -1) -> None:
        """Records of both partitions in turn, or not of one; all are acknowledged when it returns."""
        for number in range(self._numbers, self._numbers + count):
            if number % PARTITIONS == but:
                continue
            name, key = (self.incarnation, number), f"k{number % KEYS}"
            value = b"%d %d " % name
            self._producer.produce(
                self.topic,
                value.ljust(VALUE_BYTES, b"."),
                key.encode(),
                partition=number % PARTITIONS,
                on_delivery=self._acknowledged(name, key),
            )
        self._numbers += count
        assert self._producer.flush(WAIT_S) == 0

    def _acknowledged(self, name: Name, key: str) -> Callable[[Any, Any], None]:
        def note(error: Any, message: Any) -> None:
            if error is None:
                self.lived.produced[name] = key
                self.offsets[name] = message.partition(), message.offset()

        return note

    def made_again(self) -> None:
        """What is produced from here on is of another topic of that name."""
        self.incarnation, self._numbers = self.incarnation + 1, 0

    # -- the app -----------------------------------------------------------------------------------

    def start(self, patch: pytest.MonkeyPatch, **how: Any) -> Run:
        """The next run of the app."""
        patch.setenv(ways.LOG, str(self._tail.path))
        patch.setenv(ways.RUN, str(len(self.runs) + 1))
        patch.setenv(ways.HELD, str(self.released) if self.held else "")
        options: dict[str, Any] = {
            "commit": perkey.Commit(interval_s=COMMIT_S),
            "concurrency": ways.CONCURRENCY,
            **self.way.options,
        }
        if self.way.name == "ledger":
            options["ledger"] = perkey.SqlLedger(f"sqlite:///{self._database}")
        else:
            options["output"] = self.output
        config = {"bootstrap.servers": self.broker.bootstrap, **self.kafka}
        app = perkey.App(self.group, config, drain_timeout_s=5.0, buffer_records=50)
        app.consume(self.topic, **options)(self.way.handler)
        self.runs.append(cast("Run", app.start(**how)))
        return self.runs[-1]

    def end(self) -> None:
        """Whatever happened."""
        for run in self.runs:
            if not run.over:
                run.stop("now")
                run.wait(WAIT_S)

    # -- what is seen ------------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """What the handlers wrote so far."""
        self._seen += self._tail.new()
        return self._seen

    def done(self) -> set[Name]:
        """Records that a handler has completed."""
        return {entry.record for entry in self.entries() if entry.kind == "E"}

    def until(self, condition: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
        """Wait for it; says what did not come."""
        return wait_for(condition, timeout_s, what)

    def until_done(self, names: set[Name], what: str) -> None:
        """Wait until handlers have completed these, or the run is over."""
        self.until(lambda: names <= self.done() or self.runs[-1].over, what)

    def effects(self) -> list[Name]:
        """What handling has left behind, in its order."""
        if self.way.name == "ledger":
            with closing(sqlite3.connect(self._database)) as database:
                return list(database.execute("select * from effects order by rowid"))
        found = read_committed(self.broker.bootstrap, self.output)
        values = [(message.value() or b"").split() for message in found]
        return [(int(incarnation), int(number)) for incarnation, number in values]

    def leader(self, partition: int) -> int:
        """The number of the broker that leads a partition of the topic; -1 for none."""
        try:
            found = self.admin.list_topics(self.topic, timeout=10).topics[self.topic]
        except KafkaException:
            return -2
        return found.partitions[partition].leader if partition in found.partitions else -2
