"""How a call in a worker process ended, for the engine."""

from __future__ import annotations

from weft.core.endings import Ended, Failed, GivenBack, Returned
from weft.core.work import Work
from weft.runtime.processes.link import Item, Link
from weft.runtime.processes.protocol import Reply
from weft.types import ErrorInfo

DEATHS_MAX = 2  # a record that kills its worker so often is exhausted


class Deaths:
    """Counts, for each record, the workers that died over it."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int, int], int] = {}

    def of(self, work: Work, link: Link, item: Item) -> Failed:
        """The failed attempt of a record that ran when its worker died.

        A batch is not condemned for its deaths: it is tried again in halves, so that the record
        that kills is found.
        """
        where = (work.record.topic, work.record.partition, work.record.offset)
        deaths = self._counts.get(where, 0) + 1
        self._counts[where] = deaths
        final = deaths >= DEATHS_MAX and len(item.works) == 1
        if final:
            del self._counts[where]
        message = f"its worker process {link.how_it_died()}, {deaths} of {DEATHS_MAX} times"
        return Failed(work, ErrorInfo("WorkerDied", message), final)


def timed_out(work: Work, limit_s: float) -> Failed:
    """The failed attempt of a record whose worker was killed for it."""
    error = ErrorInfo("AttemptTimeout", f"no answer within timeout_s={limit_s}")
    return Failed(work, error, final=False)


def end_of(work: Work, reply: Reply) -> Ended | None:
    """How a record's call ended, for the engine; None when it is simply done."""
    if reply.outcome == "given_back":
        return GivenBack(work)
    if reply.outcome == "failed":
        assert reply.error is not None
        return Failed(work, reply.error, reply.final, reply.delay_s)
    return Returned(work, reply.outputs) if reply.outputs else None
