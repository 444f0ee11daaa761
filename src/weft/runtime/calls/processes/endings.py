"""How a call in a worker process ended."""

from __future__ import annotations

from weft.core.events import Ended, Failed, GivenBack, Returned
from weft.core.work import Work
from weft.policies import Retry
from weft.runtime.calls.invoke import failed
from weft.runtime.calls.processes.link import Item, Link
from weft.runtime.calls.processes.protocol import BatchReply, Reply
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
