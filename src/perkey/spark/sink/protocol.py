"""Each row of a batch once, whatever number of tasks repeats it: the decisions, without I/O.

A query has one shared marker in Kafka; only the holder of the query's own transactional id can
change it, and only if there was no other holder in between. The first task of a run (a session)
that finds another session in the marker plans: it claims the marker, retires the transactional ids
of earlier sessions, so that none of their transactions can commit any more, and only then records
the ends of the logs. Rows of this batch that those sessions committed are between the marker's
starts and these ends: a task that finds its rows there does not write them again. After the tasks,
the driver finishes the batch: the counts must agree, and copies that two tasks recognised in one
row are written with the marker.

The steps are generators: they yield requests to Kafka and are sent the answers, by `transactions`
and by `simulators.sink`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from perkey.spark.source.errors import SourceError

#: A task reads the marker as many times as its number before it plans, up to this limit; if
#: another one has claimed the marker, this many times more.
TURNS_MAX = 20
#: most superseded sessions that are remembered
PAST_MAX = 20
WAY_OUT = (
    "to get on, run the query with transactional=false until this batch is finished (its rows are"
    " then written again), and turn it on again"
)

T = TypeVar("T")
Steps = Generator[Any, Any, T]
Place = tuple[str, int]


class SinkError(SourceError):
    """Rows could not be written; the message names the topic and Kafka's error."""


class Sums(NamedTuple):
    """Sums over a task's rows that do not depend on their order, for comparisons."""

    rows: int = 0
    keys: int = 0
    #: of keys and values together
    whole: int = 0

    def plus(self, other: Sums) -> Sums:
        """The sum of both."""
        mask = 2**63 - 1
        keys, whole = (self.keys + other.keys) & mask, (self.whole + other.whole) & mask
        return Sums(self.rows + other.rows, keys, whole)


class Chunk(Protocol):
    """Some rows of a task."""

    @property
    def topics(self) -> Collection[str]:
        """Their topics."""

    @property
    def sums(self) -> Sums:
        """Their sums."""

    def digests(self) -> Sequence[int]:
        """64 bits for each row, equal for equal rows."""

    def without(self, known: Sequence[bool]) -> Chunk:
        """The rows that are not known."""


class Task(NamedTuple):
    """The identity of a task and its batch."""

    number: int
    batch: int
    #: the run of the query; None for one write of a batch DataFrame, which nothing repeats
    session: str | None


class Shared(NamedTuple):
    """The marker that all tasks of a query share."""

    #: how often it was claimed
    era: int = 0
    session: str = ""
    past: tuple[str, ...] = ()
    planned: bool = False
    #: the last era in which tasks could write
    wrote: int = 0
    #: limit of the transactional ids of tasks in use
    slots: int = 0
    finished: int = -1
    #: `before`, `strict` and `refused` are about this batch
    batch: int = -1
    #: how many of its rows were committed in earlier eras
    before: int = 0
    #: tasks must not be recognised by their keys alone
    strict: bool = False
    refused: str = ""
    #: where those rows are, by partition: from, to
    spans: Mapping[Place, tuple[int, int]] = {}  # never changed

    def has_rows(self, batch: int) -> bool:
        """Whether rows of this batch are in Kafka from earlier eras."""
        return self.before > 0 and self.batch == batch

    @property
    def topics(self) -> set[str]:
        """The topics that the query may have written to."""
        return {topic for topic, _ in self.spans}


class Own(NamedTuple):
    """The marker inside the transaction of a task."""

    batch: int = -1
    era: int = -1
    #: rows in the transaction
    wrote: int = 0
    #: all rows of the task
    sums: Sums = Sums()


class Written(NamedTuple):
    """A task's result for its batch, for the driver."""

    rows: int = 0
    #: rows written now
    new: int = 0
    era: int | None = None
    #: the digests of rows that were in Kafka before this era
    known: bytes = b""
    #: recognised by count and keys alone
    by_keys: bool = False


# -- requests to Kafka -----------------------------------------------------------------------------


class Open(NamedTuple):
    """Open the task's producer: fences every earlier attempt and ends its transaction."""


class ReadOwn(NamedTuple):
    """The task's own marker: Own."""


class ReadShared(NamedTuple):
    """The shared marker: Shared; its spans are valid only if `spans` is set."""

    spans: bool = False


class Lock(NamedTuple):
    """Open the query's producer: fences every other holder."""


class Save(NamedTuple):
    """Write the shared marker as the holder of the lock; False if another one holds it now.

    `extra`: rows from `ReadRows`, written in the same transaction.
    """

    shared: Shared
    extra: Any = None


class Retire(NamedTuple):
    """Open the producers of the first `slots` tasks; their markers: list[Own]."""

    slots: int


class Ends(NamedTuple):
    """The ends of these topics' logs, open transactions included: dict[Place, int]."""

    topics: frozenset[str]


class ReadWindow(NamedTuple):
    """The committed rows in the marker's spans: Window."""

    shared: Shared


class ReadRows(NamedTuple):
    """This many copies of rows in the marker's spans, by digest."""

    shared: Shared
    copies: Mapping[int, int]


class Send(NamedTuple):
    """Write rows in the task's transaction, which the first of them starts."""

    chunk: Any


class Commit(NamedTuple):
    """Commit the task's transaction, with its marker in it."""

    own: Own


class Pause(NamedTuple):
    """Wait a moment."""


class Window:
    """The digests of rows in Kafka; each row can be recognised once by a task."""

    def __init__(self, digests: Iterable[int], total: int) -> None:
        """`total`: how many rows these are; a row may have several digests."""
        every = np.fromiter(digests, np.uint64)
        self.total = total
        self._digests, self._left = np.unique(every, return_counts=True)

    def take(self, digests: Sequence[int]) -> list[bool]:
        """Which of these rows are here; they are removed."""
        asked = np.array(digests, np.uint64)
        if not len(self._digests):
            return [False] * len(asked)
        places = np.minimum(np.searchsorted(self._digests, asked), len(self._digests) - 1)
        found: list[bool] = (self._digests[places] == asked).tolist()
        left = self._left
        for row, hit in enumerate(found):
            if hit:
                place = places[row]
                found[row] = bool(left[place] > 0)
                left[place] -= found[row]
        return found

    def surplus(self, known: Sequence[int]) -> dict[int, int]:
        """By digest, how many more rows are known than exist here."""
        digests, counts = np.unique(np.array(known, np.uint64), return_counts=True)
        here = dict(zip(self._digests.tolist(), self._left.tolist(), strict=True))
        more = zip(digests.tolist(), counts.tolist(), strict=True)
        return {d: n - here[d] for d, n in more if d in here and n > here[d]}


# -- a task ----------------------------------------------------------------------------------------


def write_steps(task: Task, chunks: Iterator[Chunk]) -> Steps[Written]:
    """Write the rows of a task that are not in Kafka yet."""
    first = next(chunks, None)
    if first is None:
        return Written()
    rows: Iterator[Chunk] = chain([first], chunks)
    shared = yield from _opened(task, first.topics)
    if task.batch <= shared.finished:
        return Written(sum(chunk.sums.rows for chunk in rows), 0, shared.era)
    if shared.refused and shared.batch == task.batch:
        raise SinkError(shared.refused)
    own = yield ReadOwn()
    if own.batch > task.batch:  # a late attempt
        return Written(sum(chunk.sums.rows for chunk in rows), 0, shared.era)
    if own.batch == task.batch:
        kept = list(rows)
        written = yield from _again_steps(task, shared, own, kept)
        if written is not None:
            return written
        rows = iter(kept)
    return (yield from _rows_steps(task, shared, rows))


def _opened(task: Task, topics: Collection[str]) -> Steps[Shared]:
    """The marker, planned by this session; read only after the producer was opened.

    So either this task sees a later session in it, or that session retires this producer.
    """
    while True:
        yield Open()
        if task.session is None:
            return Shared(planned=True)
        shared: Shared = yield ReadShared()
        if not _is_ready(task, shared):
            yield from _plan(task, topics)
            continue
        if task.number >= shared.slots or not shared.topics.issuperset(topics):
            shared = yield from _widen(task, shared, topics)
        return shared


def _is_ready(task: Task, shared: Shared) -> bool:
    if task.session in shared.past:
        raise SinkError(
            "another run of this query has taken over: one checkpoint is for one run at a time"
        )
    return shared.planned and shared.session == task.session


def _plan(task: Task, topics: Collection[str]) -> Steps[None]:
    """Repeat until some task of this session has planned."""
    assert task.session is not None
    turns, era, lost = 0, -1, 0
    while True:
        seen: Shared = yield ReadShared()
        if _is_ready(task, seen):
            return
        if seen.era == era:
            turns -= 1
        else:
            # Let others plan, whom this would fence; longer after each lost plan.
            turns, era = min(task.number, TURNS_MAX) * (lost + 1) + lost, seen.era
            turns += TURNS_MAX * (seen.session == task.session)
        if turns > 0:
            yield Pause()
            continue
        era, lost = -1, lost + 1
        yield Lock()
        before: Shared = yield ReadShared(spans=True)
        if _is_ready(task, before):
            return
        claim = claimed(before, task.session, task.number)
        if (yield Save(claim)):
            owns = yield Retire(before.slots)
            ends = yield Ends(frozenset(topics) | before.topics)
            _require(topics, ends)
            yield Save(planned(claim, before, task.batch, owns, ends))


def _require(topics: Iterable[str], ends: Mapping[Place, int]) -> None:
    missing = set(topics) - {topic for topic, _ in ends}
    if missing:
        raise SinkError(f"topic {min(missing)!r} does not exist: create it or correct the name")


def claimed(before: Shared, session: str, number: int) -> Shared:
    """From here on no task of another session starts a transaction."""
    past = before.past
    if before.session not in ("", session):
        past = (*past, before.session)[-PAST_MAX:]
    slots = max(before.slots, slots_for(number))
    return before._replace(
        era=before.era + 1, session=session, past=past, planned=False, slots=slots
    )


def planned(
    claim: Shared, before: Shared, batch: int, owns: Iterable[Own], ends: Mapping[Place, int]
) -> Shared:
    """Which batch is partly in Kafka: how many of its rows, and where they may be."""
    rows = Counter({before.batch: before.before})
    for own in owns:
        if own.era == before.wrote:
            rows[own.batch] += own.wrote
    # A later batch than this one is in Kafka if another run was ahead of this one.
    begun = max((of for of, n in rows.items() if n and of > before.finished), default=batch)
    begun = max(begun, batch)
    spans = {}
    for place, end in ends.items():
        known = rows[begun] and place[0] in before.topics
        spans[place] = (before.spans.get(place, (0, 0))[0] if known else end, end)
    same = before.batch == begun
    return claim._replace(
        planned=True,
        wrote=claim.era,
        batch=begun,
        before=rows[begun] if begun > before.finished else 0,
        strict=same and before.strict,
        refused=before.refused if same else "",
        spans=spans,
    )


def slots_for(number: int) -> int:
    """A power of two, so that it grows only a few times."""
    return max(4, 1 << number.bit_length())


def _widen(task: Task, shared: Shared, topics: Collection[str]) -> Steps[Shared]:
    """Record in the marker that this task's id and these topics are in use."""
    while True:
        yield Lock()
        now: Shared = yield ReadShared(spans=True)
        if not _is_ready(task, now) or now.era != shared.era:
            raise SinkError("another run of this query has taken over while this task began")
        new = frozenset(topics) - now.topics
        if task.number < now.slots and not new:
            return now
        ends: Mapping[Place, int] = (yield Ends(new)) if new else {}
        _require(new, ends)
        spans = {**now.spans, **{place: (end, end) for place, end in ends.items()}}
        wider = now._replace(slots=max(now.slots, slots_for(task.number)), spans=spans)
        if (yield Save(wider)):
            return wider
        yield Pause()


def _again_steps(
    task: Task, shared: Shared, own: Own, chunks: Sequence[Chunk]
) -> Steps[Written | None]:
    """A task that has committed this batch before; None: its rows must be compared."""
    sums = Sums()
    for chunk in chunks:
        sums = sums.plus(chunk.sums)
    if own.era == shared.era:
        if sums != own.sums and (sums.rows, sums.keys) != (own.sums.rows, own.sums.keys):
            raise SinkError(_other_rows(task, own.sums, sums))
        if not shared.has_rows(task.batch):
            return Written(sums.rows, 0, shared.era)
        window = yield from _window(shared)
        digests = [digest for chunk in chunks for digest in chunk.digests()]
        found = zip(digests, window.take(digests), strict=True)
        known = _packed(digest for digest, here in found if here)
        return Written(sums.rows, 0, shared.era, known)
    exactly = sums == own.sums
    by_keys = not shared.strict and (sums.rows, sums.keys) == (own.sums.rows, own.sums.keys)
    if own.wrote == own.sums.rows and (exactly or by_keys):
        known = _packed(digest for chunk in chunks for digest in chunk.digests())
        return Written(sums.rows, 0, shared.era, known, not exactly)
    if not shared.has_rows(task.batch):
        raise SinkError(_other_rows(task, own.sums, sums))
    return None


def _window(shared: Shared) -> Steps[Window]:
    whole: Shared = yield ReadShared(spans=True)
    if whole.era != shared.era:
        raise SinkError("another run of this query has taken over while this task began")
    window: Window = yield ReadWindow(whole)
    if window.total < shared.before:
        raise SinkError(
            f"batch {shared.batch}: {shared.before} of its rows were written before, and of the"
            f" topic's rows since then only {window.total} are left (retention, compaction):"
            f" what is missing cannot be known; {WAY_OUT}"
        )
    return window


def _rows_steps(task: Task, shared: Shared, rows: Iterable[Chunk]) -> Steps[Written]:
    window = (yield from _window(shared)) if shared.has_rows(task.batch) else None
    sums, wrote, known = Sums(), 0, []
    for chunk in rows:
        if task.session is not None and not shared.topics.issuperset(chunk.topics):
            shared = yield from _widen(task, shared, chunk.topics)
        sums = sums.plus(chunk.sums)
        missing = chunk
        if window is not None:
            digests = chunk.digests()
            found = window.take(digests)
            known += [digest for digest, here in zip(digests, found, strict=True) if here]
            missing = chunk.without(found)
        if missing.sums.rows:
            wrote += missing.sums.rows
            yield Send(missing)
    if wrote:
        yield Commit(Own(task.batch, shared.era, wrote, sums))
    return Written(sums.rows, wrote, shared.era, _packed(known))


def _packed(digests: Iterable[int]) -> bytes:
    return np.fromiter(digests, np.uint64).tobytes()


def _other_rows(task: Task, then: Sums, now: Sums) -> str:
    return (
        f"batch {task.batch} was written before with other rows in task {task.number}"
        f" ({then.rows} rows, now {now.rows}, or other keys): a repeated batch must have the"
        f" same rows; take out what changes between tries; {WAY_OUT}"
    )


# -- the driver ------------------------------------------------------------------------------------


def finish_steps(batch: int, tasks: Iterable[Written]) -> Steps[None]:
    """After all tasks: record that the batch is finished, and where the next one starts."""
    done = [task for task in tasks if task.era is not None]
    if not done:
        return
    yield Lock()
    shared: Shared = yield ReadShared(spans=True)
    if any(task.era != shared.era for task in done) or not shared.planned:
        raise SinkError("another run of this query has taken over: this batch is written again")
    if batch <= shared.finished:
        return
    extra = (yield from _settled(shared, done)) if shared.has_rows(batch) else None
    finished = shared._replace(finished=batch)
    if shared.batch <= batch:
        finished = finished._replace(before=0, strict=False, refused="")
    if extra:  # before the ends are read, after which the next batch starts
        yield from _save(finished, extra)
    if shared.batch <= batch:
        ends: Mapping[Place, int] = yield Ends(frozenset(shared.topics))
        finished = finished._replace(spans={place: (end, end) for place, end in ends.items()})
    yield from _save(finished)


def _save(shared: Shared, extra: Any = None) -> Steps[None]:
    if not (yield Save(shared, extra)):
        raise SinkError("another run of this query has taken over while this batch ended")


def _settled(shared: Shared, done: Sequence[Written]) -> Steps[Any]:
    """Copies that are missing because several tasks recognised one row as theirs."""
    known = np.frombuffer(b"".join(task.known for task in done), np.uint64)
    more = len(known) - shared.before
    if not more:
        return None
    if any(task.by_keys for task in done):
        yield Save(shared._replace(strict=True))
        raise SinkError(
            f"batch {shared.batch} is repeated with another number of tasks: start the query again,"
            " and its rows are compared one by one"
        )
    window: Window = yield ReadWindow(shared)
    extra = window.surplus(known)  # type: ignore[arg-type]  # an array is a sequence of ints
    if more > 0 and sum(extra.values()) == more:
        return (yield ReadRows(shared, extra))
    why = (
        f"{shared.before} rows of it were written before, and {len(known)} are recognised now:"
        + (
            " others write equal rows into the topic"
            if more > 0
            else " a repeated batch must have the same rows; take out what changes between tries"
        )
    )
    line = f"batch {shared.batch} cannot be finished: {why}; {WAY_OUT}"
    yield Save(shared._replace(refused=line))
    raise SinkError(line)
