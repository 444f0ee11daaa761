"""exactly_once: run the engine's transactions on a separate thread.

Handlers continue while a transaction commits; records that finish go into the next one. The group
membership is taken together with the snapshot and used for that transaction only: with a membership
taken later, the broker would accept offsets for a partition that has moved.

A successor with the `transactional.id` of a killed member ends its open transaction immediately.
Two members with one id would fence each other forever. So an id names the host, the user's
installation (two containers may have one host name and different folders), and a slot that a file
lock holds, which the kernel releases however the process ends. Only the user may write to the
folder of the locks: otherwise others could take the locks, or place a link.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from perkey import guard
from perkey.core import effects as fx
from perkey.core.states import CLOSED
from perkey.core.work import Work
from perkey.kafka.clientlog import Sparse
from perkey.kafka.ports import (
    Delivery,
    KafkaUnavailable,
    OutMessage,
    ReadBack,
    ToCommit,
    TransactionEnd,
    TransactionsPort,
    which_way,
)
from perkey.runtime.histogram import CALL_S, Histogram
from perkey.runtime.logs import event
from perkey.runtime.member.committing import offsets_of
from perkey.runtime.member.group_membership import GroupMembership
from perkey.runtime.member.outputs import Letters, Refusals
from perkey.runtime.shared import SharedOutputs
from perkey.types import ErrorInfo, Sent

_log = logging.getLogger("perkey")

UNKNOWN_RETRY_S = 1.0
UNKNOWN_LOGGED_EVERY_S = 60.0
UNANSWERED = ErrorInfo("_MSG_TIMED_OUT", "an output was not acknowledged in a transaction's time")
SLOW_S = 8.0  # of the ten that a transaction has: the next one is half as large


class Transactor:
    """Runs the engine's transactions one after another."""

    def __init__(
        self, membership: GroupMembership, port: TransactionsPort, group: str, *, batches: bool
    ) -> None:
        """`batches`: some of the group's handlers take batches."""
        self._membership = membership
        self._port = port
        self._queue: SimpleQueue[tuple[fx.Transact, Any] | None] = SimpleQueue()
        self._thread = guard.thread("perkey-transactions", self._run, membership.died)
        self._batches = batches
        self._refusals = Refusals()
        self.letters = Letters(group)
        #: seconds of each transaction, also of aborted ones and those with unknown outcome
        self.took = Histogram(CALL_S)
        #: dead letters as they are sent, by their record's id, until the next commit
        self._letters: dict[int, tuple[Work, OutMessage]] = {}
        #: outputs of batches in the current transaction
        self._shared_seen: set[int] = set()
        #: whether the current transaction used all its time
        self._slow = False

    def open(self) -> None:
        """End what a dead predecessor left open; before the group is joined."""
        self._port.open()
        self._thread.start()

    def begin(self, effect: fx.Transact) -> None:
        """Inside the door: take the membership that belongs to this snapshot, and queue."""
        self._queue.put((effect, self._membership.consumer.membership()))

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
                self._membership.fail(f"transaction: {type(error).__name__}: {error}")
                return
        self._port.close()

    def _transact(self, effect: fx.Transact, membership: Any) -> None:
        works = [work for item in effect.items for work in item.claims]
        if self._batches:
            # Claims are grouped by partition, each in order of completion. Batches span partitions:
            # sent at the place of their first record, a later one could overtake an earlier one.
            # Not isinstance: for a class of the ABCs it takes ten times as long, and this is per
            # record.
            works.sort(key=lambda w: w.outputs.number if type(w.outputs) is SharedOutputs else -1)
        self._shared_seen.clear()
        messages_of = [() if work.outputs is None else self._messages(work) for work in works]
        messages = [message for one in messages_of for message in one]
        offsets, read_back = offsets_of(effect.items), partial(self._read_back, effect.items)
        began = time.monotonic()
        try:
            end = self._port.transact(messages, offsets, membership, read_back)
        finally:
            membership.close()
        lines = Sparse(UNKNOWN_LOGGED_EVERY_S)
        while end.outcome == "unknown" and not self._membership.ended.is_set():
            # The outcome is unknown: find out before anything else is produced.
            if lines.left_out() is not None:
                event(
                    "warning",
                    "nothing is committed: the outcome of a transaction is unknown",
                    seconds=round(time.monotonic() - began),
                    reason=end.reason,
                    next="its coordinator must end it: if the brokers answer, see their logs; none "
                    "ends in a topic whose max.message.bytes is below 78",
                )
            self._membership.pause(UNKNOWN_RETRY_S)
            end = self._find_out(end, offsets, read_back)
        took_s = time.monotonic() - began
        self.took.observe(took_s)
        self._slow = took_s >= SLOW_S
        self._answer(effect.sequence, works, [len(one) for one in messages_of], end)

    def _find_out(
        self, end: TransactionEnd, offsets: Sequence[ToCommit], read_back: ReadBack
    ) -> TransactionEnd:
        try:
            self._port.open()
        except Exception as error:
            return TransactionEnd("unknown", end.deliveries, str(error))
        held = read_back(offsets)
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
        """Replace a dead letter that is too large, or whose partition does not exist, next time."""
        sending = work.outputs
        if not isinstance(sending, fx.SendDeadLetter):
            return False
        other = self.letters.instead(work.record, self._letter(work, sending), error)
        if other is not None:
            self._letters[id(work)] = work, other
        return other is not None

    def _read_back(
        self, items: Sequence[fx.PlanItem], offsets: Sequence[ToCommit]
    ) -> list[tuple[int | None, str] | None] | None:
        """What the group holds; None for what this member gave up: its next owner may commit."""
        try:
            where = [(o.topic, o.partition) for o in offsets]
            held = self._membership.consumer.committed(where, 15.0)
        except KafkaUnavailable:
            return None
        ours = {item.partition.where for item in items if item.partition.state != CLOSED}
        # Without any it makes no difference: no record of theirs is handled or sent again here.
        return [held[place] if place in ours or not ours else None for place in where]

    def _answer(
        self, sequence: int, works: Sequence[Work], counts: Sequence[int], end: TransactionEnd
    ) -> None:
        if end.outcome == "fenced":
            # Nothing can be committed any more: there is no point in finishing.
            self._membership.fail(f"transaction: {end.reason}", mode="now")
        sent, refused, cut = [], [], False
        answers = iter(end.deliveries)
        batches: dict[int, ErrorInfo] = {}
        for work, count in zip(works, counts, strict=True):
            if work.outputs is None:
                continue  # it had no messages
            own_answers = [next(answers) for _ in range(count)]
            sent.append((work, tuple(one.sent for one in own_answers if one and one.sent)))
            bad = next((one for one in own_answers if self._port.is_refusal(one)), None)
            shared = type(work.outputs) is SharedOutputs
            error = batches.get(id(work.outputs)) if bad is None and shared else bad and bad.error
            if error is None or end.outcome == "committed":
                continue
            if self._refitted(work, error):
                cut = True
                continue
            refused.append((work, error))
            self._refusals.report(error)
            if shared:  # the batch's other records failed with it; they follow the first
                batches[id(work.outputs)] = error
        if end.outcome == "committed":
            self._letters.clear()
        alone = len({id(work.outputs) for work, _ in sent}) == 1 and not (cut or refused)
        if alone and end.lasts and end.content and end.outcome == "aborted":
            # A message alone in the transaction is the reason that it was aborted.
            self._refusals.report(end.content)
            refused = [(work, end.content) for work, _ in sent]
        named = bool(refused) or cut or end.outcome != "aborted"
        content = None if named else end.content
        stuck = [] if named else _stuck(works, counts, end.deliveries, content or UNANSWERED)
        if content is not None and len(stuck) == len(sent):
            stuck = []  # all failed because of the one at fault
        self._report(sequence, end, sent, refused, stuck, content)

    def _report(
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
            event("warning", "transaction aborted", reason=why, refused=len(refused))
        self._membership.door.post(
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
        self._membership.wake()


def _stuck(
    works: Sequence[Work],
    counts: Sequence[int],
    deliveries: Sequence[Delivery | None],
    unanswered: ErrorInfo,
) -> list[tuple[Work, ErrorInfo]]:
    """Records whose outputs were not acknowledged, in a transaction in which none was refused.

    `unanswered`: the result of outputs without a report.

    If some failed with a specific error, it is those: the others failed with the abort.
    """
    answers = iter(deliveries)
    refusals: dict[int, ErrorInfo] = {}
    for work, count in zip(works, counts, strict=True):
        for answer in [next(answers) for _ in range(count)]:
            if answer is None or answer.sent is None:
                error = None if answer is None or answer.error is None else answer.error
                silent = error is None or "PURGE" in error.type
                error_of = refusals.get(id(work.outputs), unanswered)
                refusals[id(work.outputs)] = error_of if silent or error is None else error
    if any(error is not unanswered for error in refusals.values()):
        refusals = {answer: error for answer, error in refusals.items() if error is not unanswered}
    return [(work, refusals[id(work.outputs)]) for work in works if id(work.outputs) in refusals]


SLOTS_MAX = 10_000
_INSTALLATION = "installation"
_LENGTH = 12
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE_FLAGS = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW


def stable_id(group: str, instance_id: str) -> str:
    """The id of the member with this `group.instance.id`."""
    return f"{group}-{instance_id}"


def transactional_id(group: str, instance_id: str | None) -> tuple[str, Callable[[], None]]:
    """The id of this member, and a function to call when it is free again.

    With a `group.instance.id` it is derived from that. If the user has no private folder for the
    locks the id is random; the log explains the cost.
    """
    if instance_id is not None:
        return stable_id(group, instance_id), lambda: None
    host = socket.gethostname()
    try:
        place, free = _held_place(hashlib.sha256(group.encode()).hexdigest()[:16])
    except OSError as error:
        event(
            "warning",
            "no directory for locks, so this member's transactional.id is random: what it "
            "leaves open when it is killed blocks read_committed readers for up to 10 s; set "
            "XDG_STATE_HOME to a folder of this user, or give each member a group.instance.id",
            reason=str(error),
        )
        return f"{group}-{host}-{secrets.token_hex(_LENGTH)}", lambda: None
    return f"{group}-{host}-{place}", free


def _held_place(digest: str) -> tuple[str, Callable[[], None]]:
    """A free `{installation}-{slot}`, and a function that releases it."""
    # Open the folder of the locks; OSError if there is none that belongs to this user only.
    given = os.environ.get("XDG_STATE_HOME")
    try:
        base = Path(given) if given else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise OSError("this user has no home folder") from error
    path = base / "perkey" / "members"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.mkdir(exist_ok=True, mode=0o700)
    folder = os.open(path, _FOLDER_FLAGS)  # refuses a link
    try:
        _check_own(folder, path)
        os.fchmod(folder, 0o700)
    except OSError:
        os.close(folder)
        raise
    try:
        installation = _installation(folder)
        for slot in range(SLOTS_MAX):
            held = _open(folder, f"{digest}-{slot}.lock")
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(held)
            else:
                return f"{installation}-{slot}", partial(os.close, held)
    finally:
        os.close(folder)
    raise RuntimeError(f"more than {SLOTS_MAX} members of one group with one lock folder")


def _check_own(opened: int, path: object) -> None:
    wrong = guard.complaint(os.fstat(opened))
    if wrong:
        raise OSError(f"{path} {wrong}")


def _open(folder: int, name: str) -> int:
    opened = os.open(name, _FILE_FLAGS, 0o600, dir_fd=folder)
    try:
        _check_own(opened, name)
    except OSError:
        os.close(opened)
        raise
    return opened


def _installation(folder: int) -> str:
    """A random name that is kept in the folder: created by the first, read by all."""
    kept = _open(folder, _INSTALLATION)
    try:
        fcntl.flock(kept, fcntl.LOCK_EX)  # freed with the file
        name = os.read(kept, 100).decode("ascii", "replace").strip()
        if len(name) != _LENGTH or not name.isalnum():
            name = secrets.token_hex(_LENGTH // 2)
            os.ftruncate(kept, 0)
            os.pwrite(kept, name.encode(), 0)
        return name
    finally:
        os.close(kept)
