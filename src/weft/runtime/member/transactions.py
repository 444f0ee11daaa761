"""exactly_once: run the engine's transactions on a separate thread.

Handlers continue while a transaction commits; records that finish go into the next one. The
group membership is taken together with the snapshot and used for that transaction only: with
membership asked for later, the broker would take offsets for a partition that has moved.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

from weft import guard
from weft.core import effects as fx
from weft.core.work import Work
from weft.kafka.ports import (
    Delivery,
    KafkaUnavailable,
    OutMessage,
    ToCommit,
    TransactionEnd,
    TransactionsPort,
    which_way,
)
from weft.runtime.histogram import CALL_S, Histogram
from weft.runtime.logs import event
from weft.runtime.member.dead_letters import Letters
from weft.runtime.member.outputs import Refusals
from weft.runtime.member.seat import Seat
from weft.runtime.shared import SharedOutputs
from weft.types import ErrorInfo, Sent

_log = logging.getLogger("weft")

UNKNOWN_RETRY_S = 1.0
UNANSWERED = ErrorInfo("_MSG_TIMED_OUT", "an output was not acknowledged in a transaction's time")
SLOW_S = 8.0  # of the ten that a transaction has: the next one is half as large


class Transactor:
    """Runs the engine's transactions one after another."""

    def __init__(self, seat: Seat, port: TransactionsPort, group: str, *, batches: bool) -> None:
        """`batches`: some of the group's handlers take batches."""
        self._seat = seat
        self._port = port
        self._queue: SimpleQueue[tuple[fx.Transact, Any] | None] = SimpleQueue()
        self._thread = guard.thread("weft-transactions", self._run, seat.died)
        self._batches = batches
        self._refusals = Refusals()
        self.letters = Letters(group)
        #: seconds of each transaction, also of aborted ones and of those with unknown outcome
        self.took = Histogram(CALL_S)
        #: dead letters as they are sent, by their record's id, until the next commit
        self._letters: dict[int, tuple[Work, OutMessage]] = {}
        #: outputs of batches that are in the transaction at hand
        self._shared_seen: set[int] = set()
        #: the transaction at hand took all its time
        self._slow = False

    def open(self) -> None:
        """End what a dead predecessor left open; before the group is joined."""
        self._port.open()
        self._thread.start()

    def begin(self, effect: fx.Transact) -> None:
        """Inside the door: take the membership that goes with this snapshot, and queue."""
        self._queue.put((effect, self._seat.consumer.membership()))

    def close(self, timeout_s: float) -> None:
        """Finish what is queued and stop."""
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # -- on the transactions' thread ---------------------------------------------------------------

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                self._transact(*job)
            except Exception as error:
                _log.exception("a transaction failed")
                self._seat.fail(f"transaction: {type(error).__name__}: {error}")
                return
        self._port.close()

    def _transact(self, effect: fx.Transact, membership: Any) -> None:
        works = [work for item in effect.items for work in item.claims]
        if self._batches:
            # Claims stand by partition, each in the order of completion. Batches reach over
            # partitions: sent where their first record stands, a later one could overtake an
            # earlier one.
            works.sort(key=_batch_number)
        self._shared_seen.clear()
        mine = [() if work.outputs is None else self._messages(work) for work in works]
        messages = [message for one in mine for message in one]
        offsets = [
            ToCommit(i.partition.topic, i.partition.number, i.frontier, i.metadata)
            for i in effect.items
        ]
        began = time.monotonic()
        try:
            end = self._port.transact(messages, offsets, membership, self._read_back)
        finally:
            membership.close()
        while end.outcome == "unknown" and not self._seat.ended.is_set():
            # Neither yes nor no may be assumed: find out before anything else is produced.
            self._seat.pause(UNKNOWN_RETRY_S)
            end = self._find_out(end, offsets)
        took_s = time.monotonic() - began
        self.took.observe(took_s)
        self._slow = took_s >= SLOW_S
        self._answer(effect.sequence, works, [len(one) for one in mine], end)

    def _find_out(self, end: TransactionEnd, offsets: Sequence[ToCommit]) -> TransactionEnd:
        try:
            self._port.open()
        except Exception as error:
            return TransactionEnd("unknown", end.deliveries, str(error))
        held = self._read_back(offsets)
        if held is None:
            return end
        return TransactionEnd(which_way(offsets, held), end.deliveries, end.reason)

    def _messages(self, work: Work) -> Sequence[OutMessage]:
        extra = work.outputs
        if type(extra) is SharedOutputs:  # a batch's, produced with the first of its records
            first = id(extra) not in self._shared_seen
            self._shared_seen.add(id(extra))
            return extra if first else ()
        if isinstance(extra, fx.SendDeadLetter):
            return [self._letter(work, extra)]
        return extra or ()

    def _letter(self, work: Work, sending: fx.SendDeadLetter) -> OutMessage:
        known, letter = self._letters.get(id(work), (None, None))
        if known is work and letter is not None:
            return letter
        letter = self.letters.of(work, sending.topic, sending.error)
        self._letters[id(work)] = work, letter
        return letter

    def _refitted(self, work: Work, error: ErrorInfo) -> bool:
        """A dead letter that is too large, or has no such partition, is another one next time."""
        sending = work.outputs
        if not isinstance(sending, fx.SendDeadLetter):
            return False
        other = self.letters.instead(work.record, self._letter(work, sending), error)
        if other is not None:
            self._letters[id(work)] = work, other
        return other is not None

    def _read_back(self, offsets: Sequence[ToCommit]) -> list[tuple[int | None, str]] | None:
        try:
            where = [(o.topic, o.partition) for o in offsets]
            held = self._seat.consumer.committed(where, 15.0)
        except KafkaUnavailable:
            return None
        return [held[one] for one in where]

    def _answer(
        self, sequence: int, works: Sequence[Work], counts: Sequence[int], end: TransactionEnd
    ) -> None:
        if end.outcome == "fenced":
            self._seat.fail(f"transaction: {end.reason}")
            # Nothing can be committed any more: there is nothing to finish for.
            self._seat.door.post(lambda engine, now: engine.stop(now, "now"))
        sent, refused, cut = [], [], False
        answers = iter(end.deliveries)
        batches: dict[int, ErrorInfo] = {}
        for work, count in zip(works, counts, strict=True):
            if work.outputs is None:
                continue  # nothing was to be sent for it
            mine = [next(answers) for _ in range(count)]
            sent.append((work, tuple(one.sent for one in mine if one and one.sent)))
            bad = next((one for one in mine if self._port.is_refusal(one)), None)
            shared = type(work.outputs) is SharedOutputs
            error = batches.get(id(work.outputs)) if bad is None and shared else bad and bad.error
            if error is None or end.outcome == "committed":
                continue
            if self._refitted(work, error):
                cut = True
                continue
            refused.append((work, error))
            self._refusals.report(error)
            if shared:  # all of its records fell with it; they stand behind the first
                batches[id(work.outputs)] = error
        if end.outcome == "committed":
            self._letters.clear()
        if end.lasts and not cut and len({id(work.outputs) for work, _ in sent}) == 1:
            refused = self._named(sent, end, refused)
        named = bool(refused) or cut or end.outcome != "aborted"
        content = None if named else end.content
        stuck = [] if named else _stuck(works, counts, end.deliveries, content or UNANSWERED)
        if content is not None and len(stuck) == len(sent):
            stuck = []  # all of them fell with the one that it was for
        self._tell(sequence, end, sent, refused, stuck, content)

    def _named(
        self,
        sent: list[tuple[Work, tuple[Sent, ...]]],
        end: TransactionEnd,
        refused: list[tuple[Work, ErrorInfo]],
    ) -> list[tuple[Work, ErrorInfo]]:
        """What was alone in the transaction is what it was aborted for."""
        if refused or end.content is None or end.outcome != "aborted":
            return refused
        self._refusals.report(end.content)
        return [(work, end.content) for work, _ in sent]

    def _tell(
        self,
        sequence: int,
        end: TransactionEnd,
        sent: list[tuple[Work, tuple[Sent, ...]]],
        refused: list[tuple[Work, ErrorInfo]],
        stuck: list[tuple[Work, ErrorInfo]],
        content: ErrorInfo | None,
    ) -> None:
        committed, slow = end.outcome == "committed", self._slow
        if not committed:
            why = end.reason or next((error.message for _, error in refused + stuck), "")
            event(_log, "warning", "transaction aborted", reason=why, refused=len(refused))
        self._seat.door.post(
            lambda engine, now: engine.transacted(
                now,
                sequence,
                committed=committed,
                slow=slow,
                sent=sent,
                refused=refused,
                stuck=stuck,
                reason=content,
                maps_too_large=not committed and end.maps_too_large,
            )
        )
        self._seat.wake()


def _stuck(
    works: Sequence[Work],
    counts: Sequence[int],
    deliveries: Sequence[Delivery | None],
    unanswered: ErrorInfo,
) -> list[tuple[Work, ErrorInfo]]:
    """Records whose outputs were not acknowledged, in a transaction of which none was refused.

    `unanswered`: the result of outputs without a report.

    Where some failed with words of their own it is those: the others went with the abort.
    """
    answers = iter(deliveries)
    found: dict[int, ErrorInfo] = {}
    for work, count in zip(works, counts, strict=True):
        for one in [next(answers) for _ in range(count)]:
            if one is None or one.sent is None:
                error = None if one is None or one.error is None else one.error
                silent = error is None or "PURGE" in error.type
                error_of = found.get(id(work.outputs), unanswered)
                found[id(work.outputs)] = error_of if silent or error is None else error
    if any(error is not unanswered for error in found.values()):
        found = {one: error for one, error in found.items() if error is not unanswered}
    return [(work, found[id(work.outputs)]) for work in works if id(work.outputs) in found]


def _batch_number(work: Work) -> int:
    # Not isinstance: a class of the ABCs takes ten times as long, and this is once a record.
    return work.outputs.number if type(work.outputs) is SharedOutputs else -1
