"""A model of Kafka: logs, transactions with fencing, group offsets; each request is one step."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from perkey.spark.sink import protocol as p

PARTITIONS = 2
QUERY = "q"


class FencedError(Exception):
    """Another one has opened this transactional id, or the transaction timed out."""


class Row(NamedTuple):
    """One row of a batch; rows may be equal."""

    topic: str
    key: int
    value: int

    @property
    def digest(self) -> int:
        """What tells it from other rows."""
        return hash((len(self.topic), ord(self.topic[-1]), self.key, self.value)) & (2**64 - 1)

    @property
    def place(self) -> tuple[str, int]:
        """Where it goes."""
        return self.topic, self.key % PARTITIONS


class Rows:
    """A chunk of a task's rows."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    @property
    def topics(self) -> set[str]:
        """Where they go."""
        return {row.topic for row in self.rows}

    @property
    def sums(self) -> p.Sums:
        """What is compared of them."""
        keys = sum(hash((row.key, 7)) & 0xFFFF for row in self.rows)
        return p.Sums(len(self.rows), keys, sum(row.digest for row in self.rows) & (2**63 - 1))

    def digests(self) -> list[int]:
        """One for each row."""
        return [row.digest for row in self.rows]

    def without(self, known: Sequence[bool]) -> Rows:
        """The rows that are not known."""
        return Rows([row for row, here in zip(self.rows, known, strict=True) if not here])


@dataclass(eq=False)
class Transaction:
    """Rows and offsets that are there together or not at all."""

    id: str
    state: str = "open"
    offsets: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    batch: int = -1


@dataclass
class Holder:
    """A transactional id."""

    epoch: int = 0
    transaction: Transaction | None = None


class Kafka:
    """All of it; `committed` hears of each transaction that is committed."""

    def __init__(self, committed: Any) -> None:
        self.logs: dict[tuple[str, int], list[tuple[Row, Transaction]]] = {}
        self.holders: dict[str, Holder] = {}
        self.offsets: dict[str, Any] = {}
        self._committed = committed

    def open(self, id_: str) -> int:
        """A new epoch; what was open is aborted."""
        holder = self.holders.setdefault(id_, Holder())
        self.abort(holder)
        holder.epoch += 1
        return holder.epoch

    def abort(self, holder: Holder) -> None:
        """Its transaction is over."""
        if holder.transaction is not None:
            holder.transaction.state = "aborted"
            holder.transaction = None

    def time_out(self, id_: str) -> None:
        """Kafka aborts a transaction that was open for too long, and fences its producer."""
        holder = self.holders[id_]
        if holder.transaction is not None:
            self.abort(holder)
            holder.epoch += 1

    def transaction(self, id_: str, epoch: int) -> Transaction:
        """The open one, begun if there is none."""
        holder = self.holders[id_]
        if holder.epoch != epoch:
            raise FencedError(id_)
        if holder.transaction is None:
            holder.transaction = Transaction(id_)
        return holder.transaction

    def append(self, transaction: Transaction, rows: Iterable[Row]) -> None:
        """Rows of an open transaction."""
        for row in rows:
            self.log(row.place).append((row, transaction))
            transaction.rows.append(row)

    def commit(self, id_: str, epoch: int) -> None:
        """All of it at once."""
        transaction = self.transaction(id_, epoch)
        transaction.state = "committed"
        self.offsets.update(transaction.offsets)
        self.holders[id_].transaction = None
        self._committed(transaction)

    def log(self, place: tuple[str, int]) -> list[tuple[Row, Transaction]]:
        """The log of a partition."""
        return self.logs.setdefault(place, [])

    def is_stable(self, group: str) -> bool:
        """Whether no open transaction has offsets of this group."""
        open_ = [h.transaction for h in self.holders.values() if h.transaction is not None]
        return not any(group in transaction.offsets for transaction in open_)


class Client:
    """Answers the steps of one task or hook, in turns."""

    def __init__(self, kafka: Kafka, index: int, batch: int) -> None:
        self._kafka, self._batch = kafka, batch
        self._id = f"{QUERY}-{index}"
        self._epochs: dict[str, int] = {}
        #: it waits for a transaction of another
        self.blocked = False

    def run(self, steps: p.Steps[Any]) -> Generator[None, None, Any]:
        """All steps; a turn at each `yield`."""
        try:
            ask = next(steps)
            while True:
                yield
                try:
                    answer = yield from self._answer(ask)
                except FencedError as error:
                    ask = steps.throw(p.SinkError(f"fenced {error}"))
                    continue
                ask = steps.send(answer)
        except StopIteration as stop:
            return stop.value

    def _answer(self, ask: Any) -> Generator[None, None, Any]:  # one line each
        match ask:
            case p.Open():
                self._epochs[self._id] = self._kafka.open(self._id)
                return None
            case p.Lock():
                self._epochs[QUERY] = self._kafka.open(QUERY)
                return None
            case p.ReadOwn():
                return (yield from self._read(self._id, p.Own()))
            case p.ReadShared():
                return (yield from self._read(QUERY, p.Shared()))
            case p.Save(shared, extra):
                return (yield from self._save(shared, extra))
            case p.Retire(slots):
                return (yield from self._retire(slots))
            case p.Ends(topics):
                return {
                    (topic, number): len(self._kafka.log((topic, number)))
                    for topic in topics
                    for number in range(PARTITIONS)
                }
            case p.ReadWindow(shared):
                rows = yield from self._window(shared)
                return p.Window([row.digest for row in rows], len(rows))
            case p.ReadRows(shared, copies):
                found = {row.digest: row for row in (yield from self._window(shared))}
                return [found[digest] for digest, more in copies.items() for _ in range(more)]
            case p.Send(chunk):
                yield from self._send(self._id, chunk.rows)
                return None
            case p.Commit(own):
                transaction = self._kafka.transaction(self._id, self._epochs[self._id])
                transaction.offsets[self._id] = own
                yield
                self._kafka.commit(self._id, self._epochs[self._id])
                return None
            case p.Pause():
                for _ in range(5):
                    yield
                return None
        raise AssertionError(ask)

    def _read(self, group: str, nothing: Any) -> Generator[None, None, Any]:
        while not self._kafka.is_stable(group):
            self.blocked = True
            yield
        self.blocked = False
        return self._kafka.offsets.get(group, nothing)

    def _save(self, shared: p.Shared, rows: Any) -> Generator[None, None, bool]:
        try:
            transaction = self._kafka.transaction(QUERY, self._epochs[QUERY])
            transaction.offsets[QUERY] = shared
            yield
            if rows:
                yield from self._send(QUERY, rows)
            self._kafka.commit(QUERY, self._epochs[QUERY])
        except FencedError:
            return False
        return True

    def _send(self, id_: str, rows: Sequence[Row]) -> Generator[None, None, None]:
        for row in rows:
            transaction = self._kafka.transaction(id_, self._epochs[id_])
            transaction.batch = self._batch
            self._kafka.append(transaction, [row])
            yield

    def _retire(self, slots: int) -> Generator[None, None, list[p.Own]]:
        owns = []
        for index in range(slots):
            id_ = f"{QUERY}-{index}"
            self._kafka.open(id_)
            yield
            owns.append((yield from self._read(id_, p.Own())))
        return owns

    def _window(self, shared: p.Shared) -> Generator[None, None, list[Row]]:
        """The committed rows of the spans."""
        found = []
        for place, (start, end) in shared.spans.items():
            while any(t.state == "open" for _, t in self._kafka.log(place)[:end]):
                self.blocked = True
                yield
            self.blocked = False
            entries = self._kafka.log(place)[start:end]
            found += [row for row, t in entries if t.state == "committed"]
        return found
