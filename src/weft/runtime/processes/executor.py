"""Gives records to worker processes and brings back what became of them.

One lane has at most one record outside the engine, so giving records to whichever worker is free
keeps every lane in order. When a worker dies only the record it was running is charged with a
failed attempt; what it had not started goes to its successor.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any

from weft.core.endings import Ended, GivenBack, Returned
from weft.core.partition import Partition
from weft.core.spec import AT_MOST_ONCE
from weft.core.states import RUNNING, SUPERSEDED
from weft.core.work import Work
from weft.runtime.door import Door
from weft.runtime.logs import event
from weft.runtime.plan import Call, HandlerPlan, may_call
from weft.runtime.processes.endings import Deaths, end_of, timed_out
from weft.runtime.processes.link import Item, Link
from weft.runtime.processes.protocol import (
    BatchReply,
    Drop,
    Job,
    Opened,
    Reply,
    Warn,
    WorkerSpec,
)
from weft.runtime.shared import SharedOutputs

_log = logging.getLogger("weft")

STARTS_MAX = 3  # workers that die before they open, one after another
CLOSE_S = 1.0
LOOK_S = 0.05  # how often, while something may have to be done about a call that runs


class ProcessExecutor:
    """Runs one handler in `concurrency` worker processes."""

    def __init__(
        self, plan: HandlerPlan, door: Door, spec: WorkerSpec, fail: Callable[[str], None]
    ) -> None:
        """`fail` ends the run: the workers cannot be started."""
        self._plan = plan
        self._door = door
        self._spec = spec
        self._fail = fail
        self._lock = threading.Lock()
        self._waiting: deque[Item] = deque()
        self._links: list[Link] = []
        self._numbers = count(1)
        self._deaths = Deaths()
        self._failed_starts = 0
        self._closed = False
        #: past their time by the engine's clock -> when their worker began them, once it has
        self._late: dict[Work, float | None] = {}
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        for _ in range(plan.spec.concurrency):
            self._hire()
        threading.Thread(target=self._dispatch, name="weft-dispatch", daemon=True).start()

    def _hire(self) -> None:
        name = f"weft-{self._plan.spec.name}"
        self._links.append(Link(name, self._spec, self._heard, self._died))

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
            # A worker that is not hungry now will be when it has answered, and is fed then.
            hungry = any(link.hungry and not link.feeding for link in self._links)
        if hungry:
            self._tokens.put(True)

    def cancel(self, work: Work, *, expired: bool) -> None:
        """A time-out kills the worker; a partition that goes away does not."""
        if expired:
            with self._lock:
                self._late.setdefault(work, None)
                self._end_late()
            self._tokens.put(True)

    def _end_late(self) -> None:
        """Kill the workers of calls whose time is over.

        The engine's clock began when the record was granted. Its worker may still have been
        opening then, so a call that has not begun, or only just, gets its time from here on.
        """
        now, limit = time.monotonic(), self._plan.spec.timeout_s or 0.0
        for work, seen_at in list(self._late.items()):
            link = self._running(work)
            if work.state not in (RUNNING, SUPERSEDED):
                del self._late[work]
            elif link is None:
                continue
            elif seen_at is None and now - link.began_at < limit:
                self._late[work] = link.began_at
            elif now - (seen_at or link.began_at) >= limit:
                del self._late[work]
                link.given[link.at_hand].timed_out = True
                link.kill()

    def _running(self, work: Work) -> Link | None:
        for link in self._links:
            item = link.given.get(link.at_hand)
            if item is not None and work in item.works:
                return link
        return None

    def warn(self, partitions: Sequence[Partition] | None) -> None:
        """Take back what has not started of these; tell running batches."""
        if partitions is None:
            with self._lock:
                for link in self._links:
                    if any(item.batch for item in link.given.values()):
                        link.send(Warn())
            return
        gone = set(partitions)
        with self._lock:
            taken = [i for i in self._waiting if any(w.partition in gone for w in i.works)]
            for item in taken:
                self._waiting.remove(item)
            for link in self._links:
                self._recall(link, gone)
        self._give_back(taken)

    def _recall(self, link: Link, gone: set[Partition]) -> None:
        numbers = [n for n, i in link.given.items() if any(w.partition in gone for w in i.works)]
        if numbers:
            link.send(Drop(numbers))
            if any(link.given[number].batch for number in numbers):
                link.send(Warn())

    def close(self) -> None:
        """End all workers; none is left when this returns."""
        with self._lock:
            self._closed = True
            links = list(self._links)
        self._tokens.put(False)
        for link in links:
            link.close()
        for link in links:
            link.process.join(CLOSE_S)
            link.kill()
            link.process.join(CLOSE_S)

    # -- giving out --------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        """On a thread of its own: a pipe may be full, and the door may not wait for it."""
        while not self._closed:
            with contextlib.suppress(Empty):
                self._tokens.get(timeout=LOOK_S if self._late or self._queued() else None)
            while not self._tokens.empty():
                self._tokens.get()
            self._dispatch_now()

    def _dispatch_now(self) -> None:
        with self._lock:
            if self._closed:
                return
            if self._late:
                self._end_late()
            back = self._give_out(self._links)
            if not self._waiting and any(link.hungry for link in self._links):
                self._relieve()
        self._give_back(back)

    def _queued(self) -> bool:
        """A worker has been given more than what it runs."""
        return any(len(link.given) > 1 for link in self._links)

    def _relieve(self) -> None:
        """Take back what waits behind a call that turned out slow: another worker has time."""
        for link in self._links:
            at_hand = link.given.get(link.at_hand)
            behind = [n for n, i in link.given.items() if i is not at_hand and not i.batch]
            if behind and link.slow:
                link.send(Drop(behind))

    def _feed(self, link: Link) -> None:
        """On the link's own thread: waking another one for each answer costs more than this."""
        with self._lock:
            link.feeding = False
            back = self._give_out([link]) if link.hungry and not self._closed else []
            look = self._late or (link.hungry and self._queued())
        self._give_back(back)
        if look:
            self._tokens.put(True)

    def _give_out(self, links: Sequence[Link]) -> list[Item]:
        """Fill the workers' windows, the emptiest first; what may not be called any more."""
        back: list[Item] = []
        at_most_once = self._plan.spec.delivery == AT_MOST_ONCE
        while self._waiting:
            link = max(links, key=lambda one: one.room, default=None)
            if link is None or link.room == 0:
                break
            chunk = []
            for _ in range(max(1, link.room // 2) if len(links) > 1 else link.room):
                if not self._waiting:
                    break
                item = self._waiting.popleft()
                if not all(may_call(work, at_most_once=at_most_once) for work in item.works):
                    back.append(item)
                    continue
                chunk.append(item)
                if item.batch:
                    break
            if chunk:
                self._send(link, chunk)
        return back

    def _send(self, link: Link, items: list[Item]) -> None:
        records = []
        for item in items:
            for work in item.works:
                number = next(self._numbers)
                link.given[number] = item
                records.append((number, work.record))
        topics = {record.topic for _, record in records} if self._plan.ledger is not None else ()
        ids = {topic: self._plan.ledger.topic_id_of(topic) for topic in topics if self._plan.ledger}
        link.send(Job(records, items[0].batch, self._plan.calls is not None, ids))

    def _give_back(self, items: Sequence[Item]) -> None:
        for item in items:
            ends: list[Ended] = [GivenBack(work) for work in item.works]
            if item.batch:
                self._batch_ended(item, [], ends, whole=False)
            else:
                self._door.ended.extend(ends)
        if items:
            self._door.turn()

    # -- on a reader's thread ----------------------------------------------------------------------

    def _heard(self, link: Link, message: Any) -> None:
        if isinstance(message, Reply):
            self._replied(link, message)
        elif isinstance(message, BatchReply):
            self._batch_replied(link, message)
        elif isinstance(message, Opened):
            self._opened(link, message)
        if not link.more_to_read():
            link.feeding = True
            self._door.turn()
            self._feed(link)

    def _opened(self, link: Link, message: Opened) -> None:
        if message.error is None:
            link.opened = True
            self._failed_starts = 0
            return
        _log.error("worker process: %s", message.error.traceback)
        self._fail(
            f"handler {self._plan.spec.name}: its worker process cannot open: "
            f"{message.error.type}: {message.error.message}"
        )

    def _replied(self, link: Link, reply: Reply) -> None:
        with self._lock:
            item = link.given.get(reply.number)
            if item is None:
                return
            if reply.outcome == "acked":
                work = self._work_of(link, item, reply.number)
                item.acked.add(work)
            else:
                del link.given[reply.number]
                work = item.works[0]
        if reply.outcome == "acked":
            self._acked(work, reply)
            return
        if reply.ended:
            self._remember(link, [work], reply.began, reply.ended, reply.returned)
        if self._plan.ledger is not None:
            self._plan.ledger.repeats += reply.repeats
        end = end_of(work, reply)
        if end is None:
            self._door.done.append(work)
        else:
            self._door.ended.append(end)

    def _work_of(self, link: Link, item: Item, number: int) -> Work:
        first = min(n for n, one in link.given.items() if one is item)
        return item.works[number - first]

    def _acked(self, work: Work, reply: Reply) -> None:
        done = [] if reply.outputs else [work]
        ended: list[Ended] = [Returned(work, reply.outputs)] if reply.outputs else []
        self._door.post(lambda engine, now: engine.batch_progressed(now, done, ended))

    def _batch_replied(self, link: Link, message: BatchReply) -> None:
        numbers = [reply.number for reply in message.replies]
        with self._lock:
            item = next((i for i in link.given.values() if i.batch), None)
            if item is None:
                return
            first = min(n for n, one in link.given.items() if one is item)
            for number in [n for n, one in link.given.items() if one is item]:
                del link.given[number]
        works = [item.works[number - first] for number in numbers]
        if self._plan.ledger is not None:
            self._plan.ledger.repeats += message.repeats
        shared = SharedOutputs(message.shared, len(works)) if message.shared else None
        done, ended = [], []
        for work, reply in zip(works, message.replies, strict=True):
            end = Returned(work, shared) if shared is not None else end_of(work, reply)
            (done.append(work) if end is None else ended.append(end))
        self._batch_ended(item, done, ended, whole=message.whole)

    def _batch_ended(
        self, item: Item, done: list[Work], ended: list[Ended], *, whole: bool
    ) -> None:
        handler = item.works[0].partition.handler.index
        self._door.post(
            lambda engine, now: engine.batch_ended(now, handler, done, ended, whole=whole)
        )

    def _remember(
        self, link: Link, works: list[Work], began: float, ended: float, returned: Any
    ) -> None:
        link.took(ended - began)
        self._plan.latency.add(ended - began)
        if self._plan.calls is not None:
            call = Call(began, ended, returned)
            self._plan.calls.update(dict.fromkeys(works, call))

    # -- death -------------------------------------------------------------------------------------

    def _died(self, link: Link) -> None:
        with self._lock:
            if self._closed or link not in self._links:
                return
            self._links.remove(link)
            at_hand = link.given.get(link.at_hand)
            rest = {id(item): item for item in link.given.values() if item is not at_hand}
            link.given.clear()
            # Not started: to the front, in the order in which they were given.
            self._waiting.extendleft(reversed(list(rest.values())))
            self._failed_starts += not link.opened
            hopeless = self._failed_starts >= STARTS_MAX
            if not hopeless:
                self._hire()
        event(
            _log,
            "warning",
            "worker process ended",
            handler=self._plan.spec.name,
            how=link.how_it_died(),
        )
        if at_hand is not None:
            self._charge(link, at_hand)
        if hopeless:
            self._fail(
                f"handler {self._plan.spec.name}: {STARTS_MAX} worker processes ended before they "
                f"were ready; the last {link.how_it_died()}"
            )
        self._door.turn()
        self._tokens.put(True)

    def _charge(self, link: Link, item: Item) -> None:
        """The call that ran when its worker ended has failed."""
        left = [work for work in item.works if work not in item.acked]
        limit_s = self._plan.spec.timeout_s if item.timed_out else None
        ends: list[Ended] = [
            timed_out(work, limit_s) if limit_s is not None else self._deaths.of(work, link, item)
            for work in left
        ]
        if item.batch:
            self._batch_ended(item, [], ends, whole=not self._spec.explicit)
        else:
            self._door.ended.extend(ends)
