"""What the driver checks of the app and of Kafka before any member is started."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from weft.errors import ConfigError
from weft.kafka.connect import MEMORY_SCHEME, AdminPort, connect
from weft.kafka.ports import KafkaUnavailable
from weft.routing import Routes
from weft.runtime.preflight import ANSWER_S, check_cluster
from weft.spark.fleet.drained import GroupDrain

if TYPE_CHECKING:
    from weft.app import App

_NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9._-]")
_ID_GROUP_CHARS_MAX = 200


class Upfront:
    """The app's settings, checked at once; its cluster, when asked."""

    def __init__(self, app: App) -> None:
        """Raises ConfigError for what a fleet cannot run."""
        options = app.options
        self._group = options.group
        self._handlers = app.handlers
        _check_clients(options.kafka)
        _check_ledgers(app)
        #: members have static ids; the new group protocol does not let them come back at once
        self.static = str(options.kafka.get("group.protocol", "classic")).lower() != "consumer"
        transactional = any(handler.delivery == "exactly_once" for handler in app.handlers)
        self._connection = connect(
            options.kafka,
            options.producer,
            group=options.group,
            buffer_records=options.buffer_records,
            buffer_bytes=options.buffer_bytes,
            delivery="exactly_once" if transactional else "at_least_once",
        )
        self._routes = Routes(self._handlers)
        self._admin: AdminPort | None = None

    def instance_name(self, run_id: str) -> str:
        """`{group}-{run}` in the letters that static ids may have."""
        return f"{_NOT_IN_IDS.sub('_', self._group)[:_ID_GROUP_CHARS_MAX]}-{run_id}"

    def check(self) -> list[str]:
        """The topics subscribed to now; raises ConfigError for what is missing."""
        self._admin = self._connection.admin()
        return check_cluster(self._connection, self._admin, self._routes, self._handlers)

    def drain(self, topics: list[str]) -> GroupDrain:
        """The way to the ends as they are now."""
        assert self._admin is not None
        committed = self._connection.reads_committed()
        try:
            starts = self._admin.starts(topics, timeout_s=ANSWER_S)
            ends = self._admin.ends(topics, committed=committed, timeout_s=ANSWER_S)
        except KafkaUnavailable as error:
            raise ConfigError(f"no answer from {self._connection.described()}: {error}") from error
        return GroupDrain(self._admin, self._group, starts, ends)

    def close(self) -> None:
        """Give the admin client back."""
        if self._admin is not None:
            self._admin.close()


def _check_clients(kafka: dict[str, object]) -> None:
    if str(kafka.get("bootstrap.servers", "")).startswith(MEMORY_SCHEME):
        raise ConfigError(
            'engine="spark" needs a broker that executors can reach: a memory:// broker lives in '
            "this process"
        )
    if "group.instance.id" in kafka:
        raise ConfigError(
            "kafka: group.instance.id is set by Weft on a fleet: use members=..., which gives "
            "each member its own"
        )


def _check_ledgers(app: App) -> None:
    """A SQLite file is one machine's."""
    for handler in app.handlers:
        url = str(getattr(getattr(handler, "ledger", None), "url", ""))
        if url.startswith("sqlite"):
            raise ConfigError(
                f"@app.consume on {handler.name}: a SQLite ledger cannot be shared by the members "
                'of a fleet: use a database server, weft.SqlLedger("postgresql://…")'
            )
