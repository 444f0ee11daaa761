"""exactly_once: what the engine puts into a transaction, done on a thread of its own.

Handling goes on while a transaction commits; what finishes meanwhile rides in the next one. The
group membership is taken together with the snapshot and used for that transaction only: with
membership asked for later, the broker would take offsets for a partition that has moved.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from weft.core import effects as fx
from weft.core.work import Work
from weft.kafka.ports import (
    KafkaUnavailable,
    OutMessage,
    ToCommit,
    TransactionEnd,
    TransactionsPort,
    which_way,
)
from weft.runtime.logs import event
from weft.runtime.outputs import dead_letter
from weft.runtime.shared import SharedOutputs
from weft.types import ErrorInfo, Sent

if TYPE_CHECKING:
    from weft.runtime.member import Member

_log = logging.getLogger("weft")

SLOTS_MAX = 10_000
UNKNOWN_RETRY_S = 1.0


class Transactor:
    """Runs the engine's transactions one after another."""

    def __init__(self, member: Member, port: TransactionsPort, group: str) -> None:
        self._member = member
        self._port = port
        self._group = group
        self._queue: SimpleQueue[tuple[fx.Transact, Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="weft-transactions", daemon=True)
        self._batches = any(plan.spec.batch is not None for plan in member.config.plans)
        #: outputs of batches that are in the transaction at hand
        self._shared_seen: set[int] = set()

    def open(self) -> None:
        """End what a dead predecessor left open; before the group is joined."""
        self._port.open()
        self._thread.start()

    def begin(self, effect: fx.Transact) -> None:
        """Inside the door: take the membership that goes with this snapshot, and queue."""
        self._queue.put((effect, self._member.consumer.membership()))

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
                _log.exception("a transaction broke")
                self._member.fail(f"transaction: {type(error).__name__}: {error}")
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
        mine = [() if work.extra is None else self._messages(work) for work in works]
        messages = [message for one in mine for message in one]
        offsets = [
            ToCommit(i.partition.topic, i.partition.number, i.frontier, i.metadata)
            for i in effect.items
        ]
        try:
            end = self._port.transact(messages, offsets, membership, self._read_back)
        finally:
            membership.close()
        while end.outcome == "unknown" and not self._member.ended.is_set():
            # Neither yes nor no may be assumed: settle it before anything else is produced.
            self._member.pause_background(UNKNOWN_RETRY_S)
            end = self._settle(end, offsets)
        self._answer(effect.sequence, works, [len(one) for one in mine], end)

    def _settle(self, end: TransactionEnd, offsets: Sequence[ToCommit]) -> TransactionEnd:
        try:
            self._port.open()
        except Exception as error:
            return TransactionEnd("unknown", end.deliveries, str(error))
        held = self._read_back(offsets)
        if held is None:
            return end
        return TransactionEnd(which_way(offsets, held), end.deliveries, end.reason)

    def _messages(self, work: Work) -> Sequence[OutMessage]:
        extra = work.extra
        if type(extra) is SharedOutputs:  # a batch's, produced with the first of its records
            first = id(extra) not in self._shared_seen
            self._shared_seen.add(id(extra))
            return extra if first else ()
        if isinstance(extra, fx.SendDeadLetter):
            return [dead_letter(work, extra.topic, extra.error, self._group)]
        return extra or ()

    def _read_back(self, offsets: Sequence[ToCommit]) -> list[tuple[int | None, str]] | None:
        try:
            found = self._member.consumer.find([(o.topic, o.partition) for o in offsets], 15.0)
        except KafkaUnavailable:
            return None
        return [
            (found[o.topic, o.partition].committed, found[o.topic, o.partition].metadata)
            for o in offsets
        ]

    def _answer(
        self, sequence: int, works: Sequence[Work], counts: Sequence[int], end: TransactionEnd
    ) -> None:
        if end.outcome == "fenced":
            self._member.fail(f"another member took over this transactional id: {end.reason}")
            # Nothing can be committed any more: there is nothing to finish for.
            self._member.door.post(lambda engine, now: engine.stop(now, "now"))
        sent, refused = [], []
        answers = iter(end.deliveries)
        batches: dict[int, ErrorInfo] = {}
        for work, count in zip(works, counts, strict=True):
            if work.extra is None:
                continue  # nothing was to be sent for it
            mine = [next(answers) for _ in range(count)]
            sent.append((work, tuple(one.sent for one in mine if one and one.sent)))
            bad = next((one for one in mine if self._port.is_refusal(one)), None)
            shared = type(work.extra) is SharedOutputs
            error = batches.get(id(work.extra)) if bad is None and shared else bad and bad.error
            if error is not None and end.outcome != "committed":
                refused.append((work, error))
                if shared:  # all of its records fell with it; they stand behind the first
                    batches[id(work.extra)] = error
        self._tell(sequence, end, sent, refused)

    def _tell(
        self,
        sequence: int,
        end: TransactionEnd,
        sent: list[tuple[Work, tuple[Sent, ...]]],
        refused: list[tuple[Work, ErrorInfo]],
    ) -> None:
        committed = end.outcome == "committed"
        if not committed:
            event(_log, "warning", "transaction aborted", reason=end.reason, refused=len(refused))
        self._member.door.post(
            lambda engine, now: engine.transacted(
                now, sequence, committed=committed, sent=sent, refused=refused
            )
        )
        self._member.wake()


def _batch_number(work: Work) -> int:
    # Not isinstance: a class of the ABCs takes ten times as long, and this is once a record.
    return work.extra.number if type(work.extra) is SharedOutputs else -1


def transactional_id(group: str, instance_id: str | None) -> tuple[str, Callable[[], None]]:
    """The id of this member, and what to call when it is free again.

    With a `group.instance.id` it is that. Otherwise each member of a group on one host holds a
    slot by a file lock, which the kernel gives back however the process ends: the successor of a
    killed member gets its id and ends its open transaction at once.
    """
    if instance_id is not None:
        return f"{group}-{instance_id}", lambda: None
    digest = hashlib.sha256(group.encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"weft-slots-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for slot in range(SLOTS_MAX):
        held = os.open(folder / f"{digest}-{slot}.lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(held)
        else:
            return f"{group}-{socket.gethostname()}-{slot}", partial(os.close, held)
    raise RuntimeError(f"more than {SLOTS_MAX} members of group {group!r} on this host")
