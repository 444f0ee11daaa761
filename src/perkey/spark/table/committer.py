"""The one writer of a fleet's table, in the driver: members send rows, it adds them together.

Rows of all members go into one transaction of the table every `interval_s`, earlier if a member
requests that. A member gets its answer when the table has its rows, and only then commits offsets.
While the table cannot be written members wait, and nothing is lost.
"""

from __future__ import annotations

import base64
import io
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from perkey.errors import ConfigError
from perkey.runtime.logs import event
from perkey.spark.processing.typed import columns_of_model, is_model
from perkey.spark.table.line import TablePlan
from perkey.spark.table.ownership import Hand, Ownership
from perkey.spark.table.progress import Entry, Source, done_of
from perkey.spark.table.rows import PLACE, columns_of
from perkey.spark.table.sink import TableSink
from perkey.spark.table.store import MOVED_MAX, Moved, Store, Unavailable, Unfit

if TYPE_CHECKING:
    from perkey.spark.fleet.roster import Receivers

_log = logging.getLogger("perkey")

Reply = Callable[[Mapping[str, Any]], object]
#: time for the members of one interval to arrive
_GATHER_S = 0.1
_REST_S, _REST_MAX_S = 0.5, 10.0
#: most rows of one transaction, by their size in memory
_COMMIT_BYTES_MAX = 256 * 2**20


@dataclass(frozen=True, slots=True)
class _Asked:
    """A member's message, and the function to answer it."""

    message: Mapping[str, Any]
    reply: Reply

    def answer(self, **facts: Any) -> None:
        self.reply({"type": "table", "id": self.message["id"], **facts})


class TableCommitter:
    """Serves the members' claims and rows, on a separate thread."""

    def __init__(
        self,
        store: Store,
        interval_s: float,
        on_unfit: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_unfit`: called with the reason when the table takes no more rows."""
        self._store, self._interval_s, self._now = store, interval_s, now
        self._on_unfit = on_unfit
        self._ownership = Ownership()
        self._changed = threading.Condition()
        self._claims: list[_Asked] = []
        self._hands: list[_Asked] = []
        #: when the first of these hands came, and when a member first requested speed
        self._first_at = 0.0
        self._hurried_at: float | None = None
        #: when the next transaction is due; the pause since the table could not be written
        self._next_at = self._rest_s = 0.0
        #: the table's content may differ from what the ownership knows
        self._in_doubt = True
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="perkey-table", daemon=True)

    def start(self) -> None:
        """Start to serve."""
        self._thread.start()

    def take(self, message: Mapping[str, Any], reply: Reply) -> None:
        """Take a member's message. Thread-safe."""
        asked, what = _Asked(message, reply), message["what"]
        with self._changed:
            if what == "claim":
                self._claims.append(asked)
            elif what == "rows":
                if not self._hands:
                    self._first_at = self._now()
                self._hands.append(asked)
            if what == "hurry" or message.get("hurry"):
                self._hurried_at = self._hurried_at or self._now()
            self._changed.notify_all()

    def close(self, timeout_s: float = 5.0) -> None:
        """Finish the current transaction and stop."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # -- on its thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    while not self._closed and not self._claims and self._wait_s() > 0:
                        self._changed.wait(min(self._wait_s(), 60.0))
                    if self._closed:
                        return
                    claims, self._claims = self._claims, []
                    hands = [] if self._wait_s() > 0 else self._portion()
                if claims:
                    self._admit(claims)
                if hands:
                    self._commit(hands)
        except Exception as error:
            _log.exception("the table's writer broke, please report it with this trace")
            self._on_unfit(f"the writer of {self._store.name} broke: {type(error).__name__}")
        finally:
            self._store.close()

    def _wait_s(self) -> float:
        """How long until rows are to be added."""
        if not self._hands:
            return 60.0
        gathered = min(_GATHER_S, self._interval_s / 10)
        if self._hurried_at is not None:
            at = max(self._hurried_at + gathered, self._next_at if self._rest_s else 0.0)
        else:
            at = max(self._first_at + gathered, self._next_at)
        return at - self._now()

    def _portion(self) -> list[_Asked]:
        """The rows of one transaction; the first message in any case."""
        size = 0
        for at, asked in enumerate(self._hands):
            size += int(asked.message["bytes"])
            if at and size > _COMMIT_BYTES_MAX:
                break
        else:
            at = len(self._hands)
        hands, self._hands = self._hands[:at], self._hands[at:]
        if not self._hands:
            self._hurried_at = None
        return hands

    def _admit(self, claims: Sequence[_Asked]) -> None:
        """Answer each claim with its epochs, and what the table has now."""
        wanted = [_sources(asked.message, asked.message["partitions"]) for asked in claims]
        try:
            self._read([source for sources in wanted for source in sources])
        except Unavailable as error:
            for asked in claims:
                asked.answer(error=f"the table cannot be read: {error}")
            return
        for asked, sources in zip(claims, wanted, strict=True):
            held = []
            for source in sources:
                entry = self._ownership.claim(source, int(asked.message["generation"]))
                if entry is not None:
                    epoch, done = entry
                    place = [source.topic, source.number, epoch]
                    held.append([*place, done.frontier, done.top, list(done.not_done)])
            asked.answer(held=held)

    def _read(self, wanted: Sequence[Source]) -> None:
        self._ownership.learn(self._store.read(wanted))
        self._in_doubt = False

    def _commit(self, hands: Sequence[_Asked]) -> None:
        try:
            self._add([(asked, *_opened(asked.message)) for asked in hands])
        except Unavailable as error:
            self._in_doubt = True
            self._rest_s = min(max(_REST_S, self._rest_s * 2), _REST_MAX_S)
            self._next_at = self._now() + self._rest_s
            event(
                "warning", "table cannot be written", table=self._store.name,
                reason=str(error), again_in_s=self._rest_s,
            )  # fmt: skip
            with self._changed:
                self._hands[:0] = hands
        except Unfit as error:
            self._on_unfit(f"{self._store.name} takes no rows any more: {error}")
            for asked in hands:
                asked.answer(error=str(error))

    def _add(self, opened: Sequence[tuple[_Asked, Hand, pa.Table]]) -> None:
        began = self._now()
        for _ in range(MOVED_MAX):
            if self._in_doubt:
                self._read([source for _, hand, _ in opened for source in hand.entries])
            mine = [one for one in opened if not self._ownership.stale(one[1])]
            draft = self._ownership.draft([hand for _, hand, _ in mine])
            parts = [
                rows if all(fresh) else rows.filter(pa.array(fresh, pa.bool_()))
                for (_, _, rows), fresh in zip(mine, draft.fresh, strict=True)
            ]
            count = sum(part.num_rows for part in parts)
            version = 0
            try:
                if count:
                    rows = pa.concat_tables(parts)
                    version = self._store.append(rows, draft.progress, draft.changed)
            except Moved:
                self._in_doubt = True
                continue
            break
        else:
            raise Unavailable(f"other writers were first {MOVED_MAX} times in a row")
        if count:
            self._ownership.learn(draft.progress)
        self._rest_s, self._next_at = 0.0, self._now() + self._interval_s
        seconds = round(self._now() - began, 3)
        event("debug", "table", rows=count, members=len(mine), version=version, s=seconds)
        added = {id(one[0]) for one in mine}
        for asked, hand, _ in opened:
            if id(asked) in added:
                asked.answer(version=version)
            else:
                names = ", ".join(f"{s.topic}:{s.number}" for s in self._ownership.stale(hand))
                asked.answer(stale=names)


def _sources(message: Mapping[str, Any], places: Sequence[Sequence[Any]]) -> list[Source]:
    ids = message["ids"]
    return [Source(place[0], ids.get(place[0], ""), int(place[1])) for place in places]


def _opened(message: Mapping[str, Any]) -> tuple[Hand, pa.Table]:
    """Decode a member's rows."""
    data = io.BytesIO(base64.b64decode(message["data"]))
    rows = pa.ipc.open_stream(data).read_all()
    sources = _sources(message, message["done"])
    entries = {
        source: Entry(int(epoch), done_of(int(frontier), metadata))
        for source, (_, _, epoch, frontier, metadata) in zip(sources, message["done"], strict=True)
    }
    known = {(source.topic, source.number): source for source in sources}
    topics, numbers, offsets = (rows[name].to_pylist() for name in ("topic", "partition", "offset"))
    places = [
        (known[topic, number], offset)
        for topic, number, offset in zip(topics, numbers, offsets, strict=True)
    ]
    return Hand(places, entries), rows


# -- plan ------------------------------------------------------------------------------------------
# The table as the fleet uses it, after the driver has checked it.


def served(
    sink: TableSink, group: str, spark: Any, receivers: Receivers
) -> tuple[TablePlan, TableCommitter]:
    """The members' settings, and the table's writer, started; raises ConfigError in one line."""
    plan, store = planned(sink, group, spark)
    committer = TableCommitter(
        store, sink.interval_s, lambda reason: receivers.fatal(1, reason, None, True)
    )
    committer.start()
    receivers.table = committer.take
    return plan, committer


def planned(sink: TableSink, group: str, spark: Any) -> tuple[TablePlan, Store]:
    """The members' settings, and the open table."""
    columns = None
    if sink.schema is not None:
        from pyspark.sql.pandas.types import to_arrow_schema

        given = columns_of_model(sink.schema) if is_model(sink.schema) else sink.schema
        try:
            struct = spark.createDataFrame([], given).schema if isinstance(given, str) else given
            fields = to_arrow_schema(struct, timezone="UTC")
        except Exception as error:
            reason = next((line for line in str(error).splitlines() if line.strip()), "")
            raise ConfigError(
                f"sink: schema={given!r:.80} cannot be read: {reason:.200}"
            ) from error
        columns = columns_of(fields)
    store = sink.opened(columns, group)
    if columns is None:
        values = [field for field in store.columns if field.name not in PLACE.names]
        columns = columns_of(pa.schema(values))
    return TablePlan(columns.serialize().to_pybytes(), sink.interval_s), store
