"""How a call in a worker process ended, and the end of those that are past their time."""

from __future__ import annotations

import time
from collections.abc import Sequence

from weft.core.endings import Ended, Failed, GivenBack, Returned
from weft.core.partition import Work
from weft.core.states import RUNNING, SUPERSEDED
from weft.policies import Retry
from weft.runtime.calls.invoke import failed
from weft.runtime.calls.processes.link import Item, Link
from weft.runtime.calls.processes.protocol import ENDED, BatchReply, Reply
from weft.runtime.shared import SharedOutputs
from weft.types import ErrorInfo

DEATHS_MAX = 2  # a record that kills its worker so often is exhausted


class Deaths:
    """Counts, for each record, the workers that died over it."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int, int], int] = {}

    def end_of(
        self, work: Work, link: Link, item: Item, limit_s: float | None, *, innocent: bool
    ) -> Ended:
        """How the call that ran when its worker ended has ended."""
        if innocent:
            return GivenBack(work)
        if link.killed_for is item:
            error = ErrorInfo("AttemptTimeout", f"no answer within timeout_s={limit_s}")
            return Failed(work, error, final=False)
        return self._died_over(work, link, item)

    def _died_over(self, work: Work, link: Link, item: Item) -> Failed:
        """The failed attempt of a record that ran when its worker died.

        A batch is not condemned for its deaths: it is tried again in halves, so that the record
        that kills is found.
        """
        died = f"its worker process {link.how_it_died()}"
        if work.partition.handler.spec.retry.attempts == 1 and len(item.works) == 1:
            # at_most_once, too: there is no second time to count to.
            return Failed(work, ErrorInfo("WorkerDied", died), final=True)
        where = (work.record.topic, work.record.partition, work.record.offset)
        deaths = self._counts.get(where, 0) + 1
        self._counts[where] = deaths
        final = deaths >= DEATHS_MAX and len(item.works) == 1
        if final:
            del self._counts[where]
        error = ErrorInfo("WorkerDied", f"{died}, {deaths} of {DEATHS_MAX} times")
        return Failed(work, error, final)


def end_of(work: Work, reply: Reply) -> Ended | None:
    """How a record's call ended, for the engine; None when it is simply done."""
    if reply.outcome == "given_back":
        return GivenBack(work)
    if reply.outcome == "failed":
        assert reply.error is not None
        return Failed(work, reply.error, reply.final, reply.delay_s)
    return Returned(work, reply.outputs) if reply.outputs else None


def ends_of(works: list[Work], message: BatchReply) -> tuple[list[Work], list[Ended]]:
    """How the records of a batch ended: those that are simply done, and the others."""
    called = [works[reply.number - message.number] for reply in message.replies]
    shared = SharedOutputs(message.shared, len(called)) if message.shared else None
    done: list[Work] = []
    ended: list[Ended] = []
    for work, reply in zip(called, message.replies, strict=True):
        end = Returned(work, shared) if shared is not None else end_of(work, reply)
        (done.append(work) if end is None else ended.append(end))
    return done, ended


class Unsendable(Exception):
    """A record that cannot be pickled."""


def unsendable(work: Work, error: Exception, retry: Retry) -> Failed:
    """The failed attempt of a record that no pipe can carry."""
    why = Unsendable(
        "the record cannot be sent to a worker process: have prefetch return what can be pickled "
        f"({type(error).__name__}: {error})"
    )
    return failed(work, why, retry)


class Late:
    """Kills the workers of calls whose time is over. Under the executor's lock.

    The engine's clock began when the record was granted. Its worker may still have been opening
    then, so a call that has not begun, or only just, gets its time from its beginning on.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        #: past their time by the engine's clock -> when their worker began them, once it has
        self._works: dict[Work, float | None] = {}

    def __bool__(self) -> bool:
        return bool(self._works)

    def add(self, work: Work) -> None:
        """The engine says that its time is over."""
        self._works.setdefault(work, None)

    def end(self, links: Sequence[Link]) -> None:
        """Kill for what is due; keep what has not begun or has time left."""
        now = time.monotonic()
        for work, seen_at in list(self._works.items()):
            link, item, began_at = _running(work, links)
            if link is None and work.state not in (RUNNING, SUPERSEDED):
                del self._works[work]
                continue
            # The first record stands for its batch, and may be done long before it.
            if link is None or began_at == ENDED:  # not begun; or its answer is on the way
                continue
            if seen_at is None and now - began_at < self._limit_s:
                self._works[work] = began_at
            elif now - (seen_at or began_at) >= self._limit_s:
                del self._works[work]
                link.killed_for = item
                link.kill()


def _running(work: Work, links: Sequence[Link]) -> tuple[Link | None, Item | None, float]:
    """The link that runs it, the call, and when that began."""
    for link in links:
        # The number first: a time read after it is that call's, or one that began later.
        item, began_at = link.given.get(link.at_hand), link.began_at
        if item is not None and work in item.works:
            return link, item, began_at
    return None, None, 0.0
