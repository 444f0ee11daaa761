"""The driver's checks of the app and of Kafka before any member is started."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from perkey.errors import ConfigError
from perkey.kafka.connect import MEMORY_SCHEME, Connection, connect
from perkey.kafka.ports import AdminPort, KafkaUnavailable
from perkey.routing import Routes
from perkey.runtime.run.preflight import ANSWER_S, check_cluster, is_transactional, unanswered
from perkey.spark.fleet.dead_members import DeadMembers
from perkey.spark.fleet.ending import GroupDrain
from perkey.spark.fleet.membership import member_kafka
from perkey.spark.table.sink import without_table
from perkey.types import DeliveryName

if TYPE_CHECKING:
    from perkey.app_options import Hosted


class Upfront:
    """The app's settings, checked immediately; its cluster, on request."""

    def __init__(self, app: Hosted) -> None:
        """Raises ConfigError for what a fleet cannot run."""
        options = app.options
        self._options = options
        self._handlers = without_table(app.handlers)
        if str(options.kafka.get("bootstrap.servers", "")).startswith(MEMORY_SCHEME):
            raise ConfigError(
                'engine="spark" needs a broker that executors can reach: a memory:// broker lives '
                "in this process"
            )
        if "group.instance.id" in options.kafka:
            raise ConfigError(
                "kafka: group.instance.id is set by Perkey on a fleet: use members=..., which "
                "gives each member its own"
            )
        _check_ledgers(app)
        #: members have static ids; under the new group protocol a restart would have to wait
        self.static = str(options.kafka.get("group.protocol", "classic")).lower() != "consumer"
        self._transactional = is_transactional(app.handlers)
        #: the driver's own clients
        self._connect = partial(
            connect,
            producer=options.producer,
            group=options.group,
            buffer_records=options.buffer_records,
            buffer_bytes=options.buffer_bytes,
        )
        delivery: DeliveryName = "exactly_once" if self._transactional else "at_least_once"
        self.connection = self._connect(options.kafka, delivery=delivery)
        self._routes = Routes(self._handlers)
        self._admin: AdminPort | None = None

    def session_ms(self) -> int | None:
        """How long the group waits for a silent member; None if the broker decides."""
        value = member_kafka(self._options.kafka, "").get("session.timeout.ms")
        return None if value is None else int(value)

    def dead_members(self, run_id: str) -> DeadMembers:
        """The removal of what earlier runs left in the group."""
        kafka = member_kafka(self._options.kafka, "perkey")

        def as_member(instance_id: str) -> Connection:
            """The clients of a member with this static id."""
            static = instance_id or None
            return self._connect(kafka, delivery="at_least_once", fleet_instance_id=static)

        topics = self._routes.topics
        group = self._options.group
        return DeadMembers(group, run_id, topics, as_member, transactional=self._transactional)

    def check(self) -> list[str]:
        """The topics subscribed to now; raises ConfigError for missing ones."""
        self._admin = self.connection.admin()
        options = self._options
        return check_cluster(self.connection, self._admin, self._routes, self._handlers, options)

    def drain(self, topics: list[str]) -> GroupDrain:
        """The drain of the records present now."""
        assert self._admin is not None
        committed = self.connection.reads_committed()
        try:
            starts = self._admin.starts(topics, timeout_s=ANSWER_S)
            ends = self._admin.ends(topics, committed=committed, timeout_s=ANSWER_S)
        except KafkaUnavailable as error:
            raise unanswered(self.connection, error) from error
        return GroupDrain(self._admin, self._options.group, starts, ends)

    def close(self) -> None:
        """Close the admin client."""
        if self._admin is not None:
            self._admin.close()


def _check_ledgers(app: Hosted) -> None:
    """Refuse a SQLite ledger: its file is on one machine."""
    for handler in app.handlers:
        url = str(getattr(getattr(handler, "ledger", None), "url", ""))
        if url.startswith("sqlite"):
            raise ConfigError(
                f"@app.consume on {handler.name}: a SQLite ledger cannot be shared by the members "
                'of a fleet: use a database server, perkey.SqlLedger("postgresql://…")'
            )
