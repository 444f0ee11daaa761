"""One member of the group: the polling thread, and everything the engine's effects become.

The polling thread is the only one that touches the consumer. Other threads leave what they want
of it in the outbox and wake it. It never runs a handler and never waits for one, so the member
stays in its group however long a handler takes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from weft.core import effects as fx
from weft.core.engine import Engine, StopMode
from weft.core.partition import Partition
from weft.errors import ConfigError
from weft.kafka.ports import POLL_RECORDS_MAX, ConsumerPort, Polled, TopicPartition
from weft.runtime.committing import Committer
from weft.runtime.door import Door
from weft.runtime.lease import Lease
from weft.runtime.logs import event
from weft.runtime.member_config import Executor, MemberConfig
from weft.runtime.outputs import Outputs
from weft.runtime.perform import Performer
from weft.runtime.rebalance import Rebalance
from weft.runtime.rejoining import Rejoining
from weft.runtime.reports import Callbacks
from weft.runtime.transactions import Transactor
from weft.types import ErrorInfo

_log = logging.getLogger("weft")

POLL_S = 0.1
IDLE_S = 0.001  # how long intake waits at a time while the buffers are full
SOFT_WAIT_S = 0.5  # and in all, before partitions are paused; far below max.poll.interval.ms
BUSY_SHARE = 0.95
LEAVE_S = 10.0
LEAVE_LEAST_S = 2.0  # also when a drain has used its time: for the last commit
ENDS_EVERY_S = 1.0


class Member:
    """Runs from `start` until it has left the group."""

    def __init__(self, config: MemberConfig) -> None:
        self.config = config
        self.now = config.clock.now
        self.engine = Engine([plan.spec for plan in config.plans], config.limits)
        self.callbacks = Callbacks()
        self.door = Door(self.engine, Performer(self).perform, self.now)
        self.door.on_earlier = self._wake_for_deadline
        self.door.on_broken = self._broke
        self.partitions: dict[TopicPartition, Partition] = {}
        self.executors: list[Executor] = []
        # Here already, for a stop may come before the start: it makes no client before it must.
        self.outputs = Outputs(
            lambda: config.make_producer(self.outputs_served), config.group, self._outputs_full
        )
        self.transactor: Transactor | None = None
        self.consumer: ConsumerPort
        self.ended = threading.Event()
        #: the first reason to end other than asked for
        self.fatal: fx.Fatal | None = None
        #: it broke in a way that a new member in its place may not; a fleet makes one
        self.may_restart = False
        #: 2 where that reason is bad input, which only the running group could show
        self.exit_code = 1
        #: set by the engine's Drained, or when the run broke
        self.leaving = False
        self.ending = False
        self._stopped_at: float | None = None
        self._rebalance = Rebalance(self)
        self._rejoining = Rejoining(self)
        self.lease = Lease(self)
        self.committer = Committer(self)
        self._outbox: deque[Callable[[], None]] = deque()
        self._background: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._quit = threading.Event()
        self._full_since: float | None = None
        self._ends_at = 0.0
        #: the longest time between two polls, in seconds: the figure behind L5
        self.poll_gap_max_s = 0.0
        self._polled_at: float | None = None

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Join the group and begin; returns at once."""
        config = self.config
        self.consumer = config.make_consumer()
        if config.make_transactor is not None:
            self.transactor = config.make_transactor(self)
        self.executors = config.make_executors(self)
        threading.Thread(target=self._work_behind, name="weft-background", daemon=True).start()
        threading.Thread(target=self._run, name="weft-poll", daemon=True).start()

    def stop(self, mode: StopMode) -> None:
        """Ask for the end; any thread."""
        if self._stopped_at is None:
            self._stopped_at = self.now()
        self.door.post(lambda engine, now: engine.stop(now, mode))
        for executor in self.executors:
            executor.warn(None)
        self.wake()

    def fail(
        self,
        reason: str,
        error: ErrorInfo | None = None,
        exit_code: int = 1,
        *,
        may_restart: bool = False,
    ) -> None:
        """End with this exit code: finish what runs, commit, leave."""
        if self.fatal is None:
            self.may_restart = may_restart
            self.fatal, self.exit_code = fx.Fatal(reason, error), exit_code
            event(_log, "error", "stopping", reason=reason)
        if self._stopped_at is None:
            self._stopped_at = self.now()
        # Posted, not called: this may run inside the door.
        self.door.post(lambda engine, now: engine.stop(now, "in_flight"))

    def _broke(self, error: Exception) -> None:
        """Inside the door: the engine has failed. Leave at once and commit nothing."""
        _log.critical("internal error, please report it with this trace", exc_info=error)
        self.fail(f"internal error: {type(error).__name__}: {error}")
        self.leaving = True
        self.wake()

    @property
    def patient(self) -> bool:
        """The time that a stop may take is not over."""
        return self._stopped_at is None or self._left_s() > 0

    def _left_s(self) -> float:
        assert self._stopped_at is not None
        return self._stopped_at + self.config.drain_timeout_s - self.now()

    def revoke_wait_s(self) -> float:
        """How long a revoke may wait for what is in flight."""
        if self.leaving:
            return 0.0  # the drain has waited already
        wait_s = self.config.revoke_timeout_s
        return wait_s if self._stopped_at is None else max(0.0, min(wait_s, self._left_s()))

    # -- the polling thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if self.transactor is not None:
                self.transactor.open()
            self.consumer.subscribe(self.config.topics, self._rebalance)
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
        hurry = self._outbox or self.committer.waiting
        timeout_s = 0.0 if hurry else min(POLL_S, max(0.0, self.door.wakes_at - now))
        if self._rejoining.waiting:
            self._rejoining.step()
            self.lease.renew()
        elif room := self._wait_for_room():
            polled = self.consumer.poll(timeout_s, room)
            self.lease.renew()
            self._note_gap()
            self._take(polled)
        self.committer.send_planned()
        self._empty_outbox()
        after = self.now()
        if after >= self.door.wakes_at:
            self._tick(after)

    def _note_gap(self) -> None:
        now = time.monotonic()
        self.poll_gap_max_s = max(self.poll_gap_max_s, now - (self._polled_at or now))
        self._polled_at = now

    def _tick(self, now: float) -> None:
        if now >= self._ends_at:
            self._ends_at = now + ENDS_EVERY_S
            self._note_log_ends()
        if self.outputs.backed_up:
            self.door.post(lambda _engine, _now: self.outputs.retry_waiting())
        self.tick_engine(now)
        if self._stopped_at is not None and not self.leaving and self._left_s() <= 0:
            self._give_up_waiting()

    def tick_engine(self, now: float) -> None:
        """Let the engine do what is due. For use inside a rebalance callback too."""
        deadline = self.door.call(self._tick_inside)
        self.door.wakes_at = min(max(deadline, now + 0.001), now + POLL_S)

    @staticmethod
    def _tick_inside(engine: Engine, now: float) -> float:
        engine.tick(now)
        return engine.next_deadline()

    def _give_up_waiting(self) -> None:
        """The drain took too long: cancel what can be cancelled, commit what is done."""
        event(_log, "warning", "drain timed out", seconds=self.config.drain_timeout_s)
        held = list(self.partitions.values())
        for work in self.door.call(lambda engine, _: engine.running(held)):
            self.executors[work.partition.handler.index].cancel(work, expired=False)
        self.door.post(lambda engine, now: engine.stop(now, "now"))

    def _wait_for_room(self) -> int:
        """How many records to poll for; 0 when it is better to wait first.

        Full buffers are waited for a little: pausing a partition throws away what librdkafka has
        fetched of it, and when it is resumed librdkafka may sleep on for a second.
        """
        limit = self.config.limits.buffer_records
        every = list(self.partitions.values())
        flow = self.engine.state.flow
        if flow.paused or self._outbox:
            # What is not paused must come through. Whole polls of many partitions would fill a
            # small budget many times over.
            held = sum([len(p.incomplete) - p.blocked_records for p in every])
            return self._polled_for(limit - held)
        room = flow.room(every)
        if room.share > 1.0 - BUSY_SHARE:
            return self._polled_for(room.records)
        now = self.now()
        if self._full_since is None:
            self._full_since = now
        if now - self._full_since > SOFT_WAIT_S:
            return self._polled_for(room.records)
        self.lease.renew()
        self.committer.take(self.consumer.commit_answers(0.0))
        self._quit.wait(IDLE_S)
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
            self.door.call(lambda engine, now: engine.polled(now, batches))
        if polled.ends:
            ends = [
                (self.partitions[topic, number], position)
                for topic, number, position in polled.ends
                if (topic, number) in self.partitions
            ]
            self.door.call(lambda engine, now: engine.reached(now, ends))
        if polled.commits:
            self.committer.take(polled.commits)
        for problem in polled.problems:
            if problem.action == "recreate":
                self._rejoining.begin(problem)
                return
            if problem.action == "stop":
                # Fenced: somebody has our place, and coming back would push them out.
                fenced = "FENCED_INSTANCE" in problem.code
                self.fail(f"{problem.code}: {problem.reason}", may_restart=not fenced)
            else:
                event(_log, "warning", "kafka", code=problem.code, reason=problem.reason)
        if polled.out_of_range:
            self.reread(polled.out_of_range)

    def reread(self, partitions: list[TopicPartition]) -> None:
        """The log is not what we think it is: begin anew where the policy says."""
        self._rebalance.on_lost(partitions)
        self._rebalance.find_later(partitions)

    def lose_all(self) -> None:
        """The consumer has no place in the group: every epoch has ended."""
        self._rebalance.on_lost([*self.partitions, *self._rebalance.waiting])

    def join(self) -> None:
        """Join the group with a new consumer."""
        self.consumer = self.config.make_consumer()
        self.consumer.subscribe(self.config.topics, self._rebalance)

    def _note_log_ends(self) -> None:
        for where, end in self.consumer.log_ends().items():
            partition = self.partitions.get(where)
            if partition is not None:
                partition.lag_end = end

    # -- outputs -----------------------------------------------------------------------------------

    def outputs_served(self) -> None:
        """Bring the answers there are to the engine; any thread."""
        outputs = self.outputs
        settled = outputs.take_settled()
        if settled:
            self.door.post(lambda engine, now: engine.outputs_settled(now, settled))
        if outputs.backed_up:
            self.door.post(lambda _engine, _now: outputs.retry_waiting())

    def _outputs_full(self, full: bool) -> None:  # noqa: FBT001  # on_level's only argument
        self.door.post(lambda engine, now: engine.hold(now, "outputs", on=full))

    # -- between threads ---------------------------------------------------------------------------

    def on_poll_thread(self, action: Callable[[], None]) -> None:
        """Have the polling thread do this soon."""
        self._outbox.append(action)
        self.wake()

    def background(self, action: Callable[[], None]) -> None:
        """Have the background thread do this: it may wait for the network."""
        self._background.put(action)

    def pause_background(self, seconds: float) -> None:
        """Wait on the background thread, unless the member ends."""
        self._quit.wait(seconds)

    def _work_behind(self) -> None:
        while (action := self._background.get()) is not None:
            try:
                action()
            except Exception:
                _log.exception("background work failed")

    def _empty_outbox(self) -> None:
        for _ in range(len(self._outbox)):
            self._outbox.popleft()()

    def wake(self) -> None:
        """Have the polling thread look around soon; any thread."""
        consumer = getattr(self, "consumer", None)
        if consumer is not None and not self.ended.is_set():
            consumer.wake()

    def _wake_for_deadline(self) -> None:
        """Inside the door: something is due earlier than the polling thread thinks."""
        self.door.wakes_at = self.engine.next_deadline()
        self.wake()

    # -- the end -----------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Give the partitions back, committed, and stop every thread."""
        self.leaving = self.ending = True
        try:
            left_s = LEAVE_S if self._stopped_at is None else self._left_s()
            self.consumer.leave(min(max(left_s, LEAVE_LEAST_S), LEAVE_S))
        except Exception as error:
            # A revoke that broke half-way: its last commit is missing, so it is no clean end.
            self.fail(f"{type(error).__name__}: {error}")
        for executor in self.executors:
            executor.close()
        self._quit.set()
        self._background.put(None)
        self.outputs.close(2.0)
        if self.transactor is not None:
            self.transactor.close(2.0)
        self.callbacks.close(1.0)
        self.ended.set()  # last: whoever waits for the end has been told everything
