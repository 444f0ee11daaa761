"""The simulated runtime: one engine, its effects, and those without a response yet."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from perkey.core import effects as fx
from perkey.core.commits import Found, Start, resolve
from perkey.core.engine import Engine
from perkey.core.events import AT_MOST_ONCE, Assignment, Command, Steering
from perkey.core.partition import Partition
from perkey.core.retries import LOG_LINE
from perkey.core.scheduling import Handler
from perkey.core.work import Work
from perkey.testing.memory import Log, OffsetAndMetadata, UnstableOffset
from perkey.types import TopicPartition
from simulators.core import away, budgeted, relieving
from simulators.core.ledger import Claimed
from simulators.core.remembering import UNIX_S, answered
from simulators.core.stage import GROUP, Stage
from simulators.core.steered import calls_max, check_not_paused, timeout_s
from simulators.core.violation import Violation, require

OUTPUT_BYTES = 300  # what each record's outputs weigh


class Call:
    """One handler call that runs."""

    __slots__ = (
        "batch", "begun_at", "call", "cancelled", "first", "handler", "stuck", "timed", "works",
    )  # fmt: skip

    def __init__(self, handler: int, works: list[Work], *, batch: bool) -> None:
        self.handler = handler
        self.works = works
        self.first = works[0]
        #: what the engine calls it
        self.call = works[0].call
        self.batch = batch
        self.cancelled = False
        self.stuck = False
        #: it has a time-out, since it began or in place of the one that it had
        self.timed = False
        #: None while it waits in front of its handler: for a worker process, for its prefetch
        self.begun_at: float | None = None


class Request:
    """One commit on its way to the broker."""

    __slots__ = ("effect", "generation", "given_up")

    def __init__(self, effect: fx.CommitOffsets, generation: int) -> None:
        self.effect = effect
        self.generation = generation
        #: the engine has read back what the broker holds and sends another one
        self.given_up: set[Partition] = set()


class Exchange:
    """One transaction on its way: 0 nothing sent, 1 outputs written, 2 offsets sent."""

    __slots__ = ("effect", "generation", "phase")

    def __init__(self, effect: fx.Transact, generation: int) -> None:
        self.effect = effect
        self.generation = generation
        self.phase = 0


class Member:
    """One process in the group."""

    def __init__(self, world: Stage, slot: int, run: int) -> None:
        self.world = world
        self.oracle = world.oracle
        self.slot = slot
        #: the process; `id` is what the coordinator calls it, new after every expulsion
        self.name = f"m{slot}-{run}"
        self.id = self.name
        self.engine = Engine(world.setup.specs, world.setup.limits, lambda _: OUTPUT_BYTES)
        self.engine.report_results(on=run % 2 == 0)
        self.parts: dict[TopicPartition, Partition] = {}
        self.positions: dict[TopicPartition, int] = {}
        self.paused: set[Partition] = set()
        self.calls: list[Call] = []
        self.sends: list[tuple[Work, Any]] = []
        #: functions as `on_exhausted` that were called and have not returned
        self.questions: list[fx.AskExhausted] = []
        #: of these, those that the broker answers for later -> when
        self.late: dict[Work, float] = {}
        #: what is to be read from the log again
        self.refetches: list[fx.Refetch] = []
        self.requests: list[Request] = []
        self.late_answers: list[list[Any]] = []
        #: commands without an answer
        self.unanswered: list[Command] = []
        self.reads: list[list[Partition]] = []
        self.exchange: Exchange | None = None
        self.producer = world.broker.init_producer(f"{GROUP}-{slot}")
        #: assigned, and where to start is not known yet
        self.pending: list[TopicPartition] = []
        self.revoking: tuple[TopicPartition, ...] = ()
        self.stop_at: float | None = None
        self.drained = False
        self._waits = random.Random(self.name)
        self.fatal = ""
        self.user_paused = False
        #: what commands have in force
        self.steering = Steering()
        #: at_most_once: how many calls were ever set at once; what was marked then may start later
        self.calls_most = 0
        #: of handlers: calls that are granted ahead now, where that was changed
        self.ahead: dict[int, int] = {}
        self.held = False
        #: when something that kept records from starting was last taken away
        self.freed_at = 0.0
        self.budgets = budgeted.purses_of(self)
        self.join()

    def join(self) -> None:
        """Subscribe."""
        setup = self.world.setup
        topics = {setup.topic(index) for index in range(len(setup.specs))}
        self.world.broker.join(GROUP, self.id, topics)

    def rejoin(self, number: int) -> None:
        """The coordinator threw it out: the client comes back under a new id by itself."""
        self.id = f"{self.name}-{number}"
        self.revoking = ()
        self.pending = []
        self.join()

    @property
    def generation(self) -> int:
        """What a commit sent now would carry."""
        member = self.world.broker.group(GROUP).members.get(self.id)
        return -1 if member is None else member.generation

    # -- effects -----------------------------------------------------------------------------------

    def perform(self) -> None:
        """Do, or put down to be done, all that the engine asks for."""
        for effect in self.engine.take_effects():
            self.world.trace_effect(self.name, effect)
            getattr(self, _DOES[type(effect)])(effect)

    def _start(self, effect: fx.Start) -> None:
        if effect.together:
            self._start_batch(effect)
            return
        for work in effect.works:
            self._begin(effect.handler, [work], batch=False)

    def _start_batch(self, effect: fx.Start) -> None:
        spec = self.world.setup.specs[effect.handler].batch
        assert spec is not None
        require(0 < len(effect.works) <= spec.max_records, "S3", f"a batch of {len(effect.works)}")
        parts = {(w.partition, w.record.key if spec.by == "key" else None) for w in effect.works}
        mixed = spec.by is not None and len(parts) > 1
        require(not mixed, "structure", f"a batch by {spec.by} is of {parts}")
        self._begin(effect.handler, list(effect.works), batch=True)

    def _begin(self, handler: int, works: list[Work], *, batch: bool) -> None:
        call = Call(handler, works, batch=batch)
        call.timed = timeout_s(self, handler) is not None
        if self._waits.random() >= self.world.odds.waits:
            call.begun_at = self.world.now
        bare = [work for work in works if work.record.value is None]
        require(not bare, "S1", f"{bare} start without their values")
        self.oracle.starting(works, call, self.world.now, self.world.held)
        self.calls.append(call)
        open_calls = sum(call.handler == handler for call in self.calls)
        require(open_calls <= calls_max(self, handler), "S9", f"{open_calls} calls at once")
        check_not_paused(self, works)
        away.begins(self, works)
        budgeted.begins(self, works)

    def time_out(self) -> None:
        """End calls past their time-out, as executors do; the run, if they keep every slot."""
        for call in self.calls:
            limit_s = self.engine.handlers[call.handler].timeout_s
            if limit_s is None or not call.timed or call.begun_at is None or call.cancelled:
                continue
            if self.world.now >= call.begun_at + limit_s - 1e-6:
                call.cancelled = True
                self.oracle.stats["cancelled"] += 1
        for handler in self.engine.handlers:
            if self._hangs(handler):
                self.engine.fail(self.world.now, f"handler {handler.name}: all slots are overdue")

    def _send(self, effect: fx.Send) -> None:
        self.oracle.sending(effect.work, dead_letter=False)
        self.sends.append((effect.work, effect.outputs))

    def _send_dead_letter(self, effect: fx.SendDeadLetter) -> None:
        self.oracle.sending(effect.work, dead_letter=True)
        self.sends.append((effect.work, None))

    def _ask(self, effect: fx.AskExhausted) -> None:
        life, offset = self.oracle.lives[effect.work.partition], effect.work.record.offset
        known = life.state == "closed" or offset in life.asked
        require(known, "S12", f"{effect.work!r} is asked for and not exhausted")
        life.asked[offset] = effect.number
        self.questions.append(effect)

    def _commit(self, effect: fx.CommitOffsets) -> None:
        waiting = {
            item.partition
            for request in self.requests
            for item in request.effect.items
            if item.partition not in request.given_up
        }
        for item in effect.items:
            if item.partition in waiting:
                raise Violation("S2", f"{item.partition!r} has two commits sent")
            self.oracle.planned(item)
        self.requests.append(Request(effect, self.generation))

    def held_outputs_bytes(self) -> int:
        """Outputs that the process has in memory."""
        pending = {
            work
            for partition in self.parts.values()
            for work in partition.commit.claims
            if work.outputs is not None and not isinstance(work.outputs, fx.SendDeadLetter)
        }
        return OUTPUT_BYTES * len(pending)

    def _transact(self, effect: fx.Transact) -> None:
        require(self.exchange is None, "S8", "two transactions at once")
        for item in effect.items:
            self.oracle.planned(item, transaction=True)
        self.exchange = Exchange(effect, self.generation)

    def _read(self, effect: fx.ReadCommitted) -> None:
        self.reads.append(effect.partitions)

    def _pause(self, effect: fx.PauseIntake) -> None:
        self.paused.update(effect.partitions)
        self.oracle.stats["intake paused"] += 1

    def _resume(self, effect: fx.ResumeIntake) -> None:
        self.paused.difference_update(effect.partitions)

    def _refetch(self, effect: fx.Refetch) -> None:
        life = self.oracle.lives[effect.partition]
        waiting = [one for one in self.refetches if one.partition is effect.partition]
        require(not waiting, "S9", f"{effect.partition!r} asks for more while it waits")
        known = (life.polled | life.gone).issuperset(effect.offsets)
        require(known, "structure", f"{effect} asks for what was never here")
        require(
            not life.finished.intersection(effect.offsets), "S4", f"{effect} asks for what is done"
        )
        self.oracle.stats["fetched again"] += len(effect.offsets)
        self.refetches.append(effect)

    def _finished(self, effect: fx.Finished) -> None:
        life = self.oracle.lives.get(effect.work.partition)
        if life is not None and effect.outcome == "done" and life.state != "closed":
            offset = effect.work.record.offset
            again = life.given_up  # skipped, and handled again since
            if offset not in life.passed and offset not in life.known and offset not in again:
                raise Violation("S1", f"{effect.work!r} is reported done and is not")

    def _committed(self, effect: fx.CommitsStored) -> None:
        for done in effect.committed:
            tp = (done.topic, done.partition)
            if tp in self.parts and self.oracle.former(self.parts[tp]):
                continue  # its topic, and what was committed for it, is gone
            held = self.world.broker.group(GROUP).committed.get(tp)
            behind = held is None or held.offset < done.frontier
            # at_most_once takes marks back, so there the broker may hold less by now.
            if behind and self.world.oracle.sources[tp].spec.delivery != AT_MOST_ONCE:
                raise Violation("S2", f"{tp}: {done} is told as committed, the broker has {held}")

    def _answered(self, effect: fx.Answered) -> None:
        self.oracle.stats[f"answered {effect.command.action}"] += 1
        for row in effect.rows:
            self.oracle.stats[f"outcome {row.outcome}"] += 1
            part = self.parts.get((row.topic, row.partition))
            life = None if part is None else self.oracle.lives.get(part)
            if life is not None and life.state != "closed":
                answered(life, row, self.world.now, effect.command.id)
        self.unanswered = [one for one in self.unanswered if one is not effect.command]

    def _nothing(self, effect: fx.Troubled) -> None:
        """Nothing follows from it."""

    def _note(self, effect: fx.Note) -> None:
        if effect.event == LOG_LINE:
            self.oracle.stats[f"given up by {effect.fields['because']}"] += 1
            part = self.parts[effect.fields["topic"], effect.fields["partition"]]
            relieving.noted(self.oracle.lives[part], effect, self.world.now)

    def _drained(self, effect: fx.Drained) -> None:
        self.drained = True

    def _fatal(self, effect: fx.Fatal) -> None:
        self.fatal = effect.reason
        self.oracle.stats["fatal"] += 1

    def _hangs(self, handler: Handler) -> bool:
        """Every slot of it has been overdue for ten time-outs."""
        limit_s, now = handler.timeout_s, self.world.now
        if limit_s is None:
            return False
        begun = [call.begun_at for call in self.calls if call.handler == handler.index]
        long = [at for at in begun if at is not None and now - at >= 11 * limit_s]
        return len(long) >= handler.calls_max

    # -- partitions --------------------------------------------------------------------------------

    def begin(self, tp: TopicPartition) -> bool:
        """Find where an assigned partition starts; False while that cannot be known."""
        broker, log = self.world.broker, self.world.broker.logs[tp]
        try:
            held = broker.committed(GROUP, tp)
        except UnstableOffset:
            return False
        found = Found(
            None if held is None else held.offset,
            "" if held is None else held.metadata,
            log.start,
            self.log_end(log),
            log.start,
        )
        start = resolve(found, "stop")
        require(isinstance(start, Start), "S1", f"{tp}: {start}")
        assert isinstance(start, Start)
        assignment = Assignment(
            tp[0],
            tp[1],
            int(tp[0][1:]),
            start.offset,
            start.restored_top,
            start.restored_not_done,
            start.commit_start,
            remembered=start.remembered,
            unix_s=UNIX_S + self.world.now,
        )
        self.world.tell(f"{self.id} begins {assignment}")
        (partition,) = self.engine.assigned(self.world.now, [assignment])
        self.oracle.opened(self.name, partition, held, self.world.now)
        self.parts[tp] = partition
        self.positions[tp] = start.offset
        budgeted.known(self)
        self.perform()
        return True

    def log_end(self, log: Log) -> int:
        """The high watermark: what is committed may lie past the last stable offset."""
        return log.end

    def begin_pending(self, may: Callable[[], bool]) -> None:
        """Find each assigned partition's start; where that fails (`may`) it is asked again."""
        self.pending = [tp for tp in self.pending if not may() or not self.begin(tp)]

    def begin_again(self) -> bool:
        """What belongs to a topic that was made again since begins anew; True where any did."""
        former = [tp for tp, part in self.parts.items() if self.oracle.former(part)]
        for tp in former:
            self.world.tell(f"{self.id} begins {tp} anew: its topic was made again")
            self.oracle.closed([self.parts[tp]], clean=False)
            self.paused.discard(self.parts[tp])
            self.begin(tp)  # the engine itself ends the epoch that is open
        return bool(former)

    def overtaken(self, tp: TopicPartition) -> None:
        """The log starts past our position: it goes on there, in the same epoch."""
        start = self.world.broker.logs[tp].start
        self.world.tell(f"{self.id} goes on at {start} of {tp}")
        self.oracle.stats["out of range"] += 1
        self.positions[tp] = start
        self.engine.reached(self.world.now, [(self.parts[tp], start)])
        self.perform()

    def close(self, tps: Sequence[TopicPartition], *, lost: bool, clean: bool) -> None:
        """These epochs end; handlers that still run are left alone."""
        partitions = [self.parts.pop(tp) for tp in tps if tp in self.parts]
        self.pending = [tp for tp in self.pending if tp not in tps]
        self.paused.difference_update(partitions)
        self.oracle.closed(partitions, clean=clean)
        budgeted.divide(self)
        self.engine.closed(self.world.now, partitions, lost=lost)
        self.perform()

    def last_commit(self, tps: Sequence[TopicPartition]) -> fx.CommitOffsets:
        """The final commit of epochs about to end."""
        partitions = [self.parts[tp] for tp in tps if tp in self.parts]
        effect = self.engine.last_commit(self.world.now, partitions)
        self.world.trace_effect(self.name, effect)
        for item in effect.items:
            self.oracle.planned(item)
        return effect

    def check_clean(self, tps: Sequence[TopicPartition]) -> None:
        """S6: after a clean end the broker knows of everything that was finished."""
        setup = self.world.setup
        if setup.limits.map_chars == 4096 and setup.broker_chars == 4096:
            for tp in tps:
                if tp in self.parts and not self.oracle.former(self.parts[tp]):
                    self.oracle.clean(self.parts[tp], self.world.held_of(tp))

    def excuse_marks(self, items: Sequence[fx.PlanItem]) -> None:
        """at_most_once: nothing that never started may be in a last commit."""
        for item in items:
            life = self.oracle.lives[item.partition]
            if life.spec.delivery == AT_MOST_ONCE:
                says = Claimed(item.frontier, item.metadata)
                # A mark that was withdrawn, and then its record was skipped by a command: it is
                # done, and answered as such.
                missed = [o for o in life.marked - life.started - life.given_up if o in says]
                require(not missed, "S5", f"{life.source.tp}: {missed} are given up at a clean end")

    def store(self, items: Sequence[fx.PlanItem], generation: int) -> dict[TopicPartition, str]:
        """Let the broker have these now; its error for each partition."""
        group = self.world.broker.group(GROUP)
        former = {
            (item.partition.topic, item.partition.number): "UNKNOWN_TOPIC_ID"
            for item in items
            if item.partition in self.oracle.lives and self.oracle.former(item.partition)
        }
        items = [i for i in items if (i.partition.topic, i.partition.number) not in former]
        offsets = {
            (item.partition.topic, item.partition.number): OffsetAndMetadata(
                item.frontier, item.metadata
            )
            for item in items
        }
        answers = group.commit(self.id, generation, offsets)
        for item in items:
            tp = (item.partition.topic, item.partition.number)
            if not answers[tp]:
                self.oracle.stored(item, self.world.owner(tp))
        return former | answers

    def running(self, tps: Sequence[TopicPartition]) -> bool:
        """Some handler still works on records of these partitions."""
        return any(
            (work.record.topic, work.record.partition) in tps
            for call in self.calls
            for work in call.works
        )


_DOES: dict[type[Any], str] = {
    fx.Start: "_start",
    fx.Send: "_send",
    fx.SendDeadLetter: "_send_dead_letter",
    fx.AskExhausted: "_ask",
    fx.CommitOffsets: "_commit",
    fx.Transact: "_transact",
    fx.ReadCommitted: "_read",
    fx.PauseIntake: "_pause",
    fx.ResumeIntake: "_resume",
    fx.Refetch: "_refetch",
    fx.Finished: "_finished",
    fx.CommitsStored: "_committed",
    fx.Answered: "_answered",
    fx.Note: "_note",
    fx.Troubled: "_nothing",
    fx.Drained: "_drained",
    fx.Fatal: "_fatal",
}
