"""The checks. The oracle sees what crosses the engine's border and trusts nothing inside."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

from perkey.codec import measure
from perkey.core import effects as fx
from perkey.core.events import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE
from perkey.core.partition import Partition
from perkey.core.work import Work
from perkey.policies import DeadLetter, GivenUp, Skip
from perkey.testing.memory import OffsetAndMetadata
from perkey.types import TopicPartition
from simulators.core import away, relieving, remembering
from simulators.core.ledger import Claimed, Life, Source
from simulators.core.violation import Violation, require

SLACK = 1e-6  # floating-point seconds


class Oracle:
    """The external ledger."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.sources: dict[TopicPartition, Source] = {}
        self.lives: dict[Partition, Life] = {}
        #: (member, partition, lane) -> the call that runs it
        self.lanes_running: dict[tuple[str, TopicPartition, Hashable], Any] = {}
        #: the same -> when something of it last ended
        self.lane_moved: dict[tuple[str, TopicPartition, Hashable], float] = {}
        #: exactly_once: outputs of committed transactions, and what a reader saw in the end
        self.outputs_due: set[tuple[TopicPartition, int]] = set()
        self.outputs_seen: Counter[tuple[TopicPartition, int]] = Counter()
        #: the map's limit where the broker stores as much: there no map may be cut
        self.map_chars_kept = 0
        self.refused_ever: defaultdict[TopicPartition, set[int]] = defaultdict(set)
        #: held lanes: (member, partition, lane) -> until when
        self.holds: dict[tuple[str, TopicPartition, Hashable], float] = {}
        #: what handlers call and is away
        self.outages: dict[away.Place, away.Outage] = {}
        #: (member, handler) -> what its brake counts
        self.floods: dict[tuple[str, int], away.Flood] = {}
        #: when each member last asked for a commit
        self.planned_at: dict[str, float] = {}
        self.stats: Counter[str] = Counter()

    # -- epochs ------------------------------------------------------------------------------------

    def opened(
        self, member: str, partition: Partition, committed: OffsetAndMetadata | None, now: float
    ) -> None:
        """The member begins with what the broker holds."""
        source = self.sources[partition.topic, partition.number]
        self.lives[partition] = life = Life(member, partition, source, committed)
        if committed is None:
            life.uncovered_since = now  # its start must be committed soon
        remembering.begin(life, committed, source.log.end, now)
        for (who, tp, lane), until in self.holds.items():
            if (who, tp) == (member, source.tp):
                life.holds[lane] = until

    def revoking(self, partitions: Sequence[Partition]) -> None:
        """Nothing new of these may start."""
        for partition in partitions:
            self.lives[partition].state = "revoking"

    def closed(self, partitions: Sequence[Partition], *, clean: bool) -> None:
        """These epochs are over; `clean`: the broker stored their last commit."""
        away.closed(self, partitions)
        for partition in partitions:
            life = self.lives[partition]
            life.state = "closed"
            if not clean:
                life.source.excused |= life.marked - life.started

    def decided(self, source: Source, *, committed: bool) -> None:
        """Another service's transaction has ended: lanes may have records where they had none."""
        source.decide(committed=committed)
        for life in self.lives.values():
            if life.source is source:
                life.cursor.clear()

    def former(self, partition: Partition) -> bool:
        """The epoch is of a topic that is no more."""
        source = self.lives[partition].source
        return self.sources[source.tp] is not source

    def gone(self, member: str) -> None:
        """The process is dead, and its running handlers with it."""
        self.closed(
            [
                p
                for p, life in self.lives.items()
                if life.member == member and life.state != "closed"
            ],
            clean=False,
        )
        self.lives = {p: life for p, life in self.lives.items() if life.member != member}
        self.outages = {place: one for place, one in self.outages.items() if place[0] != member}
        self.lanes_running = {
            lane: call for lane, call in self.lanes_running.items() if lane[0] != member
        }

    def held(self, member: str) -> tuple[int, int]:
        """How many records the process must have in memory, and their bytes."""
        lives = [life for life in self.lives.values() if life.member == member]
        held = [size for life in lives if life.state != "closed" for size in life.held()]
        return len(held), sum(held)

    def polled(
        self, partition: Partition, offsets: Sequence[int], sizes: Sequence[int], now: float
    ) -> None:
        """The member has fetched these."""
        life = self.lives[partition]
        for offset, size in zip(offsets, sizes, strict=True):
            if offset not in life.polled:
                life.sizes[offset] = size
                life.polled.add(offset)
                waits = life.not_before.get(offset, 0.0)
                life.startable[offset] = now if waits <= now else waits + 1.0

    def forgotten(self, life: Life, offsets: Collection[int], now: float) -> None:
        """The log has no more what was to be fetched again: nothing is left to handle."""
        for offset in offsets:
            life.polled.discard(offset)
            life.gone.add(offset)
            life.parked.pop(offset, None)
            life.startable.pop(offset, None)
            life.held_until.pop(offset, None)
            life.attempts.pop(offset, None)
            life.own_attempts.pop(offset, None)
            if life.uncovered_since is None:
                life.uncovered_since = now

    # -- starts ------------------------------------------------------------------------------------

    def starting(
        self, works: Sequence[Work], call: object, now: float, held: Callable[[Work], Claimed]
    ) -> None:
        """The engine asks for a handler call; `held` tells what the broker holds."""
        inside: set[tuple[TopicPartition, int]] = set()
        for work in works:
            life = self.lives[work.partition]
            offset = work.record.offset
            lane = life.source.lane(offset)
            place = (life.member, life.source.tp, lane)
            self._may_start(life, work, offset, now)
            runs = self.lanes_running.get(place)
            if runs is not None and runs is not call:
                raise Violation("S3", f"{work!r} starts while its lane runs")
            self._in_order(life, lane, offset, inside)
            self.lanes_running[place] = call
            inside.add((life.source.tp, offset))
            life.running.add(offset)
            self.stats["starts"] += 1
            if life.spec.delivery == AT_MOST_ONCE:
                self._start_once(life, offset, held(work))
            elif life.source.starts[offset] and offset in life.source.finished:
                self.stats["repeats"] += 1
            life.source.starts[offset] += 1

    def _may_start(self, life: Life, work: Work, offset: int, now: float) -> None:
        remembering.may_start(life, offset, now)
        relieving.check_start(life, offset)
        again = offset in life.finished or (offset in life.passed and offset not in life.refused)
        attempt = life.attempts[offset] + 1
        for broken, name, what in (
            (life.state != "open", "S7", "starts when its epoch is not open"),
            (offset not in life.polled, "S1", "starts and was never polled"),
            (offset in life.known, "S4", "starts again: the group holds it as done"),
            (again, "S4", "starts again in one epoch"),
            (offset in life.running or offset in life.sending, "S3", "starts while it runs"),
            (
                now < life.not_before.get(offset, 0.0) - SLACK,
                "S3",
                "starts before its delay is over",
            ),
            (work.record.attempt != attempt, "S3", "does not say which attempt it is"),
        ):
            if broken:
                raise Violation(name, f"{work!r} {what}")

    def _in_order(
        self, life: Life, lane: Hashable, offset: int, inside: set[tuple[TopicPartition, int]]
    ) -> None:
        if offset in life.refused:  # exactly_once: the lane has gone on past a refused output
            return
        expected = life.next_of(lane, inside)
        if expected != offset:
            raise Violation(
                "S3", f"{life.source.tp} lane {lane!r}: {offset} starts before {expected} is done"
            )

    def _start_once(self, life: Life, offset: int, held: Claimed) -> None:
        source = life.source
        if offset not in held and self.sources[source.tp] is source:
            raise Violation("S5", f"{source.tp}@{offset} starts before its mark is stored")
        if source.starts[offset]:
            raise Violation("S5", f"{source.tp}@{offset} starts a second time")
        life.started.add(offset)

    # -- ends --------------------------------------------------------------------------------------

    def left(self, work: Work) -> Life | None:
        """The handler has let go of the record; None when its epoch is over."""
        life = self.lives[work.partition]
        offset = work.record.offset
        life.running.discard(offset)
        place = (life.member, life.source.tp, life.source.lane(offset))
        self.lanes_running.pop(place, None)
        self.lane_moved[place] = self.now()
        return None if life.state == "closed" else life

    def shared(self, works: Sequence[Work], call: object) -> None:
        """These still run in the call: other records of their lanes have left it."""
        for work in works:
            life = self.lives[work.partition]
            place = (life.member, life.source.tp, life.source.lane(work.record.offset))
            self.lanes_running[place] = call

    def handled(self, life: Life, offset: int, now: float) -> None:
        """The record is done, as far as the handler and the producer are concerned."""
        delivery = life.spec.delivery
        life.startable.pop(offset, None)
        if delivery == EXACTLY_ONCE:
            life.passed.add(offset)
            life.claimable.add(offset)
        elif delivery == AT_MOST_ONCE:
            life.passed.add(offset)
            life.source.finished.add(offset)
            return
        elif life.spec.commit_each:
            life.claimable.add(offset)
        else:
            self._finish(life, offset)
            life.uncovered += 1
        if life.uncovered_since is None:
            life.uncovered_since = now

    def _finish(self, life: Life, offset: int) -> None:
        self.lane_moved[life.member, life.source.tp, life.source.lane(offset)] = self.now()
        life.finished.add(offset)
        life.passed.add(offset)
        life.claimable.discard(offset)
        life.source.finished.add(offset)

    def returned(self, life: Life, work: Work, now: float) -> None:
        """The handler returned outputs; but for exactly_once they are produced next."""
        if life.spec.delivery == EXACTLY_ONCE:
            self.handled(life, work.record.offset, now)

    def given_back(self, life: Life, work: Work) -> None:
        """The call never began."""
        life.source.starts[work.record.offset] -= 1
        life.started.discard(work.record.offset)

    def failed(
        self,
        life: Life,
        work: Work,
        now: float,
        *,
        final: bool,
        delay_s: float | None,
        alone: bool,
        absent: bool = False,
    ) -> None:
        """One failed call; `alone`: it was about this record and no other.

        Only such a call is an attempt: of a batch that fails as one nobody knows whose fault it is.
        `absent`: `Hold.on` names the error.
        """
        if absent and away.is_free(self, life, work, now):
            return
        offset = work.record.offset
        retry = life.policies.get(offset, life.spec.retry)
        alone = alone or life.spec.delivery == AT_MOST_ONCE  # there nothing is tried again
        life.attempts[offset] += 1
        life.own_attempts[offset] += alone
        count = life.own_attempts[offset]
        spent = retry.attempts is not None and count >= retry.attempts
        if (final or spent) and alone:
            if life.spec.brake is not None and away.is_spared(self, life, work, now):
                return
            self._exhausted(life, offset, now)
            return
        lowest, highest = 0.0, retry.delay_max_s
        if alone:
            assert not callable(retry.delay_s)
            delay = min(retry.delay_s * retry.multiplier ** min(count - 1, 64), retry.delay_max_s)
            lowest, highest = delay * (1 - retry.jitter), delay * (1 + retry.jitter)
            if delay_s is not None:
                lowest = highest = delay_s
        life.not_before[offset] = now + lowest
        life.startable[offset] = now + max(highest, delay_s or 0.0, 1.0)

    def postponed(self, life: Life, work: Work, now: float, delay_s: float | None) -> None:
        """The handler raised NotNow: no attempt. The first of its lane waits so long."""
        assert delay_s is not None
        offset = work.record.offset
        first = life.next_of(life.source.lane(offset)) == offset
        life.not_before[offset] = now + (delay_s if first else 0.0)
        life.startable[offset] = now + max(delay_s, 1.0)
        self.stats["postponed"] += 1

    def flood(self, member: str, work: Work) -> away.Flood:
        """What the brake of the record's handler counts."""
        return self.floods.setdefault((member, work.partition.handler.index), away.Flood())

    def _exhausted(self, life: Life, offset: int, now: float) -> None:
        policy = life.spec.on_exhausted
        if isinstance(policy, GivenUp):
            self.given_up(life, offset, now, policy)
        else:
            remembering.ask(life, offset)

    def given_up(self, life: Life, offset: int, now: float, policy: GivenUp) -> None:
        """The record is exhausted, and this becomes of it."""
        if isinstance(policy, Skip):
            self.stats["skipped"] += 1
            self.handled(life, offset, now)
        elif isinstance(policy, DeadLetter):
            life.dead_letters.add(offset)
            if life.spec.delivery == EXACTLY_ONCE:
                self.handled(life, offset, now)
        else:
            remembering.park(life, offset, now)

    def sending(self, work: Work, *, dead_letter: bool) -> None:
        """The engine asks for outputs or a dead letter to be produced."""
        life, offset = self.lives[work.partition], work.record.offset
        if life.state == "closed":
            raise Violation("S7", f"{work!r} sends after its epoch")
        if life.spec.delivery == EXACTLY_ONCE:
            raise Violation("S8", f"{work!r} sends outside a transaction")
        if dead_letter and offset in life.given_up:
            life.dead_letters.add(offset)
        if dead_letter:
            relieving.sending(life, offset)
            require(
                offset in life.dead_letters, "S1", f"{work!r} is dead-lettered and not exhausted"
            )
        life.sending.add(offset)

    def outputs_answered(self, work: Work, now: float, *, refused: bool, alone: bool) -> None:
        """The broker answered for outputs."""
        life, offset = self.lives[work.partition], work.record.offset
        if life.state == "closed":
            return
        life.sending.discard(offset)
        if not refused:
            life.dead_letters.discard(offset)
            self.handled(life, offset, now)
        elif offset in life.dead_letters:
            life.dead_letters.remove(offset)  # released later, it may have outputs
            life.given_up.discard(offset)
            relieving.refused(life, offset, now)
            remembering.park(life, offset, now, life.give_up_at.get(offset))
        else:
            self.failed(life, work, now, final=False, delay_s=None, alone=alone)

    # -- commits -----------------------------------------------------------------------------------

    def planned(self, item: fx.PlanItem, *, transaction: bool = False) -> None:
        """The engine asks for this to be committed (or is about to close with it)."""
        life = self.lives[item.partition]
        exact = life.spec.delivery == EXACTLY_ONCE
        require(exact == transaction, "S8", "offsets and outputs are not in one transaction")
        source, says = life.source, Claimed(item.frontier, item.metadata)
        tp = source.tp
        require(life.state != "closed", "S7", f"{tp}: a commit of a closed epoch")
        end = max(source.log.stable_end(), life.known.offset, life.known.top + 1)
        require(says.offset <= end, "S2", f"{tp}: {says.offset} is past what may be read, {end}")
        require(says.top < end, "S2", f"{tp}: the map reaches {says.top}, past {end}")
        backwards = says.offset < life.base and life.spec.delivery != AT_MOST_ONCE
        require(not backwards, "S2", f"{tp}: commit goes back from {life.base} to {says.offset}")
        if life.spec.delivery != EXACTLY_ONCE:  # there an aborted one does not count
            life.base = says.offset
        claims = {work.record.offset for work in item.claims}
        must = self._must_hold(life, claims)
        # Also what the log has no more: it was fetched, and is ours to handle.
        for offset in source.alive if source.alive >= life.polled else source.alive | life.polled:
            if offset in says and offset not in life.known and offset not in must:
                early = relieving.is_early(life, offset)
                if (offset in life.marked or offset in life.given_up) and not early:
                    continue  # its batch waits for other marks
                raise Violation("S2", f"{tp}@{offset} is committed as done and is not")
        self._complete(life, item, says, must | claims)
        whole = bool(self.map_chars_kept == 4096 and not life.partition.memory.barred)
        remembering.check_rider(life, item, says, self.now(), room=whole)
        life.uncovered_since, life.uncovered = None, 0
        self.planned_at[life.member] = self.now()

    def _must_hold(self, life: Life, claims: set[int]) -> set[int]:
        """Everything of the epoch that the commit must (and alone may) say is done."""
        if life.spec.delivery == AT_MOST_ONCE:
            life.marked |= claims
            again = claims & life.started
            require(not again, "S5", f"{life.source.tp}: {again} are marked after their start")
            return life.started | claims
        if life.spec.delivery == EXACTLY_ONCE:
            early = claims - life.claimable - life.given_up
            require(not early, "S8", f"{life.source.tp}: {early} in a transaction, not handled")
            return life.finished | claims
        return life.finished | life.claimable

    def _complete(self, life: Life, item: fx.PlanItem, says: Claimed, must: set[int]) -> None:
        lost = [offset for offset in must if offset not in says]
        if not lost:
            return
        tp, top = life.source.tp, max(must)
        if life.spec.delivery != AT_LEAST_ONCE:
            raise Violation("S5", f"{tp}: the commit at {says.offset} forgets {lost}")
        there = life.source.alive | life.polled
        holes = [o for o in range(says.offset, top) if o in there and o not in must]
        whole = measure(says.offset, top, [o for o in holes if o not in life.known])
        if whole <= item.partition.commit.map_limit:
            raise Violation("S5", f"{tp}: the commit at {says.offset} forgets {lost} of {must}")
        if self.map_chars_kept and item.partition.commit.map_limit >= self.map_chars_kept:
            # What was allowed to start must fit once it is done, in whatever order it ends.
            raise Violation("S4", f"{tp}: the map has no room for {len(lost)} finished records")
        self.stats["maps_cut"] += 1

    def stored(self, item: fx.PlanItem, owner: str | None) -> None:
        """The broker has stored it; `owner`: the process that has the partition now."""
        life = self.lives.get(item.partition)
        if life is None:
            return
        tp = life.source.tp
        if owner is not None and owner != life.member:
            began = any(
                other.member == owner and other.source.tp == tp and other.state != "closed"
                for other in self.lives.values()
            )
            require(not began, "S7", f"{tp}: {life.member} commits over {owner}")
        says = Claimed(item.frontier, item.metadata)
        for offset in [o for o in life.given_up if o in says]:
            life.source.finished.add(offset)
            life.passed.add(offset)
        if life.spec.delivery == EXACTLY_ONCE:
            life.base = says.offset
            for work in item.claims:
                offset = work.record.offset
                self._finish(life, offset)
                if work.outputs is not None:
                    self.outputs_due.add((tp, offset))
        elif life.spec.commit_each:
            for offset in [o for o in life.claimable if o in says]:
                self._finish(life, offset)

    def heard(self, partition: Partition, now: float, *, stored: bool) -> None:
        """The member has the broker's answer; what is not committed yet must be soon."""
        life = self.lives.get(partition)
        if life is not None and (not stored or life.uncovered_since is not None):
            life.uncovered_since = now

    def clean(self, partition: Partition, held: Claimed) -> None:
        """The epoch ended and the broker stored all: nothing that was finished may repeat."""
        life = self.lives[partition]
        lost = [offset for offset in life.finished if offset not in held]
        if lost:
            raise Violation("S6", f"{life.source.tp}: {lost} repeat after a clean end")

    def refused(self, work: Work, now: float, *, alone: bool) -> None:
        """exactly_once: the broker does not take an output of this record."""
        life, offset = self.lives[work.partition], work.record.offset
        if life.state == "closed":
            return
        life.refused.add(offset)
        self.refused_ever[life.source.tp].add(offset)
        life.claimable.discard(offset)
        if offset in life.dead_letters:
            life.dead_letters.remove(offset)
            life.given_up.discard(offset)
            life.passed.add(offset)  # its lane has gone on
            relieving.refused(life, offset, now)
            remembering.park(life, offset, now, life.give_up_at.get(offset))
        else:
            self.failed(life, work, now, final=False, delay_s=None, alone=alone)
