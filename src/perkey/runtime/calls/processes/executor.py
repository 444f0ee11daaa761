"""Send records to worker processes and collect the results.

One lane has at most one call outside the engine, so any free worker may get the next call and every
lane stays in order. When a worker dies, only the record (or batch) that it was running is charged a
failed attempt; records that it had not started go to its successor.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from operator import itemgetter
from queue import Empty, SimpleQueue
from typing import Any

from perkey import guard
from perkey.core.engine import Engine
from perkey.core.events import AT_MOST_ONCE, Ended, Returned, Unhandled
from perkey.core.partition import Partition
from perkey.core.work import Work
from perkey.runtime.calls import stacks
from perkey.runtime.calls.deadlines import NEVER, handler_of, note_acknowledged
from perkey.runtime.calls.processes.call_ends import (
    Deaths,
    WorkerSpans,
    end_of,
    ends_of,
    unsendable,
)
from perkey.runtime.calls.processes.link import Item, Link
from perkey.runtime.calls.processes.protocol import (
    AskStack,
    BatchReply,
    Cost,
    Drop,
    Job,
    Opened,
    Packed,
    Reply,
    Unread,
    Warn,
    WorkerSpec,
)
from perkey.runtime.door import Door
from perkey.runtime.handling import Call, Executor, HandlerPlan, handled, may_call
from perkey.runtime.logs import event
from perkey.runtime.suspension import since_boot

_log = logging.getLogger("perkey")

STARTS_MAX = 3  # workers in a row that die before they open
CLOSE_S = 1.0
STACK_S = 0.3  # a worker answers immediately unless its call holds the interpreter
LOOK_S = 0.05  # interval of checks while something may have to be done about a running call
REPORT_S = 1.0  # interval of reports to the engine about calls that have not started


class ProcessExecutor(Executor):
    """Runs one handler in `concurrency` worker processes."""

    def __init__(
        self, plan: HandlerPlan, door: Door, spec: WorkerSpec, fail: Callable[[str], None]
    ) -> None:
        """`fail` ends the run if the workers cannot be started."""
        self._plan = plan
        self._door = door
        self._spec = spec
        self._fail = fail
        self._lock = threading.Lock()
        self._waiting: deque[Item] = deque()
        self._links: list[Link] = []
        self._numbers = count(1)
        self._deaths = Deaths()
        self._spans = WorkerSpans(plan.spec.name, spec.group)
        self._failed_starts = 0
        self._closed = False
        #: nothing waits in a pipe: a record that is passed to a worker counts as started for the
        #: group
        self._once = plan.spec.delivery == AT_MOST_ONCE
        self._handler = handler_of(plan, door)
        #: calls that started since then are timed; NEVER while there is no time-out
        self._timed_since = NEVER if plan.spec.timeout_s is None else -NEVER
        door.deadlines.append(self)
        #: the app stops: records that have not started are returned
        self._recalling = False
        #: calls that were reported as not started, and when the next report is due
        self._reported: set[Item] = set()
        self._report_at = 0.0
        #: the dispatcher sleeps until it gets a token
        self._sleeps = False
        self._unsendable: list[tuple[Item, str]] = []
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        for _ in range(plan.spec.concurrency):
            self._hire()
        guard.thread("perkey-dispatch", self._dispatch, self._door.died).start()

    def _hire(self) -> None:
        name, died = f"perkey-{self._plan.spec.name}", self._door.died
        link = Link(
            name,
            self._spec,
            self._received,
            self._died,
            lambda: self._tokens.put(True),
            died,
            one_at_a_time=self._once,
        )
        self._links.append(link)

    # -- from any thread ---------------------------------------------------------------------------

    def start(self, works: Sequence[Work]) -> None:
        """Handle each of these; never blocks."""
        self._add([Item([work], batch=False) for work in works])

    def start_batch(self, works: list[Work]) -> None:
        """Handle these in one call; never blocks."""
        self._add([Item(works, batch=True)])

    def _add(self, items: Sequence[Item]) -> None:
        with self._lock:
            self._waiting.extend(items)
            # A worker that needs no work now asks for more when it has answered.
            hungry = any(link.hungry and not link.feeding for link in self._links)
            wakes = hungry or self._sleeps  # none may need work for long: they open
        if wakes:
            self._tokens.put(True)

    # -- time-outs: inside the door ----------------------------------------------------------------

    def next_due(self, now: float) -> float:
        """When `expire` must be called next, at the latest."""
        limit_s = self._limit_s(now)
        if limit_s is None or not self._handler.in_flight:
            return NEVER
        with self._lock:
            calls = [(link.killed_for, *link.call) for link in self._links]
        # A call that starts after this look is due later than a whole time-out from now.
        timed_s = now - self._timed_since
        ran_s = [
            ran_s
            for killed, item, ran_s in calls
            if item is not None and item is not killed and ran_s <= timed_s
        ]
        return now + limit_s - max([0.0, *ran_s])

    def _limit_s(self, now: float) -> float | None:
        """The time-out; one that a command sets where there was none is of later calls only."""
        limit_s = self._handler.timeout_s
        if limit_s is None:
            self._timed_since = NEVER
        elif self._timed_since == NEVER:
            self._timed_since = now
        return limit_s

    def expire(self, now: float) -> None:
        """Kill the workers whose calls are past their time-out."""
        limit_s = self._limit_s(now)
        if limit_s is None:
            return
        with self._lock:
            calls = [(link, *link.call) for link in self._links]
            for link, item, ran_s in calls:
                over = limit_s <= ran_s <= now - self._timed_since
                if item is not None and over and link.killed_for is not item:
                    link.killed_for = item
                    link.kill()
                    note_acknowledged(self._door, item.works, item.call)

    def warn(self, partitions: Sequence[Partition] | None) -> None:
        """Return the unstarted records of these partitions, or all; notify running batches."""

        def recall_soon(_engine: Engine, _now: float) -> None:
            # Inside the door, which may not wait for a pipe: the dispatcher does it.
            self._recalling = True
            self._tokens.put(True)

        if partitions is None:
            # After the stop itself, or the engine would grant it all again.
            self._door.post(recall_soon)
        else:
            self._recall(set(partitions))

    def _recall(self, gone: set[Partition] | None) -> None:
        def goes(item: Item) -> bool:
            return gone is None or any(work.partition in gone for work in item.works)

        with self._lock:
            taken = [item for item in self._waiting if goes(item)]
            for item in taken:
                self._waiting.remove(item)
            for link in self._links:
                numbers = [number for number, item in link.given.items() if goes(item)]
                if numbers:
                    link.send(Drop(numbers))
                if any(link.given[number].batch for number in numbers):
                    link.send(Warn())
        self._end_unhandled(taken)

    def close(self) -> None:
        """End all workers; none is left when this returns."""
        with self._lock:
            self._closed = True
            links = list(self._links)
        self._tokens.put(False)
        for end in Link.close, Link.kill:
            for link in links:
                end(link)
            deadline = time.monotonic() + CLOSE_S  # for all of them
            for link in links:
                link.process.join(max(0.0, deadline - time.monotonic()))

    def stack(self, where: stacks.Where) -> list[str]:
        """Where the call of this record is now; queries its worker."""
        with self._lock:
            for link in self._links:
                item = link.given.get(link.at_hand)
                if item is not None and stacks.is_of(item.works, where):
                    break
            else:
                opening = [one for one in self._links if not one.opened]
                return [f"worker process {one.process.pid}, which opens" for one in opening[:1]]
            if not link.asked:  # a worker that holds its interpreter must not get its pipe filled
                link.asked = True
                link.stack_received.clear()
                link.send(AskStack())
        if link.stack_received.wait(STACK_S):
            return link.stack
        return [stacks.of_silent_process(link.process.pid)]

    # -- distributing ------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        """On a separate thread: the door waits for no pickling."""
        while not self._closed:
            with self._lock:
                look_in_s = self._look_in_s()
                self._sleeps = look_in_s is None
            with contextlib.suppress(Empty):
                self._tokens.get(timeout=look_in_s)
            while not self._tokens.empty():
                self._tokens.get()
            if self._recalling:
                self._recalling = False
                self._recall(None)
            self._dispatch_now()
            if time.monotonic() >= self._report_at:
                self._report_waiting()

    def _look_in_s(self) -> float | None:
        if self._queued():
            return LOOK_S
        opening = any(link.given and link.call[0] is None for link in self._links)
        return REPORT_S if self._waiting or self._reported or opening else None

    def _report_waiting(self) -> None:
        """Report calls that have not started, and the start of those that now have."""
        self._report_at = time.monotonic() + REPORT_S
        with self._lock:
            running = {item: ran_s for item, ran_s in (link.call for link in self._links) if item}
            given = [item for link in self._links for item in link.given.values()]
            waiting = [item for item in (*self._waiting, *given) if item not in running]
        for item, ran_s in running.items():
            if item in self._reported and ran_s >= 0.0:
                self._door.begun([w for w in item.works if w.call is item.call], ran_s)
        self._reported = set(waiting)
        self._door.waiting([work for item in self._reported for work in item.works])

    def _dispatch_now(self) -> None:
        with self._lock:
            if self._closed:
                return
            back = self._give_out(self._links)
            if not self._waiting and any(link.hungry for link in self._links):
                # Records queued behind a slow call are returned: another worker has time.
                for link in self._links:
                    at_hand = link.given.get(link.at_hand)
                    behind = [n for n, i in link.given.items() if i is not at_hand and not i.batch]
                    if behind and link.slow:
                        link.send(Drop(behind))
        self._end_unhandled(back)

    def _queued(self) -> bool:
        """Whether a worker has been given more than what it runs."""
        return any(len(link.given) > 1 for link in self._links)

    def _give_out(self, links: Sequence[Link]) -> list[Item]:
        """Fill the workers' windows, emptiest first; returns what may not be called any more."""
        back: list[Item] = []
        if self._waiting and not self._door.trusted():
            # The process was suspended: another member may own these by now.
            back.extend(self._waiting)
            self._waiting.clear()
        calls = len(self._waiting) + sum(len(link.given) for link in self._links)
        share = -(-calls // max(1, len(self._links)))
        while self._waiting:
            room, link = max(
                ((one.room(share), one) for one in links), key=itemgetter(0), default=(0, None)
            )
            if link is None or room == 0:
                break
            chunk: list[Item] = []
            for _ in range(max(1, room // 2) if len(links) > 1 else room):
                if not self._waiting or (chunk and self._waiting[0].alone):
                    break
                item = self._waiting.popleft()
                if not all(may_call(work, at_most_once=self._once) for work in item.works):
                    back.append(item)
                    continue
                chunk.append(item)
                if item.batch or item.alone:
                    break
            if chunk:
                self._send(link, chunk)
        return back

    def _send(self, link: Link, items: list[Item]) -> None:
        """Send these to the worker; those that cannot be sent have failed."""
        try:
            self._send_job(link, items)
        except Exception as error:
            if len(items) > 1:
                for item in items:
                    self._send(link, [item])
            else:
                why = f"{type(error).__name__}: {error}"
                self._unsendable.append((items[0], why))

    def _send_job(self, link: Link, items: list[Item]) -> None:
        records, retries = [], {}
        for item in items:
            for work in item.works:
                number = next(self._numbers)
                link.given[number] = item
                records.append((number, work.record))
                if work.failure is not None and work.retry is not self._plan.spec.retry:
                    retries[number] = work.retry
        topics = {record.topic for _, record in records} if self._plan.ledger is not None else ()
        ids = {topic: self._plan.ledger.topic_id_of(topic) for topic in topics if self._plan.ledger}
        returned, before = self._plan.calls is not None, self._spans.before(records)
        try:
            job = Job(records, items[0].batch, returned, ids, since_boot(), before, retries or None)
            # What is the user's may be unreadable over there.
            packed = self._plan.prefetch is not None or retries
            numbers = [number for number, _ in records]
            link.send(Packed(numbers, pickle.dumps(job, protocol=5)) if packed else job)
        except BaseException:
            for number, _ in records:
                del link.given[number]
            raise

    def _end_unhandled(self, items: Sequence[Item]) -> None:
        """End items that may not be called any more, or that no pipe can carry."""
        with self._lock:
            bad, self._unsendable = self._unsendable, []
        for item in items:
            self._end(item, [Unhandled(work) for work in item.works], whole=False)
        for item, error in bad:
            ends = [unsendable(work, error) for work in item.works]
            self._end(item, ends, whole=True)
        if items or bad:
            self._door.turn()

    def _end(self, item: Item, ends: Sequence[Ended], *, whole: bool) -> None:
        if item.batch:
            self._door.batch_ended(item.works, [], ends, whole=whole)
        else:
            self._door.ended.extend(ends)

    # -- on a reader's thread ----------------------------------------------------------------------

    def _received(self, link: Link, messages: Sequence[Any]) -> None:
        """What the worker has sent since the last time: one turn at the door for all of it."""
        for message in messages:
            self._note(link, message)
        link.feeding = True
        self._door.turn()
        # On the link's own thread: waking another one per answer costs more than this.
        with self._lock:
            link.feeding = False
            back = self._give_out([link]) if link.hungry and not self._closed else []
            look = link.hungry and self._queued()
        self._end_unhandled(back)
        if look:
            self._tokens.put(True)

    def _note(self, link: Link, message: Any) -> None:
        if isinstance(message, Reply):
            self._replied(link, message)
        elif isinstance(message, BatchReply):
            self._batch_replied(link, message)
        elif isinstance(message, Opened):
            if message.error is None:
                link.opened = True
                self._failed_starts = 0
                self._spans.opened(message)
            else:
                _log.error("worker process: %s", message.error.traceback)
                name, why = self._plan.spec.name, message.error.line
                self._fail(f"handler {name}: its worker process cannot open: {why}")
        elif isinstance(message, Unread):
            self._unread(link, message)
        elif isinstance(message, Cost):
            with self._lock:
                item = link.given.get(message.number)
            if item is not None and self._plan.charges is not None:
                self._plan.charges.report(item.works[0].record, message.cost, message.before)

    def _unread(self, link: Link, message: Unread) -> None:
        """Find the record that the worker cannot read: each of the job is sent alone."""
        with self._lock:
            given = [link.given.pop(n) for n in message.numbers if n in link.given]
            items = list(dict.fromkeys(given))
            if len(items) == 1:
                self._unsendable.append((items[0], message.error))
            else:
                for item in items:
                    item.alone = True
                self._waiting.extendleft(reversed(items))
        self._tokens.put(True)

    def _replied(self, link: Link, reply: Reply) -> None:
        with self._lock:
            item = link.given.get(reply.number)
            if item is None:
                return
            if reply.outcome == "acked":
                first = min(n for n, one in link.given.items() if one is item)
                work = item.works[reply.number - first]
                item.acked.add(work)
            else:
                del link.given[reply.number]
                work = item.works[0]
        if reply.outcome == "acked":
            done = [] if reply.outputs else [work]
            ended: list[Ended] = [Returned(work, reply.outputs)] if reply.outputs else []
            self._plan.noted([work], Call(reply.began, reply.ended, None))
            self._deaths.survived(work, None)
            self._door.post(lambda engine, now: engine.batch_progressed(now, done, ended))
            return
        if reply.ended:
            took_s = reply.ended - reply.began
            link.took(took_s)
            self._plan.timed(took_s, work)
            self._plan.noted([work], Call(reply.began, reply.ended, reply.returned))
        if self._plan.ledger is not None:
            self._plan.ledger.repeats += reply.repeats
        self._spans.note(work.record, reply)
        end = end_of(work, reply)
        self._deaths.survived(work, end)
        if end is None:
            self._door.done.append(work)
        else:
            self._door.ended.append(end)

    def _batch_replied(self, link: Link, message: BatchReply) -> None:
        with self._lock:
            item = link.given.get(message.number)
            if item is None:
                return
            for number in [n for n, one in link.given.items() if one is item]:
                del link.given[number]
        if self._plan.ledger is not None:
            self._plan.ledger.repeats += message.repeats
        for reply in message.replies:
            self._spans.note(item.works[reply.number - message.number].record, reply)
        done, ended = ends_of(item.works, message)
        call = Call(message.began, message.ended, message.returned)
        self._plan.noted(handled(done, ended), call)
        for work in done:
            self._deaths.survived(work, None)
        for end in ended:
            self._deaths.survived(end.work, end)
        self._door.batch_ended(item.works, done, ended, whole=message.whole)

    # -- death -------------------------------------------------------------------------------------

    def _died(self, link: Link) -> None:
        with self._lock:
            if self._closed or link not in self._links:
                return
            self._links.remove(link)
            at_hand = link.given.get(link.at_hand)
            rest = {id(item): item for item in link.given.values() if item is not at_hand}
            link.given.clear()
            # Not started: to the front, in their order.
            self._waiting.extendleft(reversed(list(rest.values())))
            self._failed_starts += not link.opened
        name, how = self._plan.spec.name, link.how_it_died()
        event("warning", "worker process ended", handler=name, how=how)
        if at_hand is not None:
            left = [work for work in at_hand.works if work not in at_hand.acked]
            # Killed because of the previous call, which ended at that very moment.
            innocent = link.killed_for not in (None, at_hand) and not self._once
            limit_s = at_hand.works[0].partition.handler.timeout_s
            ends = [
                self._deaths.end_of(work, link, at_hand, limit_s, innocent=innocent)
                for work in left
            ]
            self._end(at_hand, ends, whole=not (self._spec.explicit or innocent))
        self._replace(link)
        self._door.turn()
        self._tokens.put(True)

    def _replace(self, link: Link) -> None:
        """Start a successor of a worker that died, or end the run if that is hopeless."""
        if self._failed_starts >= STARTS_MAX:
            self._fail(
                f"handler {self._plan.spec.name}: {STARTS_MAX} worker processes ended before they "
                f"were ready; the last {link.how_it_died()}"
            )
            return
        try:
            with self._lock:
                if not self._closed:
                    self._hire()
        except (OSError, RuntimeError) as error:  # no process or thread available
            self._fail(
                f"handler {self._plan.spec.name}: no worker process can be started: {error}: "
                "raise the limit of processes, or lower concurrency="
            )
