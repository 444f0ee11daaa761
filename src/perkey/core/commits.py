"""What is committed, when, what follows from the answer, and where the next epoch starts.

Theory of operation. Each partition has at most one commit in flight (`CommitState`)::

             ready: due, and something is new                  no answer in time
    IDLE ─────────────────────────────────────► SENT ─────────────────────────────► IN_DOUBT
      ▲     send(plan): frontier, map, claims     │                                    │
      └───────────────────────────────────────────┴────────────────────────────────────┘
          stored, refused (`repeat`: sent once more), or read back as either

1. A plan (`Plans`) is one snapshot: frontier, top and holes of a partition are taken together, the
   map is encoded from them, and frontier and map are committed together. Taking them one after
   another is how the Java library lost records (its issue 894).
2. A *claim* is a finished record whose next step waits for a commit. It leaves `claims` only when a
   plan that contains it is stored.
3. Only the last commit of an epoch may follow one in flight: it is behind it on the same
   connection. All others wait, because answers of two could come in any order.
4. An answer belongs to the commit of its `sequence`. A later one is counted as late, and the
   current state is sent again: librdkafka may have repeated an older commit by itself.

Transactions (exactly_once) go the same way, one at a time for the whole member. `resolve` decides
from what is stored where an epoch starts, and what of it is done.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from perkey.codec import Carrier, OffsetMap, Remembered, UnreadableMap, decode, encode_fitting
from perkey.core import effects as fx
from perkey.core import states
from perkey.core.events import NEVER, Answer
from perkey.core.memory import Memory
from perkey.core.states import COMMIT_NAMES, COMMIT_TABLE, InternalError
from perkey.types import Committed, ErrorInfo, OnLost

if TYPE_CHECKING:
    from perkey.core.engine_state import EngineState
    from perkey.core.events import Command, Verdict
    from perkey.core.offsets import Offsets
    from perkey.core.partition import Partition
    from perkey.core.work import Work


@dataclass(slots=True, eq=False)
class CommitState:
    """The commit of one epoch: what the broker stores, what is in flight, and what waits for it."""

    _offsets: Offsets
    #: what the broker stores for the group, as far as known; -1 for nothing
    committed: int = -1
    #: since when, on the engine's clock; initially the start of the epoch
    committed_at: float = 0.0
    #: the broker's limit; lower after it refused a map of the usual size
    map_limit: int = -1
    #: the last plan has to be sent again, even without a change
    repeat: bool = False
    state: int = states.IDLE
    #: of the last request
    sequence: int = 0
    #: idle: the earliest time of the next commit; sent: the answer is due by then
    at: float = 0.0
    #: the plan in flight, or in doubt
    sent: fx.PlanItem | None = None
    #: from the first to the last frontier that was refused since a plan was stored: librdkafka
    #: reports the error of one partition for the whole request, so the broker may have them
    refusals: range = range(0)
    #: finished records whose next step waits for the next commit: at_most_once, each, exactly_once
    claims: list[Work] = field(default_factory=list)
    #: the last plan had no room for all claims
    left_out: bool = False
    #: Commit(each): claims without room in the map; they keep their lane and no slot
    slotless: set[Work] = field(default_factory=set)
    #: at_most_once: marked records, done for the offsets, that still run
    marked: dict[int, Work] = field(default_factory=dict)
    #: characters of the last map that was sent, and of the last one that the broker stored
    map_chars: int = 0
    map_stored: int = 0
    #: commands that are answered when the commit with their records is stored
    answers: list[tuple[Command, fx.Obeyed]] = field(default_factory=list)
    #: what is remembered of single records
    memory: Memory = field(default_factory=Memory)

    @property
    def dirty(self) -> bool:
        """Whether a commit would differ from the last plan."""
        return self._offsets.changed or self.repeat or self.memory.changed

    def ready(self, now: float) -> bool:
        """Whether there is something new, and it may be sent."""
        idle = self.state == states.IDLE and self.at <= now
        return idle and (bool(self.claims) or self.dirty)

    def move(self, state: int) -> None:
        """Change the state, by the table."""
        if (self.state, state) not in COMMIT_TABLE:
            raise InternalError(
                f"a commit cannot go from {COMMIT_NAMES[self.state]} to {COMMIT_NAMES[state]}"
            )
        self.state = state

    def send(self, sequence: int, item: fx.PlanItem, answer_by: float) -> None:
        """This plan is in flight."""
        self.move(states.SENT)
        self.sequence, self.at, self.sent = sequence, answer_by, item
        self.repeat = self._offsets.changed = self.memory.changed = False
        self.left_out = len(item.claims) < len(self.claims)
        self.map_chars = len(item.metadata) - item.rider_chars

    def _answered(self) -> fx.PlanItem:
        self.move(states.IDLE)
        item, self.sent = self.sent, None
        assert item is not None
        return item

    def stored(self, now: float, again_at: float) -> fx.PlanItem:
        """The broker has stored it; returns the plan."""
        item = self._answered()
        if self.committed != item.frontier:
            self.committed, self.committed_at = item.frontier, now
        self.map_stored, self.refusals = len(item.metadata), range(0)
        # With claims left out, the same commit again would change nothing.
        self.at = again_at if self.left_out else 0.0
        return item

    def refused(self, again_at: float) -> fx.PlanItem:
        """The broker has refused it; returns the plan."""
        item = self._answered()
        self.repeat, self.at = True, again_at
        first = self.refusals.start if self.refusals else item.frontier
        self.refusals = range(first, item.frontier + 1)
        return item

    def shrink_map(self, refused_chars: int) -> None:
        """The broker stores less than expected: use a smaller map, in the end none at all.

        It accepts a size that it has stored before, and two deliveries must never commit less than
        that (see `Plans.plan`).
        """
        if refused_chars <= self.map_stored:
            self.map_stored = 0  # its limit was lowered since
        self.map_limit = max(self.map_limit // 2, self.map_stored)

    def answer_later(self, command: Command, row: fx.Obeyed) -> None:
        """Answer this command once a commit with its record is stored."""
        self.answers.append((command, row))

    def close(self) -> None:
        """The epoch ended: an answer that still comes is late."""
        if self.state != states.IDLE:
            self.move(states.IDLE)
        self.claims.clear()
        self.answers.clear()
        self.marked.clear()
        self.slotless.clear()

    def keep(self, works: Collection[Work]) -> list[Work]:
        """Keep only these claims; returns the others."""
        left = [work for work in self.claims if work not in works]
        self.claims = [work for work in self.claims if work in works]
        return left

    def remove(self, works: Sequence[Work]) -> None:
        """These claims need no further commit; usually they are the first ones, in order."""
        if self.claims[: len(works)] == works:
            del self.claims[: len(works)]
        else:
            gone = set(works)
            self.claims = [work for work in self.claims if work not in gone]


# -- what one commit contains ----------------------------------------------------------------------


class Plans:
    """Builds commit plans."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def plan(
        self, partition: Partition, claims: Sequence[Work] | None = None
    ) -> fx.PlanItem | None:
        """The whole content of one commit for a partition, from one snapshot.

        If the map has no room for all `claims` (by default all there are) the delivery decides what
        is committed instead; None if nothing is.
        """
        claims = partition.commit.claims if claims is None else claims
        item, uncut = self._item(partition, claims)
        if not uncut:
            delivery = self._state.deliveries[partition.handler.index]
            cut = delivery.fits(partition, item, lambda: self._most_claims(partition, claims))
            if cut is None:
                return None
            item = cut
        return self._with_rider(item) if partition.memory else item

    def _with_rider(self, item: fx.PlanItem) -> fx.PlanItem:
        """Add behind the map what is remembered of single records, as far as there is room."""
        partition, state = item.partition, self._state
        memory, commit = partition.memory, partition.commit
        claimed, chars = {work.offset for work in item.claims}, len(item.metadata)
        limit_chars = 0 if memory.barred else commit.map_limit
        carrier = Carrier(item.frontier, item.metadata, limit_chars)
        entries = memory.entries(
            partition.position,
            claimed,
            state.now,
            state.wall_s,
            partition.offsets.incomplete,
            carrier.room_bytes,
        )
        partition.watch()  # of some it may be known by now that the log has them no more
        text, count = carrier.carry(entries)
        left_out = len(entries) - count + memory.unseen
        if left_out and not memory.shed:
            state.count("riders_cut")
            state.note(
                "warning", "no room in the commit for the attempts of all failing records",
                topic=partition.topic, partition=partition.number, remembered=count,
                left_out=left_out,
                next="the latest ones start over after a restart: handle or release earlier ones",
            )  # fmt: skip
        memory.shed = left_out
        return item._replace(metadata=text, rider_chars=max(0, len(text) - chars))

    def _item(self, partition: Partition, claims: Sequence[Work]) -> tuple[fx.PlanItem, bool]:
        """The plan with these claims; False if its map is cut."""
        shot = partition.snapshot(claims)
        if not shot.not_done and not partition.buffered:
            return fx.PlanItem(partition, shot.frontier, "", 0, list(claims)), True
        text, covered = encode_fitting(
            shot.frontier, shot.top, shot.not_done, limit_chars=partition.commit.map_limit
        )
        uncut = covered >= shot.top
        if not uncut:
            # What the map cannot hold is not in this commit: those claims wait.
            claims = [work for work in claims if work.record.offset <= covered]
        beyond = covered - shot.frontier + 1 - bisect_right(shot.not_done, covered)
        return fx.PlanItem(partition, shot.frontier, text, beyond, list(claims)), uncut

    def _most_claims(self, partition: Partition, claims: Sequence[Work]) -> fx.PlanItem | None:
        """The plan with as many claims as fit, the lowest offsets first: lanes keep their order."""
        ordered = sorted(claims, key=lambda work: work.record.offset)
        best, fits, too_many = None, 0, len(ordered)
        while fits < too_many:  # more claims do not always take more room; any that fit are right
            middle = (fits + too_many) // 2
            item, uncut = self._item(partition, ordered[:middle])
            if uncut:
                best, fits = item, middle + 1
            else:
                too_many = middle
        if best is None or (not best.claims and not partition.commit.dirty):
            partition.commit.at = self._state.now + self._state.limits.commit_retry_s
            return None
        return best


# -- when, and the answers -------------------------------------------------------------------------


class Commits:
    """Builds commit plans and handles their answers."""

    def __init__(self, state: EngineState, plans: Plans) -> None:
        self._plans, self._state, self._sequence = plans, state, 0
        #: when everything is committed next, and was last
        self.next_at, self._all_at = 0.0, -inf
        #: also when so many records are done: `max_records`, and `commit_after`
        self._many = state.limits.commit.max_records or NEVER
        self._after = state.limits.commit_after
        #: `run` has something to do when so many records are done
        self.enough = self._fewest = min(self._many, self._after)
        #: sequence of the transaction in flight; None if there is none
        self._transaction: int | None = None

    # -- when ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Commit what is due."""
        state, done = self._state, self._state.finished_since_commit
        due = state.now >= self.next_at
        if not due and done >= self.enough:
            apart_at = self._all_at + state.limits.commit_apart_s
            due = done >= self._many or state.now >= apart_at
            if not due:  # from here on the clock decides, or `max_records`
                self.next_at, self.enough = min(self.next_at, apart_at), self._many
        if due:
            self._commit_all()
        elif state.claiming:
            self._commit(list(state.claiming))

    def _commit_all(self) -> None:
        state = self._state
        self.next_at = state.now + state.limits.commit.interval_s
        state.finished_since_commit, self.enough = 0, self._fewest
        every = list(state.partitions.values())
        waits = any(p.commit.dirty and p.commit.state != states.IDLE for p in every)
        if waits and self._fewest < NEVER:
            # Records that finish while a commit is in flight are not in it: due when it ended.
            state.finished_since_commit, self.enough = self._fewest, 2 * self._fewest
        if self._commit(every):
            self._all_at = state.now

    def ended(self) -> None:
        """Commits are no longer in flight: what waited for them is due."""
        self.enough = self._fewest

    def soon(self) -> None:
        """Do not wait for the interval this time."""
        self.next_at = self._state.now

    def next_due(self) -> float:
        """When the commits next need attention, as far as known now."""
        state = self._state
        commits = [partition.commit for partition in state.partitions.values()]
        waiting = [partition.commit for partition in state.claiming]
        answers = [commit.at for commit in commits if commit.state == states.SENT]
        later = [c.at for c in waiting if c.state == states.IDLE and c.at > state.now]
        return min([self.next_at, *answers, *later])

    # -- what ------------------------------------------------------------------------------------

    def _commit(self, partitions: Iterable[Partition]) -> bool:
        """Send what is due of these; whether more than a transaction is."""
        plans, transactional = [], []
        for partition in partitions:
            if partition.handler.exact:
                transactional.append(partition)
            elif self._due(partition):
                plans.append(self._plans.plan(partition))
        plain = [item for item in plans if item is not None]
        if plain:
            self._send(fx.CommitOffsets, plain)
        if transactional and self._transaction is None:
            due = [partition for partition in transactional if self._due(partition)]
            items = self._state.portions.transaction(due, self._plans.plan)
            if items:
                self._transaction = self._send(fx.Transact, items)
        return bool(plain)

    def _due(self, partition: Partition) -> bool:
        return partition.state != states.CLOSED and partition.commit.ready(self._state.now)

    def last(self, partitions: Sequence[Partition]) -> fx.CommitOffsets:
        """The final commit of revoked partitions; the caller sends it, it is answered as usual."""
        plans = [self._plans.plan(partition) for partition in partitions]
        items = [item for item in plans if item is not None]
        return fx.CommitOffsets(self._mark_sent(items, self._state.limits.commit_answer_s), items)

    def proof(self) -> fx.CommitOffsets | None:
        """One partition's current state, changed or not; None if each has a commit in flight."""
        for partition in self._state.partitions.values():
            idle = partition.commit.state == states.IDLE and partition.state == states.OPEN
            if idle and not partition.handler.exact:
                return self.last([partition])
        return None

    def _send(self, kind: type[fx.CommitOffsets | fx.Transact], items: list[fx.PlanItem]) -> int:
        # A transaction has its own time limit, and always an answer.
        answer_s = inf if kind is fx.Transact else self._state.limits.commit_answer_s
        self._state.emit(kind(self._mark_sent(items, answer_s), items))
        return self._sequence

    def _mark_sent(self, items: list[fx.PlanItem], answer_s: float) -> int:
        self._sequence += 1
        answer_by = self._state.now + answer_s
        for item in items:
            item.partition.commit.send(self._sequence, item, answer_by)
        return self._sequence

    # -- answers ---------------------------------------------------------------------------------

    def answered(self, answers: Sequence[Answer]) -> None:
        """The broker has answered a commit."""
        stored = []
        for answer in answers:
            partition = answer.partition
            commit = partition.commit
            if commit.sequence != answer.sequence or commit.state == states.IDLE:
                # It timed out, or its epoch has ended. librdkafka resends a refused commit by
                # itself (its handler of OffsetCommit), so it may have arrived after later ones and
                # restored an older frontier: the current one is sent again.
                self._state.count("late_commit_answers")
                current = self._state.partitions.get(partition.where)
                if current is not None and answer.verdict == "stored":
                    current.commit.repeat = True
                continue
            if answer.verdict == "stored":
                stored.append(self._stored(partition))
            else:
                self._refused(partition, answer)
        if stored:
            self._state.emit(fx.CommitsStored(stored))
        self.ended()

    def _stored(self, partition: Partition) -> Committed:
        now = self._state.now
        item = partition.commit.stored(now, now + self._state.limits.commit_retry_s)
        if item.claims:
            # The commit that these records waited for is stored: each takes its next step.
            partition.commit.remove(item.claims)
            self._state.unclaim(partition)
            self._state.deliveries[partition.handler.index].stored(partition, item.claims)
        if partition.commit.answers:
            self._answer(partition, item)
        partition.reopen()
        return Committed(partition.topic, partition.number, item.frontier, item.done_beyond)

    def _answer(self, partition: Partition, item: fx.PlanItem) -> None:
        """Answer commands whose records are done in the stored commit."""
        stored = decode(item.frontier, item.metadata)
        left = []
        for command, row in partition.commit.answers:
            covered = row.offset <= stored.highest_seen and row.offset not in stored.not_done
            if row.offset < stored.frontier or covered:
                self._state.emit(fx.Answered(command, [row]))
            else:
                left.append((command, row))
        partition.commit.answers = left

    def _refused(self, partition: Partition, answer: Answer) -> None:
        commit, now, retry_s = partition.commit, self._state.now, self._state.limits.commit_retry_s
        sent = commit.refused(now + retry_s)
        self._state.count("commits_refused")
        if answer.verdict == "too_large":
            message, limit = "commit metadata refused as too large", {}
            if sent.rider_chars:  # drop the rider first
                partition.memory.barred = True
                message += ", attempts and parked records are not stored"
            else:
                commit.shrink_map(len(sent.metadata))
                limit["next_limit_chars"] = commit.map_limit
            self._state.note(
                "warning", message, topic=partition.topic, partition=partition.number, **limit,
                next="raise offset.metadata.max.bytes on the broker to 4096",
            )  # fmt: skip
        elif answer.verdict == "stop":
            where = f"{partition.topic}[{partition.number}]"
            self._state.fail(f"commit refused for {where}: {answer.reason}")
        elif answer.verdict == "gone":
            # No longer owned: the rebalance that reports it is on its way.
            commit.at = now + 10 * retry_s

    def in_doubt(self) -> None:
        """Read back commits that were not answered in time."""
        doubtful = [
            partition
            for partition in self._state.partitions.values()
            if partition.commit.state == states.SENT and partition.commit.at <= self._state.now
        ]
        for partition in doubtful:
            partition.commit.move(states.IN_DOUBT)
        if doubtful:
            self._state.count("commits_in_doubt", len(doubtful))
            self._state.emit(fx.ReadCommitted(doubtful))

    def read_back(self, partition: Partition, offset: int | None, metadata: str) -> None:
        """The stored value of a commit in doubt; None if it could not be read."""
        commit = partition.commit
        item = commit.sent
        self.ended()
        if commit.state != states.IN_DOUBT or item is None:
            return
        if offset is None:
            commit.move(states.SENT)  # read again later
            commit.at = self._state.now + self._state.limits.commit_retry_s
        elif (offset, metadata) == (item.frontier, item.metadata):
            self._state.emit(fx.CommitsStored([self._stored(partition)]))
        else:
            commit.refused(again_at=0.0)

    def transacted(
        self,
        sequence: int,
        *,
        committed: bool,
        refused: Sequence[tuple[Work, ErrorInfo]],
        maps_too_large: bool = False,
    ) -> list[tuple[Work, ErrorInfo]]:
        """The transaction has ended; returns refused records whose attempt must fail."""
        if sequence != self._transaction:
            return []
        self._transaction = None
        inside = [
            p
            for p in self._state.partitions.values()
            if p.commit.state == states.SENT and p.commit.sequence == sequence
        ]
        longest = _longest_map(inside) if maps_too_large else []
        failed: Verdict = "stored" if committed else "retry"
        self.answered(
            [Answer(p, sequence, "too_large" if p in longest else failed) for p in inside]
        )
        for work, _ in refused:
            if work.state == states.PENDING:
                work.partition.commit.remove([work])
                self._state.unclaim(work.partition)
        return [pair for pair in refused if pair[0].state == states.PENDING]


def _longest_map(partitions: Sequence[Partition]) -> list[Partition]:
    """The longest map: the likely one if a transaction was aborted because of a map's size."""
    chars = {p: len(p.commit.sent.metadata) for p in partitions if p.commit.sent is not None}
    most = max(chars.values(), default=0)
    return [p for p, length in chars.items() if length == most > 0]


# -- where the next epoch starts -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """The broker's data about a partition when it is assigned."""

    #: the group's committed offset; None if there is none
    committed: int | None
    metadata: str
    log_start: int
    log_end: int
    #: the offset for auto.offset.reset, for a partition without a committed one; None: "error"
    reset_to: int | None
    #: more is known to be done than the group has committed: commit it
    uncommitted: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """Where to start, and what is done already."""

    offset: int
    restored_top: int | None = None
    restored_not_done: tuple[int, ...] = ()
    commit_start: bool = False
    remembered: tuple[Remembered, ...] = ()
    #: a warning for the log, if any
    warning: str = ""


@dataclass(frozen=True, slots=True)
class OffsetLost:
    """There is no offset to start from, and the policy is to stop."""

    reason: str


def resolve(stored: Found, on_lost: OnLost) -> Start | OffsetLost:
    """Decide the start of one partition."""
    if stored.committed is None:
        if stored.reset_to is None:
            return OffsetLost(
                'the group has no committed offset and auto.offset.reset is "error": commit one '
                "with `perkey offsets set`, or choose earliest or latest"
            )
        return Start(stored.reset_to, commit_start=True)
    if stored.committed > stored.log_end:
        if on_lost == "stop":
            return OffsetLost(
                f"committed offset {stored.committed} is past the end of the log {stored.log_end} "
                '(a topic recreated, or a truncated log): set on_offset_lost="earliest" or '
                '"latest", or commit a valid offset with `perkey offsets set`'
            )
        target = stored.log_start if on_lost == "earliest" else stored.log_end
        warning = (
            f"committed offset {stored.committed} is past the end of the log {stored.log_end}: "
        )
        warning += f"continuing at {on_lost}, {target}"
        return Start(target, commit_start=True, warning=warning)
    known = ""
    try:
        restored = decode(stored.committed, stored.metadata, log_end=stored.log_end)
    except UnreadableMap as error:
        known = f"commit metadata ignored, finished records past the offset repeat: {error}"
        restored = OffsetMap("none", stored.committed, stored.committed - 1, ())
    problem = restored.rider.problem
    if stored.committed < stored.log_start:
        # Retention deleted records that were not done; the rest of the map is still valid
        start = stored.log_start
        top = max(restored.highest_seen, start - 1)
        left = tuple(offset for offset in restored.not_done if offset >= start)
        kept = tuple(entry for entry in restored.rider.entries if entry.offset >= start)
        gone = f"committed offset {stored.committed} is before the start of the log {start}: "
        gone += "retention deleted what lay between"
        warning = f"{gone}; {known}" if known else gone
        return Start(start, top, left, commit_start=True, remembered=kept, warning=warning)
    known = known or (problem and f"what the commit remembers of records is ignored: {problem}")
    return Start(
        stored.committed, restored.highest_seen, restored.not_done,
        commit_start=stored.uncommitted, remembered=restored.rider.entries, warning=known,
    )  # fmt: skip
