"""Deliberately broken runtimes: the simulator must detect every one of them.

Each stands for a fault that was put into the real runtime once and that all other tests let pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from perkey.kafka.ports import TransactionEnd, which_way
from perkey.runtime.calls.aio import AsyncExecutor
from perkey.runtime.calls.processes.executor import ProcessExecutor
from perkey.runtime.calls.record_batch import Acks
from perkey.runtime.calls.threads import WorkerThreads
from perkey.runtime.door import Door
from perkey.runtime.member import committing, rebalance
from perkey.runtime.member.committing import Committer
from perkey.runtime.member.member import Member
from perkey.runtime.member.outputs import Outputs
from perkey.runtime.member.rebalance import Rebalance
from perkey.runtime.member.transactor import Transactor
from perkey.runtime.member.unread import Watchdog
from perkey.runtime.run import drain
from simulators.core.mutants import Mutant
from simulators.runtime.setup import Setup

Among = Callable[[Setup], bool]


@dataclass(frozen=True, slots=True)
class Fault(Mutant):
    """One way to break the runtime, and which seeds have what it needs to show."""

    among: Among = lambda _setup: True


MUTANTS: list[Fault] = []


def mutant(
    owner: Any,
    attribute: str,
    *promises: str,
    among: Among = lambda _setup: True,
    first_seed: int = 0,
) -> Callable[[Callable[..., Any]], None]:
    """Register a patch: the function gets the original and returns what takes its place."""

    def register(broken: Callable[..., Any]) -> None:
        name = broken.__name__.lstrip("_")
        MUTANTS.append(Fault(name, promises, owner, attribute, broken, first_seed, among))

    return register


def _rests(setup: Setup) -> bool:
    """Calm, with short calls among long ones on one loop, and nothing that hides who rests."""
    plain = setup.prefetch is None and not setup.outputs_max and setup.concurrency > 2
    fast = setup.durations[:2] == (0.0, 0.0) and setup.delivery != "at_most_once"
    return setup.calm and setup.kind == "async" and plain and fast and setup.produce_max > 3


def _lone_thread(setup: Setup) -> bool:
    """Nobody else takes what a sleeping thread left, and threads take turns often."""
    alone = setup.kind == "threads" and setup.concurrency == 1 and setup.batch is None
    return alone and setup.switch_odds >= 0.5 and not setup.by_priority


def _sends(setup: Setup) -> bool:
    """Partitions go while outputs are on their slow way, and all commits are stored."""
    odds = setup.odds
    stored = not (odds.commit_lost or odds.commit_refused or odds.answer_lost or setup.stall_odds)
    sends = setup.outputs_max and setup.store_s > 0.01 and setup.delivery == "at_least_once"
    return bool(stored and sends and setup.members > 1 and setup.revoke_timeout_s > 0.1)


def _commits_again(setup: Setup) -> bool:
    """The client sends commits again, nobody hears of some, and partitions go in mid-work."""
    odds, moves = setup.odds, setup.members > 1 and setup.protocol != "incremental"
    return bool(odds.commit_again > 0.3 and odds.answer_lost > 0.3 and moves and setup.actions > 2)


def _connections_break(setup: Setup) -> bool:
    """The client resends commits, long after Perkey has given up waiting."""
    odds = setup.odds
    return bool(max(odds.commit_lost, odds.answer_lost) > 0.3 and setup.actions > 2)


# -- outputs ---------------------------------------------------------------------------------------


@mutant(
    Outputs,
    "_queue",
    "S3",
    among=lambda one: one.outputs_max > 1 and one.queue_max < 3 and not one.transactional,
    first_seed=196,
)
def _full_queue_overtakes(original: Any) -> Any:
    def queue(self: Any, message: Any, on_delivery: Any) -> None:
        waiting, self._waiting = self._waiting, type(self._waiting)()
        original(self, message, on_delivery)
        waiting.extend(self._waiting)
        self._waiting = waiting

    return queue


# -- partitions that come and go -------------------------------------------------------------------


@mutant(rebalance, "quiet", "S6", among=_sends, first_seed=5147)
def _revoke_ignores_what_is_sending(original: Any) -> Any:
    return lambda partitions: not any(p.in_flight for p in partitions)


@mutant(committing, "_holds", "S7", "S2", first_seed=52)
def _plan_sent_after_its_epoch(original: Any) -> Any:
    return lambda _item, _sequence: True


@mutant(Committer, "under_way", "S2", "S4", "S6", "S7", among=_commits_again, first_seed=16_240)
def _last_commit_overtakes(original: Any) -> Any:
    return lambda _self, _where, _within_s=0.0: False


@mutant(Committer, "_unanswered", "S2", "S7", among=_connections_break, first_seed=42)
def _plan_sent_behind_an_unanswered_one(original: Any) -> Any:
    def unanswered(self: Any, where: Any, within_s: float) -> bool:
        return within_s != committing.RESENT_S and bool(original(self, where, within_s))

    return unanswered


@mutant(
    Rebalance,
    "_begin",
    "S4",
    "S8",
    "S7",
    "structure",
    "L1",
    among=lambda one: not one.calm and not one.assign_may_block and one.members > 1,
)
def _old_look_up_believed(original: Any) -> Any:
    def begin(self: Any, found: Any, token: int, began: float) -> None:
        for where in found:
            self.waiting[where] = token
        original(self, found, token, began)

    return begin


@mutant(Rebalance, "on_lost", "S7")
def _lost_committed_like_revoked(original: Any) -> Any:
    return lambda self, partitions: self.on_revoked(partitions)


@mutant(Committer, "forget", "L1", among=lambda one: one.odds.fenced > 0.3 and one.members > 1)
def _answers_of_a_former_consumer_are_awaited(original: Any) -> Any:
    return lambda _self: None


@mutant(Rebalance, "_found", "L1", among=lambda one: one.odds.leader_moved > 0.3)
def _unknown_start_is_not_looked_up_again(original: Any) -> Any:
    def found(self: Any, look: Any, _asked: Any, found: Any, reason: str) -> None:
        original(self, look, list(found), found, reason)

    return found


@mutant(Watchdog, "_refresh", "L1", among=lambda one: one.odds.leader_moved > 0.3, first_seed=101)
def _partition_sought_without_a_refresh(original: Any) -> Any:
    def refresh(self: Any, wanted: Any) -> None:
        ends = self._membership.consumer.stable_ends(list(wanted), 1.0)
        self._membership.on_poll_thread(lambda: self._refetch(wanted, ends))

    return refresh


# -- transactions ----------------------------------------------------------------------------------


@mutant(
    Transactor,
    "_transact",
    "S8",
    "S7",
    among=lambda one: one.transactional and one.odds.transaction_slow > 0,
    first_seed=1_199,
)
def _fresh_membership_for_an_old_transaction(original: Any) -> Any:
    def transact(self: Any, effect: Any, membership: Any) -> None:
        port, real = self._port, self._port.transact

        def late(messages: Any, offsets: Any, _old: Any, read_back: Any) -> Any:
            fresh = _Late(self._membership.consumer)
            return real(messages, offsets, fresh, read_back)

        port.transact = late
        try:
            original(self, effect, membership)
        finally:
            port.transact = real

    return transact


class _Late:
    """The membership as it is when it is used."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    @property
    def member_id(self) -> Any:
        return self._consumer.membership().member_id

    @property
    def generation(self) -> Any:
        return self._consumer.membership().generation


@mutant(
    Transactor,
    "_find_out",
    "S2",
    "S8",
    "L1",
    among=lambda one: one.transactional and one.odds.transaction_lost > 0,
    first_seed=191,
)
def _unknown_transaction_taken_as_committed(original: Any) -> Any:
    return lambda _self, end, *_: TransactionEnd("committed", end.deliveries, end.reason)


@mutant(
    Transactor,
    "_find_out",
    "S2",
    "S4",
    "S8",
    among=lambda one: one.transactional and one.odds.find_fails * one.odds.transaction_unheard > 0,
    first_seed=1660,
)
def _unreadable_commit_counts_as_nothing(original: Any) -> Any:
    def find_out(self: Any, end: Any, offsets: Sequence[Any], read_back: Any) -> Any:
        self._port.open()
        held = read_back(offsets) or [(None, "")] * len(offsets)
        return TransactionEnd(which_way(offsets, held), end.deliveries, end.reason)

    return find_out


@mutant(
    Transactor,
    "_read_back",
    "S8",
    among=lambda one: one.transactional and one.odds.transaction_unheard > 0,
    first_seed=5_622_973,
)
def _commits_of_another_member_show_an_abort(original: Any) -> Any:
    def read_back(self: Any, _items: Any, offsets: Sequence[Any]) -> Any:
        where = [(one.topic, one.partition) for one in offsets]
        held = self._membership.consumer.committed(where, 15.0)
        return [held[one] for one in where]

    return read_back


# -- wake-ups --------------------------------------------------------------------------------------


@mutant(Door, "turn", "L1", among=lambda one: one.calm, first_seed=2381)
def _door_looks_only_once(original: Any) -> Any:
    def turn(self: Any) -> None:
        if self.done or self.ended or self._events:
            if self.broken is not None or not self._lock.acquire(blocking=False):
                return
            try:
                self._drain()
            except Exception as error:
                self._break(error)
            finally:
                self._lock.release()

    return turn


@mutant(WorkerThreads, "_rest", "L1", among=_lone_thread, first_seed=1481)
def _threads_rest_without_a_second_look(original: Any) -> Any:
    def rest(self: Any) -> None:
        self._idle.append(None)
        self._tokens.get()
        self._waking = False

    return rest


@mutant(AsyncExecutor, "_on_suspend", "L1", among=_rests, first_seed=78_301)
def _async_neither_wakes_nor_flushes(original: Any) -> Any:
    return lambda _self: None


@mutant(Member, "_wake_for_deadline", "L1", among=lambda one: one.calm and one.kind == "async")
def _no_wake_for_a_deadline(original: Any) -> Any:
    return lambda _self: None


# -- worker processes ------------------------------------------------------------------------------


@mutant(
    ProcessExecutor,
    "_died",
    "S3",
    among=lambda one: one.kind == "processes" and one.concurrency == 1 and one.durations == (0.0,),
)
def _dead_workers_records_in_reverse(original: Any) -> Any:
    def died(self: Any, link: Any) -> None:
        given = link.given
        at_hand = given.pop(link.at_hand, None)
        link.given = dict(reversed(given.items()))
        if at_hand is not None:
            link.given[link.at_hand] = at_hand
        original(self, link)

    return died


@mutant(
    ProcessExecutor,
    "expire",
    "L1",
    among=lambda one: one.kind == "processes" and one.opens_s > 0 and one.timeout_s == 0.3,
    first_seed=4002,
)
def _calls_that_wait_are_overdue(original: Any) -> Any:
    def expire(self: Any, now: float) -> None:
        original(self, now)
        for link in self._links:
            works = [work for item in link.given.values() for work in item.works]
            limit_s = self._handler.timeout_s
            if limit_s and any(now - work.since >= limit_s for work in works):
                link.kill()
        waiting = [work for item in self._waiting for work in item.works]
        if waiting and now - waiting[0].since >= 10 * self._handler.timeout_s:
            self._door.engine.fail(now, "all slots are overdue")

    return expire


# -- the end ---------------------------------------------------------------------------------------


@mutant(drain, "acknowledged", "S4")
def _drained_before_acknowledged(original: Any) -> Any:
    return lambda _partition, _end: True


@mutant(
    Acks,
    "ack",
    "structure",
    "S2",
    "S3",
    "S4",
    among=lambda one: one.batch is not None and one.batch.ack == "explicit",
    first_seed=83,
)
def _late_acknowledgement_after_the_end(original: Any) -> Any:
    def ack(self: Any, index: int, tell: Any) -> bool:
        self._over = False
        return bool(original(self, index, tell))

    return ack
