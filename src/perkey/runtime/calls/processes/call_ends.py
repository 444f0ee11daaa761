"""How a call in a worker process ended, and its span as a parent of the next attempt's."""

from __future__ import annotations

from collections.abc import Iterable

from perkey.core.events import Ended, Failed, Returned, Unhandled
from perkey.core.work import Work
from perkey.runtime.calls.invoke import failed
from perkey.runtime.calls.processes.link import Item, Link
from perkey.runtime.calls.processes.protocol import BatchReply, Opened, Reply
from perkey.runtime.calls.tracing import Attempts, SpanIds, tracing_of
from perkey.runtime.logs import event
from perkey.runtime.shared import SharedOutputs
from perkey.types import ErrorInfo, Record

DEATHS_MAX = 2  # a record that kills its worker so often is exhausted


class Deaths:
    """Counts, for each record, the workers that died while they handled it."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int, int], int] = {}

    def end_of(
        self, work: Work, link: Link, item: Item, limit_s: float | None, *, innocent: bool
    ) -> Ended:
        """How the call that was running when its worker ended has ended."""
        if innocent:
            return Unhandled(work)
        if link.killed_for is item:
            error = ErrorInfo("AttemptTimeout", f"no answer within timeout_s={limit_s}")
            return Failed(work, error, final=False)
        # A batch is not exhausted by deaths: it is tried again in halves, so that the record that
        # kills is found.
        died = f"its worker process {link.how_it_died()}"
        if work.partition.handler.spec.retry.attempts == 1 and len(item.works) == 1:
            # Also with at_most_once: there is no second time.
            return Failed(work, ErrorInfo("WorkerDied", died), final=True)
        where = (work.record.topic, work.record.partition, work.record.offset)
        deaths = self._counts.get(where, 0) + 1
        self._counts[where] = deaths
        final = deaths >= DEATHS_MAX and len(item.works) == 1
        if final:
            del self._counts[where]
        error = ErrorInfo("WorkerDied", f"{died}, {deaths} of {DEATHS_MAX} times")
        return Failed(work, error, final)

    def survived(self, work: Work, end: Ended | None) -> None:
        """A worker has replied. Where it has handled the record, earlier deaths count no more."""
        if self._counts and not isinstance(end, Failed | Unhandled):
            record = work.record
            self._counts.pop((record.topic, record.partition, record.offset), None)


def end_of(work: Work, reply: Reply) -> Ended | None:
    """How a record's call ended, for the engine; None if it is simply done."""
    if reply.outcome == "unhandled":
        return Unhandled(work)
    if reply.outcome == "failed":
        assert reply.error is not None
        return Failed(
            work, reply.error, reply.final, reply.delay_s, reply.away, reply.budget_s, reply.not_now
        )
    return Returned(work, reply.outputs) if reply.outputs else None


def ends_of(works: list[Work], message: BatchReply) -> tuple[list[Work], list[Ended]]:
    """How the records of a batch ended: the simply done ones, and the others."""
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


def unsendable(work: Work, error: str) -> Failed:
    """The failed attempt of a record that no pipe can carry."""
    why = Unsendable(
        "the record cannot be sent to a worker process: have prefetch return what can be pickled, "
        f"and unpickled again ({error})"
    )
    return failed(work, why)


class WorkerSpans:
    """The spans that the workers of one handler report."""

    def __init__(self, handler: str, group: str) -> None:
        self._handler = handler
        self._failed = Attempts()
        self._expected = tracing_of(group) is not None

    def opened(self, message: Opened) -> None:
        """The parent has a tracer provider: warn once if a worker has none, so makes no spans."""
        if message.traced or not self._expected:
            return
        self._expected = False
        event(
            "warning",
            "no spans of worker processes",
            handler=self._handler,
            next="set up the tracer provider where each worker does it, too: at the top level of "
            "the handler's module, or in the lifespan",
        )

    def note(self, record: Record, reply: Reply) -> None:
        """Keep a failed attempt's span for the next one, which may be in another worker."""
        if reply.span is not None:
            self._failed.keep(record, reply.span)

    def before(self, records: Iterable[tuple[int, Record]]) -> dict[int, SpanIds] | None:
        """Spans of the previous attempts, by number; None, as nearly always, if there are none."""
        if not self._failed:
            return None
        known = {
            number: span
            for number, record in records
            if record.attempt > 1 and (span := self._failed.of(record)) is not None
        }
        return known or None
