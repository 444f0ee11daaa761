"""One member of the group: the polling thread, and the execution of the engine's effects.

Only the polling thread polls, pauses and commits. Other threads put requests into its outbox and
wake it; they call only those methods of the consumer that its port marks "any thread". It never
runs a handler, and waits for one only while its partition is being revoked: so the member stays in
its group.
"""

from __future__ import annotations

import logging
from functools import partial
from math import inf

from perkey import guard
from perkey.account.account import Unread
from perkey.core import effects as fx
from perkey.core.engine import Engine
from perkey.core.gates import OUTPUTS
from perkey.errors import ConfigError
from perkey.kafka.clientlog import Sparse
from perkey.kafka.ports import POLL_RECORDS_MAX, KafkaUnavailable, Polled
from perkey.runtime.door import Door
from perkey.runtime.logs import event
from perkey.runtime.member.committing import Committer, MembershipProof
from perkey.runtime.member.group_membership import GroupMembership, PollGaps
from perkey.runtime.member.member_config import MemberConfig
from perkey.runtime.member.outputs import Outputs
from perkey.runtime.member.rebalance import Rebalance, Rejoining
from perkey.runtime.member.refetching import Refetcher
from perkey.runtime.member.run_log import RunLog
from perkey.runtime.member.transactor import Transactor
from perkey.runtime.member.unread import OutOfRange, Watchdog, unread
from perkey.runtime.shared import size_of
from perkey.runtime.tagging import tags_of
from perkey.types import TOPIC_GONE, ErrorInfo, StopMode, TopicPartition

_log = logging.getLogger("perkey")

#: duration of a poll; longer after this many empty ones in a row. New events wake it.
POLL_S, POLL_IDLE_S, QUIET_POLLS = 0.1, 0.3, 20
ROUND_S = 0.005  # the limit while completions wait for it (`Executor.keeps_pace`)
TICK_S = 0.001  # least time between two ticks while something stays due, such as a closing batch
IDLE_S = 0.001  # one wait of intake while the buffers are full
SOFT_WAIT_S = 0.5  # all such waits before partitions are paused; far below max.poll.interval.ms
BUSY_SHARE = 0.95
LEAVE_S = 10.0
LEAVE_LEAST_S = 2.0  # even after a drain used its time: for the last commit
#: a transaction has ten seconds, and its outcome decides where the next member starts
LAST_TRANSACTION_S = 11.0
#: the same for one that is still open when the drain's time is over, and after a stop "now"
LAST_TRANSACTION_LATE_S, LAST_TRANSACTION_NOW_S = 3.0, 1.0
#: how long each client may take to close, also after a stop "now"
CLOSE_S, CLOSE_NOW_S = 2.0, 0.5
ENDS_EVERY_S = 1.0


class Member:
    """Runs from `start` until it has left the group."""

    def __init__(self, config: MemberConfig) -> None:
        """Connects nothing before `start`."""
        #: read by any thread; `drain_timeout_s` may be shortened by a caller
        self.config = config
        #: any thread
        self.now = config.clock.now
        #: any thread, each field as documented there
        self.membership = GroupMembership(self.now, self.fail, self.died)
        # The next four belong to the membership object.
        self.partitions = self.membership.partitions
        self.executors = self.membership.executors
        self.callbacks = self.membership.callbacks
        self.ended = self.membership.ended
        #: called inside the door; others read single fields of it, which may be old by then
        self.engine = Engine([plan.spec for plan in config.plans], config.limits, size_of)
        #: any thread adds lines, the watching thread writes them
        self.run_log = RunLog(on_error=config.on_error, callbacks=self.callbacks)
        #: used inside the door; answers come on the producer's thread. Created here, as a stop may
        #: come before the start: it creates no client before it has to.
        self.outputs = Outputs(
            lambda: config.make_producer(self.outputs_served, self.fail),
            config.group,
            lambda full: self.door.post(lambda engine, now: engine.halt(now, OUTPUTS, on=full)),
        )
        #: created by the thread that starts the member; started inside the door, closed at the end
        self.transactor: Transactor | None = None
        #: any thread plans, the polling thread sends, the background thread reads back
        self.committer = Committer(self.membership)
        #: used by the polling thread
        self.proof = MembershipProof(self.membership, self.committer.plan)
        self.committer.on_answered = self.proof.answered
        #: called inside the door
        self._refetcher = Refetcher(self.membership, config.make_reader)
        #: used inside the door only, like the following field
        self._finished: list[fx.Finished] = []
        self._sparse = Sparse()
        #: any thread
        self.door = self.membership.door = Door(self.engine, self.perform, self.now)
        self.door.wake = self.membership.wake
        self.door.on_earlier = self._wake_for_deadline
        self.door.on_broken = self._broke
        self.door.on_died = self.died
        #: written once, by the first thread that fails, before it stops the engine: why the run
        #: ends without a request
        self.fatal: fx.Fatal | None = None
        #: with it: a new member may not have the same failure; a fleet then starts one
        self.may_restart = False
        #: with it: 2 if the reason is bad input that only the running group could show
        self.exit_code = 1
        #: set once: inside the door by the engine's Drained, or when the run broke; any thread
        #: reads it
        self.leaving = False
        #: set once by the polling thread; read by the watching thread
        self.ending = False
        #: set once by the first thread that requests the end
        self._stopped_at: float | None = None
        #: set once: when a stop "now" was requested, as by a second signal
        self._hurried_at: float | None = None
        #: used by the polling thread; the background thread looks up offsets for the rebalance
        self._rebalance = Rebalance(
            self.membership, config, self.committer, self.proof, self, self.tick_engine
        )
        self._out_of_range = OutOfRange(self.membership, config, self._reread)
        self._watchdog = Watchdog(self.membership, self._out_of_range.held)
        self._rejoining = Rejoining(self.membership, self._lose_all, self._join)
        #: any thread
        self.poll_gaps = PollGaps()
        #: used by the polling thread, like the next two: since when the buffers are full
        self._full_since: float | None = None
        self._ends_at = 0.0
        #: how many polls in a row were empty
        self._quiet_polls = 0
        #: written and read inside the door
        self._next_tick_at = 0.0

    # -- start and end -----------------------------------------------------------------------------

    def start(self) -> None:
        """Join the group and start; returns immediately."""
        config = self.config
        self.membership.consumer = config.make_consumer()
        if config.make_transactor is not None:
            self.transactor = config.make_transactor(self.membership)
        self.executors.extend(config.make_executors(self.door, self.fail))
        guard.thread("perkey-background", self.membership.work_behind, self.died).start()
        guard.thread("perkey-poll", self._run, self.died).start()

    def answers(self, timeout_s: float) -> bool:
        """Whether a broker answers this member's client. Thread-safe."""
        named = ((topic, 0) for topic in self.config.topics if not topic.startswith("^"))
        where = next(iter(list(self.partitions)), None) or next(named, None)  # may have none
        if where is None or self.ended.is_set():
            return False
        try:
            self.membership.consumer.committed([where], timeout_s)
        except KafkaUnavailable:
            return False
        return True

    def stop(self, mode: StopMode) -> None:
        """Request the end. Thread-safe."""
        self._end(mode)
        for executor in self.executors:
            executor.warn(None)
        self.membership.wake()

    def fail(
        self,
        reason: str,
        error: ErrorInfo | None = None,
        exit_code: int = 1,
        *,
        mode: StopMode = "in_flight",
        may_restart: bool = False,
    ) -> None:
        """End with this exit code: finish what runs, commit, leave."""
        if self.fatal is None:
            self.may_restart = may_restart
            self.fatal, self.exit_code = fx.Fatal(reason, error), exit_code
            event("error", "stopping", reason=reason)
        self._end(mode)

    def _end(self, mode: StopMode) -> None:
        if self._stopped_at is None:
            self._stopped_at = self.now()
        if mode == "now" and self._hurried_at is None:
            self._hurried_at = self.now()
        # Posted, not called: this may run inside the door.
        self.door.post(lambda engine, now: engine.stop(now, mode))

    def died(self, thread: str, error: BaseException) -> None:
        """On one of this run's threads that is dying: its work is not done, so the run ends."""
        if isinstance(error, ConfigError):  # the cluster refuses the app: the error names the fix
            self.fail(str(error))
        else:
            guard.log_death(thread, error)
            self.fail(f"thread {thread} died: {type(error).__name__}: {error}", may_restart=True)
        if thread == "perkey-poll":
            self.ended.set()  # it was leaving: no other code reports the end
        self.membership.wake()

    def _broke(self, error: Exception) -> None:
        """Inside the door: the engine has failed. Leave immediately and commit nothing."""
        _log.critical("internal error, please report it with this trace", exc_info=error)
        self.fail(f"internal error: {type(error).__name__}: {error}")
        self.leaving = True
        self.membership.wake()

    @property
    def patient(self) -> bool:
        """Whether a stop still has time left."""
        return self.now() < self._drain_until

    @property
    def hurried(self) -> bool:
        """Whether the caller does not want to wait: a second signal, or a stop "now"."""
        return self._hurried_at is not None

    @property
    def _drain_until(self) -> float:
        """Until when a stop waits for running calls; without end before a stop."""
        return inf if self._stopped_at is None else self._stopped_at + self.config.drain_timeout_s

    def revoke_until(self, began: float) -> float:
        """Until when a revoke waits for what is in flight; a stop can make it earlier meanwhile."""
        if self.leaving:
            return began  # the drain has waited already
        return min(began + self.config.revoke_timeout_s, self._drain_until)

    def last_transaction_until(self, began: float) -> float:
        """Until when to wait for a last transaction; it can become earlier meanwhile."""
        until = min(began + LAST_TRANSACTION_S, self._now_until(began, LAST_TRANSACTION_NOW_S))
        if self.hurried:
            return until
        return min(until, max(began, self._drain_until) + LAST_TRANSACTION_LATE_S)

    def _now_until(self, began: float, wait_s: float) -> float:
        """Until when to wait for what began then, after a stop "now"; without end before that."""
        return inf if self._hurried_at is None else max(began, self._hurried_at) + wait_s

    # -- the polling thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if self.transactor is not None:
                self.transactor.open()
            self.membership.consumer.subscribe(self.config.topics, self._rebalance)
            while not self.leaving:
                self._step()
        except ConfigError as error:
            self.fail(str(error), exit_code=2)
        except Exception as error:
            _log.debug("the polling thread failed", exc_info=True)
            self.fail(f"{type(error).__name__}: {error}", may_restart=True)
        finally:
            self._leave()

    def _step(self) -> None:
        now = self.now()
        hurry = self.membership.waiting or self.committer.waiting
        timeout_s = 0.0 if hurry else min(self._longest_s(), max(0.0, self.door.wakes_at - now))
        for executor in self.executors:
            executor.flush()
        if sum(executor.keeps_pace() for executor in self.executors):  # each is asked
            timeout_s = min(timeout_s, ROUND_S)
            self.door.turn()
        if self._rejoining.waiting:
            self._rejoining.step()
            self.proof.renew()
        elif room := self._wait_for_room():
            polled = self.membership.consumer.poll(timeout_s, room)
            self.proof.renew()
            self.poll_gaps.polled()
            self._watchdog.polled(polled, room)
            self._take(polled)
            # Whether it was empty, and there was nothing else to do.
            looked_for = self._rebalance.waiting or self._out_of_range.held()
            held = any(partition.busy for partition in self.partitions.values())
            busy = polled.batches or looked_for or held or not self.partitions
            self._quiet_polls = 0 if busy else self._quiet_polls + 1
        self.committer.send_planned()
        self.membership.do_waiting()
        after = self.now()
        if after >= self.door.wakes_at:
            self._tick(after)

    def _longest_s(self) -> float:
        """The longest duration of the next poll."""
        return POLL_IDLE_S if self._quiet_polls >= QUIET_POLLS else POLL_S

    def _tick(self, now: float) -> None:
        if now >= self._ends_at:
            self._ends_at = now + ENDS_EVERY_S
            known, asked = self.membership.consumer.log_ends(), self._watchdog.ends
            known |= {tp: max(end, known.get(tp, end)) for tp, end in asked.items()}
            held = self.partitions
            ends = [(held[tp], end) for tp, end in known.items() if tp in held]
            self.door.call(lambda engine, _: engine.log_ends(ends))
        if self.outputs.backed_up:
            self.door.post(lambda _engine, _now: self.outputs.retry_waiting())
        self._rebalance.tick(now)
        self._out_of_range.tick(now)
        self._watchdog.tick(now)
        self.tick_engine(now)
        if not self.leaving and not self.patient:
            # The drain took too long: cancel what can be cancelled, commit what is done.
            every = list(self.partitions.values())
            left = self.door.call(lambda engine, _: engine.running(every))
            kinds = [plan.kind for plan in self.config.plans]
            self.run_log.drain_timed_out(self.config.drain_timeout_s, left, now, kinds)
            for work in left:
                self.executors[work.partition.handler.index].cancel(work)
            self.door.post(lambda engine, now: engine.stop(now, "now"))

    def tick_engine(self, now: float) -> None:
        """Let the engine do what is due. For use inside a rebalance callback too."""
        self.door.call(partial(self._tick_inside, now))

    def _tick_inside(self, began: float, _engine: Engine, now: float) -> None:
        self.door.tick(now)
        # Set inside: an event that comes before we leave may be due earlier, and must not be lost.
        self._next_tick_at = began + TICK_S
        due_at = max(self.door.next_due(), self._next_tick_at)
        self.door.wakes_at = min(due_at, began + self._longest_s())

    def _wait_for_room(self) -> int:
        """How many records to poll for; 0 if it is better to wait first.

        Wait a little for full buffers: pausing a partition discards what librdkafka has fetched of
        it, and after the resume librdkafka may sleep for another second.
        """
        limit = self.config.limits.buffer_records
        every = list(self.partitions.values())
        if self.engine.intake_paused or self.membership.waiting:
            # Partitions that are not paused must be polled. Full polls of many partitions would
            # fill a small budget many times over.
            return self._polled_for(limit - sum([p.healthy for p in every]))
        room = self.engine.room(every)
        if room.share > 1.0 - BUSY_SHARE:
            return self._polled_for(room.records)
        now = self.now()
        if self._full_since is None:
            self._full_since = now
        if now - self._full_since > SOFT_WAIT_S:
            return self._polled_for(room.records)
        self.proof.renew()
        self.committer.take(self.membership.consumer.commit_answers(0.0))
        self.membership.pause(IDLE_S)
        return 0

    def _polled_for(self, room: int) -> int:
        self._full_since = None
        return max(1, min(room, POLL_RECORDS_MAX))

    def _take(self, polled: Polled) -> None:
        if polled.batches:
            batches = [
                (self.partitions[topic, number], records, sizes)
                for topic, number, records, sizes in polled.batches
                if (topic, number) in self.partitions
            ]
            now, plans = self.now(), self.config.plans
            for partition, records, _ in batches:
                arrivals = plans[partition.handler.index].arrivals
                arrivals.came(partition.topic, partition.number, records[0].offset, now)
            tags = {
                partition: found
                for partition, records, _ in batches
                if (found := tags_of(partition.handler.spec, records))
            }
            self.door.call(lambda engine, now: engine.polled(now, batches, tags))
        if polled.ends:
            ends = [
                (self.partitions[topic, number], position)
                for topic, number, position in polled.ends
                if (topic, number) in self.partitions
            ]
            self.door.call(lambda engine, now: engine.reached(now, ends))
        if polled.commits:
            self.committer.take(polled.commits)
        self.run_log.received(polled)
        for problem in polled.problems:
            if problem.action == "recreate":
                self._rejoining.begin(problem)
                return
            if problem.action == "stop":
                # Fenced: another member has this membership, and rejoining would fence it.
                fenced = "FENCED_INSTANCE" in problem.code
                self.fail(f"{problem.code}: {problem.reason}", may_restart=not fenced)
            else:
                event("warning", "kafka", code=problem.code, reason=problem.reason)
        if polled.out_of_range:
            self._out_of_range.received(polled.out_of_range)

    def look_at_topic_ids(self) -> None:
        """Check whether a consumed topic was recreated; on the watching thread, may wait."""
        self.config.topic_ids.look(self.membership, self._reread)

    def _reread(self, partitions: list[TopicPartition]) -> None:
        """The log is another one: restart at the position that the policy chooses."""
        self._rebalance.on_lost(partitions)
        self._rebalance.find_later(partitions)

    def _lose_all(self) -> None:
        """The consumer has lost its place in the group: every epoch has ended."""
        self._rebalance.on_lost([*self.partitions, *self._rebalance.waiting])

    def _join(self) -> None:
        """Join the group with a new consumer."""
        self.membership.consumer = self.config.make_consumer()
        self.committer.forget()
        self.membership.consumer.subscribe(self.config.topics, self._rebalance)

    # -- what is not read --------------------------------------------------------------------------

    def unread(self) -> list[Unread]:
        """Every assigned partition that is not read, with its place. Thread-safe."""
        plans, route = self.config.plans, self.config.route
        stuck = {w: since for w, since in self._watchdog.stuck.items() if w in self.partitions}
        waiting = dict(self._rebalance.waiting)
        away = self.run_log.broker_lost_at is not None  # one cause for all of them
        silent = {} if away else self._watchdog.silent
        silent = {w: since for w, since in silent.items() if w in self.partitions}
        unread_partitions = unread(
            waiting, stuck, silent, lambda topic: plans[route(topic)].spec.name
        )
        gone = self.config.topic_ids.gone
        return [
            entry._replace(reason=TOPIC_GONE) if entry.topic in gone else entry
            for entry in unread_partitions
        ]

    @property
    def refetched(self) -> int:
        """How many fetches were restarted. Thread-safe."""
        return self._watchdog.refetched

    # -- effects: inside the door, so nothing here may wait ----------------------------------------

    def perform(self, effects: list[fx.Effect]) -> None:
        """Do all of these, in order."""
        for effect in effects:
            if type(effect) is fx.Send:  # up to once a record: `match` takes three times as long
                self.outputs.send(effect.work, effect.outputs)
            elif type(effect) is fx.Start:
                executor = self.executors[effect.handler]
                start = executor.start_batch if effect.together else executor.start
                start(effect.works)
            elif type(effect) is fx.Finished:
                self._finished.append(effect)
            else:
                self._perform_other(effect)
        if self.outputs.answered:  # refused immediately, or stored already
            self.outputs_served()
        if self._finished:
            finished = self._finished.copy()
            self._finished.clear()
            self.config.on_finished(finished)

    def _perform_other(self, effect: fx.Effect) -> None:
        """All other effects."""
        membership = self.membership
        match effect:
            case fx.Troubled():
                self.run_log.trouble(effect)
            case fx.SendDeadLetter(work, topic, error):
                self.outputs.send_dead_letter(work, topic, error)
            case fx.Note():
                self._note(effect)
            case fx.CommitOffsets():
                self.committer.plan(effect)
            case fx.CommitsStored(committed):
                membership.callbacks.call(self.config.on_commit, committed)
            case fx.Transact():
                assert self.transactor is not None
                self.transactor.begin(effect)
            case fx.ReadCommitted(partitions):
                membership.background(lambda: self.committer.read_back(partitions))
            case fx.PauseIntake(partitions):
                places = [partition.where for partition in partitions]
                membership.on_poll_thread(lambda: membership.consumer.pause(places))
            case fx.ResumeIntake(partitions):
                places = [partition.where for partition in partitions]
                membership.on_poll_thread(lambda: membership.consumer.resume(places))
            case fx.Refetch():
                self._refetcher.ask(effect)
            case fx.AskExhausted():
                membership.callbacks.call(self._decide, effect)
            case fx.Answered():
                self._answered(effect)
            case fx.Drained():
                self.leaving = True
                membership.on_poll_thread(lambda: None)
            case fx.Fatal(reason, error):
                self.fail(reason, error)
            case _:
                raise TypeError(f"a member does not perform {effect!r}")

    def _answered(self, effect: fx.Answered) -> None:
        action, reason = effect.command.action, effect.command.reason
        for row in effect.rows:
            event("info", "command", action=action, reason=reason, **row._asdict())
        for listener in tuple(self.membership.answered):
            listener(effect)

    def _decide(self, effect: fx.AskExhausted) -> None:
        """On the callbacks' thread: call the user's function, behind the calls that wait there."""
        assert self.config.decide is not None
        answer = self.config.decide(effect)
        self.door.post(lambda engine, now: engine.decided(now, [answer]))

    def _note(self, effect: fx.Note) -> None:
        # There may be thousands, such as parked records: one line per ten seconds.
        left_out = self._sparse.left_out(effect.event)
        if left_out is not None:
            omitted = {"alike": left_out} if left_out else {}
            event(effect.level, effect.event, **(effect.fields | omitted))

    # -- outputs -----------------------------------------------------------------------------------

    def outputs_served(self) -> None:
        """Pass the available answers to the engine. Thread-safe."""
        outputs = self.outputs
        answers = outputs.take_answered()
        if answers:
            self.door.post(lambda engine, now: engine.outputs_answered(now, answers))
        if outputs.backed_up:
            self.door.post(lambda _engine, _now: outputs.retry_waiting())

    def _wake_for_deadline(self) -> None:
        """Inside the door: something is due earlier than the polling thread expects."""
        earlier = max(self.door.next_due(), self._next_tick_at)
        if earlier < self.door.wakes_at:
            self.door.wakes_at = earlier
            self.membership.wake()

    # -- the end -----------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Commit and give up the partitions, and stop every thread."""
        self.leaving = self.ending = True
        try:
            began = self.now()
            self.membership.consumer.leave(
                min(max(self._drain_until - began, LEAVE_LEAST_S), LEAVE_S),
                lambda: self._now_until(began, LEAVE_LEAST_S) - self.now(),
            )
        except Exception as error:
            # A revoke failed half-way: its last commit is missing, so it is no clean end.
            self.fail(f"{type(error).__name__}: {error}")
        self.door.left = True
        for executor in self.executors:
            executor.close()
        self.membership.quit()
        self._refetcher.close(1.0)
        close_s = CLOSE_NOW_S if self.hurried else CLOSE_S
        self.outputs.close(close_s)
        if self.transactor is not None:
            self.transactor.close(close_s)
        self.callbacks.close(1.0)
        self.ended.set()  # last: all results have been reported by now
