"""The checks: the handlers' side compared with the broker's side, trusting nothing between.

S1 to S8 as far as they can be seen from there, for one topic with one handler. What crosses the
engine's border (each granted call ends exactly once) is in `taps`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from itertools import count

from perkey.kafka.ports import OutMessage, Polled
from perkey.policies import Park, Skip
from perkey.types import Record, TopicPartition
from simulators.runtime.commits import CommitOracle
from simulators.runtime.life import Call, Claimed, Life, Place, of_dead_letter
from simulators.runtime.setup import DEAD, OUTPUT
from simulators.runtime.stage import Stage

NEARLY = 0.8  # of a time-out: from here on an attempt may count as late
LOOKED_S = 0.001  # from a thread's look at its record's epoch to the call, other threads between


class Oracle(CommitOracle):
    """The external ledger."""

    def __init__(self, world: Stage) -> None:
        super().__init__(world)
        self.calls: dict[int, Call] = {}
        #: call -> how many outputs it returned, for any of its records
        self._returned: defaultdict[int, int] = defaultdict(int)
        #: by member, partition and offset: a time-out counts from here
        self.granted_at: dict[tuple[str, int, int], float] = {}
        #: granted, and the engine has not heard how it ended; an epoch may overlap the last one
        self._out: Counter[tuple[str, int, int]] = Counter()
        #: what the group held when the consumer was given the partition
        self._given: dict[tuple[str, int], Claimed] = {}
        self._numbers = count(1)
        #: when a member gave something away for the last time
        self.left_at: dict[str, float] = {}
        #: granted and not begun, in that order
        self._in_turn: dict[tuple[str, int, int], None] = {}
        #: granted, and a handler was called for it
        self._called: set[tuple[str, int, int]] = set()
        #: the output that was stored last, by lane: (offset, call, number)
        self._last_out: dict[tuple[int, Hashable], tuple[int, int, int]] = {}

    # -- the topic ---------------------------------------------------------------------------------

    def written(self, partition: int, offset: int, key: bytes | None) -> None:
        """A record is in the log."""
        lane: Hashable = key
        if self.setup.ordering == "partition":
            lane = "*"
        elif self.setup.ordering == "unordered" or key is None:
            lane = offset
        self.sources[partition].add(offset, lane, self.world.sim.now)

    def fetched(self, polled: Polled) -> None:
        """A member has these now."""
        for _, number, records, _ in polled.batches:
            now = dict.fromkeys([record.offset for record in records], self.world.sim.now)
            self.sources[number].fetched_at.update(now)

    # -- epochs ------------------------------------------------------------------------------------

    def assigned(self, member: str, partitions: Sequence[TopicPartition]) -> None:
        """The consumer is given these."""
        self.world.sim.note(f"{member} assigned {partitions}")
        for _, number in partitions:
            self._given[member, number] = self.sources[number].held

    def given_up(self, member: str, partitions: Sequence[TopicPartition]) -> None:
        """The revoke callback has returned."""
        self.left_at[member] = self.world.sim.now
        self.world.sim.note(f"{member} gave up {partitions}")
        for _, number in partitions:
            life = self.lives.get((member, number))
            life = None if self.world.is_dead(member) else life
            if life is not None and life.state != "closed" and not self.world.has_failed(member):
                self.broken("S7", f"{member} gave {number} away and goes on with it")

    def taken_away(self, member: str, partitions: Sequence[TopicPartition]) -> None:
        """The group has thrown the member out."""
        self.world.sim.note(f"{member} lost {partitions}")
        self.stats["lost"] += len(partitions)

    def opened(self, member: str, partition: int) -> None:
        """The engine has an epoch."""
        source = self.sources[partition]
        known = self._given.pop((member, partition), Claimed())
        life = Life(member, partition, source, known, self.world.sim.now)
        self.lives[member, partition] = life
        self.stats["epochs"] += 1

    def revoking(self, member: str, partitions: Sequence[int]) -> None:
        """Nothing new of these may begin."""
        for number in partitions:
            life = self.lives[member, number]
            life.state, life.revoking_at = "revoking", self.world.sim.now
            life.undisturbed = self.world.undisturbed(member)
            life.stopping = self.world.is_stopping(member)

    def closed(self, member: str, partitions: Sequence[int], *, lost: bool) -> None:
        """These epochs have ended."""
        for number in partitions:
            life = self.lives[member, number]
            calm = life.undisturbed and self.world.undisturbed(member)
            if not lost and life.state == "revoking" and calm:
                self._was_clean(life)
            life.state, life.lost, life.closed_at = "closed", lost, self.world.sim.now

    def _was_clean(self, life: Life) -> None:
        """S4, S6: with time left, nothing that ended well is handled again."""
        setup = self.setup
        waited = self.world.sim.now - life.revoking_at
        if setup.delivery == "at_most_once":
            return
        if not life.stopping and waited >= NEARLY * setup.revoke_timeout_s:
            return  # time was up
        again = {
            offset
            for offset in life.handled - life.unsure
            if offset not in life.source.held and not life.failures[offset]
        }
        if again:
            self.broken("S6", f"{life.member} gave {life.partition} away without {sorted(again)}")
        if life.running and not life.stopping:
            self.broken("S6", f"{life.member} gave {life.partition} away while calls ran")

    # -- calls -------------------------------------------------------------------------------------

    def begin(self, member: str, records: Sequence[Record]) -> Call:
        """A handler is called."""
        places = [(record.partition, record.offset) for record in records]
        lives = {number: self.lives.get((member, number)) for number, _ in places}
        self.world.sim.note(f"{member} calls {places} attempt {records[0].attempt}")
        self.stats["calls"] += 1
        known = {number: life for number, life in lives.items() if life is not None}
        now, number = self.world.sim.now, next(self._numbers)
        call = Call(number, member, places, known, now, set(places), self.world.sim.running)
        self.calls[call.number] = call
        for number, offset in places:
            life = lives[number]
            if life is None:
                self.broken("S7", f"{member} calls {number}@{offset} and never had it")
                continue
            self._may_begin(life, offset, call)
            self._takes_its_turn(life, offset)
            life.running[life.source.lane_of[offset]] = call
            life.source.begun.add(offset)
            self._called.add((member, number, offset))
        return call

    def granted(self, place: tuple[str, int, int]) -> None:
        """The engine asks for a call."""
        self.granted_at[place] = self.world.sim.now
        self._called.discard(place)
        self._out[place] += 1
        self._in_turn[place] = None

    def has_begun(self, place: tuple[str, int, int]) -> bool:
        """Whether its handler was called since it was granted."""
        return place in self._called

    def returned(self, place: tuple[str, int, int]) -> None:
        """The engine has heard how it ended."""
        self._out[place] -= 1
        self._in_turn.pop(place, None)
        life = self.lives.get(place[:2])
        if life is not None and self._timed_out_before(place):
            life.failures[place[2]] += 1
            life.unsure.add(place[2])
            self._perhaps_exhausted(life, place[2])

    def _timed_out_before(self, place: tuple[str, int, int]) -> bool:
        """Its time was over before its handler was called: an attempt that no call shows."""
        limit_s = self.setup.timeout_s
        if self.setup.prefetch is None or limit_s is None or place in self._called:
            return False
        return self.world.sim.now - self.granted_at[place] > NEARLY * limit_s

    def _takes_its_turn(self, life: Life, offset: int) -> None:
        """S3: one worker alone begins what it is given in the order in which it was granted."""
        setup, member = self.setup, life.member
        place = (member, life.partition, offset)
        if setup.kind != "processes" or setup.concurrency > 1 or setup.prefetch is not None:
            return
        for one in self._in_turn:
            if one == place:
                break
            other = self.lives.get(one[:2])
            ours = one[0] == member and other is not None and other.state == "open"
            if ours and not self.world.is_stopping(member):
                self.broken("S3", f"{place} begins before {one}, which was granted earlier")
        self._in_turn.pop(place, None)

    def _may_begin(self, life: Life, offset: int, call: Call) -> None:
        source, once = life.source, self.setup.delivery == "at_most_once"
        where = f"{life.member} calls {life.partition}@{offset}"
        lane = source.lane_of[offset]
        late = life.state == "closed" or (life.state == "revoking" and not once)
        # What is in the pipe to a worker may begin before the word of the loss is there.
        in_pipe = self.setup.kind == "processes" and (life.lost or life.state == "revoking")
        # A thread that has looked at the epoch calls in a moment, and a loss waits for none.
        looked = life.lost and self.world.sim.now - life.closed_at <= LOOKED_S
        if late and not in_pipe and not looked:
            self.broken("S7", f"{where} when its epoch is {life.state}")
        if offset in life.known and not once:
            self.broken("S4", f"{where}, which the group holds as done")
        if offset in life.handled and not life.failures[offset] and offset not in life.unsure:
            self.broken("S4", f"{where} again")
        if life.running.get(lane, call) is not call:
            self.broken("S3", f"{where} while its lane runs")
        for earlier in source.lanes[lane]:
            mate = (life.partition, earlier) in call.open
            if earlier >= offset or not (
                earlier in life.passed or earlier in life.known or earlier in life.unsure or mate
            ):
                if earlier < offset:
                    self.broken("S3", f"{where} before {earlier}")
                break
        early = life.again_at.get(offset, (0.0, 0.0))[0]
        if self.world.sim.now < early - 1e-6:
            self.broken(
                "S3", f"{where} {early - self.world.sim.now:.4f} s before its delay is over"
            )
        if once and offset not in source.held:
            self.broken("S5", f"{where} before its mark is stored")
        if once and offset in source.begun:
            self.broken("S5", f"{where} a second time")

    def handled(self, call: Call, place: Place, outputs: int) -> None:
        """The record is done, as far as the handler goes; so many outputs were returned."""
        life = self._left(call, place)
        if life is None:
            return
        life.handled.add(place[1])
        life.failures[place[1]] *= self._was_late(call, place)
        life.again_at.pop(place[1], None)
        if self._was_late(call, place):
            life.unsure.add(place[1])
            life.late[place[1]] += 1
            self._perhaps_exhausted(life, place[1])
        else:
            life.unsure.discard(place[1])
            life.late.pop(place[1], None)
        if outputs:
            self._returned[call.number] = outputs
            call.outputs[place] = list(range(outputs))
        else:
            life.source.finished.add(place[1])
        if not outputs or self.setup.transactional:
            life.passed[place[1]] = self.world.sim.now

    def cut_off(self, tasks: Sequence[object]) -> None:
        """The processes of these threads were killed, with the calls that ran there."""
        for call in [call for call in self.calls.values() if call.open and call.task in tasks]:
            for place in list(call.open):
                self.failed(call, place, counts=False)
                life = call.lives.get(place[0])
                if life is not None:  # its second death ends the record, whoever had it before
                    self._perhaps_exhausted(life, place[1], at_once=True)
        for call in [call for call in self.calls.values() if call.task in tasks]:
            for number, offset in call.places:  # what has ended, and nobody was told
                if self._out[call.member, number, offset] and number in call.lives:
                    call.lives[number].unsure.add(offset)

    def perhaps_handled(self, call: Call, place: Place) -> None:
        """Acknowledged when the handler had left it: that may count until the engine hears so.

        The handler's thread may rest, however long, between its return and the end of the call.
        """
        life, ours = call.lives[place[0]], (call.member, *place)
        again = self.granted_at[ours] > call.began  # to another call
        if self._out[ours] and not again and not self._is_over(life):
            life.unsure.add(place[1])
            life.source.finished.add(place[1])

    def shared(self, call: Call) -> None:
        """The outputs of a batch are all its records': none is done before they are stored."""
        for number, offset in call.places[1:]:
            life = call.lives[number]
            if self._is_over(life):
                continue  # it counts for nothing; another member may have finished the record
            life.source.finished.discard(offset)
            if not self.setup.transactional:
                life.passed.pop(offset, None)

    def _was_late(self, call: Call, place: Place) -> bool:
        limit_s = self.setup.timeout_s
        granted = self.granted_at.get((call.member, *place), call.began)
        return limit_s is not None and self.world.sim.now - granted > NEARLY * limit_s

    def failed(self, call: Call, place: Place, *, counts: bool = True) -> None:
        """The handler raised; or was cancelled, and then it does not count."""
        life = self._left(call, place)
        if life is None:
            return
        offset = place[1]
        life.handled.discard(offset)
        life.failures[offset] += 1
        if self._was_late(call, place) or not counts or self.setup.batch is not None:
            life.unsure.add(offset)
            self._perhaps_exhausted(life, offset)
            return
        retry, now = self.setup.retry, self.world.sim.now
        assert retry.attempts is not None
        assert not callable(retry.delay_s)
        if life.failures[offset] >= retry.attempts:
            self._exhausted(life, offset)
        elif offset not in life.unsure:
            delay = retry.delay_s * retry.multiplier ** (life.failures[offset] - 1)
            spread = retry.jitter * delay
            life.again_at[offset] = (now + delay - spread, now + delay + spread)

    def _perhaps_exhausted(self, life: Life, offset: int, *, at_once: bool = False) -> None:
        """How attempts count that timed out, or failed with their batch, is not known here."""
        if isinstance(self.setup.on_exhausted, Skip):
            life.source.skipped.add(offset)
        elif isinstance(self.setup.on_exhausted, Park):
            attempts = life.failures[offset] + life.late[offset]
            assert self.setup.retry.attempts is not None
            all_spent = attempts >= self.setup.retry.attempts
            if at_once or all_spent or life.failures[offset] >= 2:
                life.source.parked.add(offset)
        elif self.setup.transactional:
            life.passed.setdefault(offset, self.world.sim.now)

    def _exhausted(self, life: Life, offset: int) -> None:
        life.again_at.pop(offset, None)
        life.exhausted.add(offset)
        policy = self.setup.on_exhausted
        if isinstance(policy, Skip):
            life.passed[offset] = self.world.sim.now
            life.source.skipped.add(offset)
        elif isinstance(policy, Park):
            life.source.parked.add(offset)
        elif self.setup.transactional:  # its dead letter goes with the next transaction
            life.passed[offset] = self.world.sim.now

    def _left(self, call: Call, place: Place) -> Life | None:
        """The handler has let go of it; None when the epoch is over."""
        call.open.discard(place)
        call.ended = self.world.sim.now
        life = call.lives.get(place[0])
        if life is None:
            return None
        lane = life.source.lane_of[place[1]]
        if life.running.get(lane) is call and not any(
            number == place[0] and life.source.lane_of[offset] == lane
            for number, offset in call.open
        ):
            del life.running[lane]
        return None if self._is_over(life) else life

    def _is_over(self, life: Life) -> bool:
        return life.state == "closed" or self.world.is_dead(life.member)

    # -- what the broker has -----------------------------------------------------------------------

    def produced(self, member: str, message: OutMessage) -> None:
        """An output or a dead letter is in its log."""
        if message.topic == DEAD:
            number, offset = of_dead_letter(message)
            self.sources[number].finished.add(offset)
            life = self.lives.get((member, number))
            if life is not None:
                life.passed.setdefault(offset, self.world.sim.now)
            return
        assert message.topic == OUTPUT
        number, offset, call_number, index = map(int, (message.value or b"").split(b":"))
        call = self.calls[call_number]
        left = call.outputs.get((number, offset), [])
        self._in_lane_order(number, offset, call_number, index)
        if index in left:
            left.remove(index)
        if not left:
            self._stored_all(call, (number, offset))

    def _in_lane_order(self, number: int, offset: int, call: int, index: int) -> None:
        lane = number, self.sources[number].lane_of[offset]
        last = self._last_out.get(lane)
        again = last is not None and last[1] == call and (last[0], last[2]) >= (offset, index)
        if again and not self.setup.transactional:  # an aborted one is sent again as a whole
            self.broken("S3", f"output {index} of {number}@{offset} comes after {last}")
        self._last_out[lane] = (offset, call, index)

    def _stored_all(self, call: Call, place: Place) -> None:
        shared = self.setup.batch is not None and self.setup.batch.ack == "all"
        for number, offset in call.places if shared else [place]:
            life = call.lives[number]
            life.source.finished.add(offset)
            life.passed.setdefault(offset, self.world.sim.now)

    def refused(self, message: OutMessage) -> None:
        """An output was not taken: its record fails an attempt, or is sent again."""
        if message.topic == DEAD:
            number, offset = of_dead_letter(message)
            self.sources[number].parked.add(offset)
            return
        number, offset, call_number, _ = map(int, (message.value or b"").split(b":"))
        call = self.calls[call_number]
        shared = self.setup.batch is not None and self.setup.batch.ack == "all"
        for mate_number, mate in call.places if shared else [(number, offset)]:
            life = call.lives[mate_number]
            life.unsure.add(mate)
            life.failures[mate] += 1
            life.again_at.pop(mate, None)
            self._perhaps_exhausted(life, mate, at_once=True)

    def seen(self, outputs: Sequence[Record]) -> None:
        """S8: what a read_committed reader finds in the end is each result, once."""
        if not self.setup.transactional:
            return
        found = Counter(tuple(map(int, one.value.split(b":"))) for one in outputs)
        by_place: dict[Place, set[int]] = {}
        for number, offset, call, _ in found:
            by_place.setdefault((number, offset), set()).add(call)
        for place, calls in by_place.items():
            whole = all(found[(*place, call, i)] == 1 for call in calls for i in self._due(call))
            if len(calls) > 1 or not whole:
                self.broken("S8", f"outputs of {place} are of calls {calls}: {found}")

    def _due(self, call: int) -> range:
        return range(self._returned[call])
