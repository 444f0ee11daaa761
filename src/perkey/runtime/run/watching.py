"""Watch a run from a separate thread: report what takes too long, and the fix.

All of it runs on the watching thread. From the run's own threads it takes a time stamp and, for a
moment, the door; the handlers' loop is probed twice per second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perkey.account.account import Part
from perkey.account.begun import waits
from perkey.account.shown import counted, shown_key
from perkey.core import states
from perkey.core.states import InternalError
from perkey.core.work import Work
from perkey.kafka.ports import AdminPort, KafkaUnavailable, LoginRefused
from perkey.runtime.calls import stacks
from perkey.runtime.calls.aio import AsyncExecutor
from perkey.runtime.calls.batch_calls import BatchTasks
from perkey.runtime.calls.loops import HandlerLoop
from perkey.runtime.door import account_of
from perkey.types import TopicPartition

if TYPE_CHECKING:
    from perkey.runtime.member.member import Member

#: a slow call is logged once at each of these durations
LONG_CALL_S = (30.0, 300.0, 3600.0)
LOOP_BLOCKED_S = 1.0
LOOP_ASKED_EVERY_S = 0.5
OUTPUTS_LATE_S = 5.0
OUTPUTS_LOGGED_EVERY_S = 30.0
ACCOUNT_EVERY_S = 5.0
#: time without a partition, and interval after that
UNASSIGNED_S = (5.0, 30.0, 300.0)
GROUP_ASKED_EVERY_S = 5.0
#: so long a failed connection is the reason why a member has not joined: librdkafka tries again
#: after 10 s at most
JOINING_S = 15.0
BROKER_ASKED_EVERY_S = 2.0
BROKER_QUIET_S = 5.0
#: queried if this member has no topic; "unknown topic" is a response as well
NO_TOPIC = "perkey.connectivity.probe"
GROUP_ANSWER_S = 1.0
#: describing a group whose broker disconnects before responding can abort the process
#: (librdkafka#4605): the limit is generous, and no group is described soon after an outage
GROUP_STATE_S = 5.0
SETTLED_S = 60.0
AFTER_OUTAGE = "no broker answered, so the state of the group is queried again in a minute"
STILL_JOINING = (
    "still joining: the topic exists and no other member owns its partitions, so this member will "
    "get them; a slow broker or a busy machine takes longer"
)
#: a partition before the end of its log: checked so often, queried after so long and again after
UNMOVED_CHECK_S, UNMOVED_S, STABLE_QUERY_EVERY_S, STABLE_ANSWER_S = 1.0, 5.0, 10.0, 1.0
STABLE_LOGGED_S = 30.0
LONG_SHOWN_MAX = 5
BLOCKED_FIX = (
    'a handler blocks it: write it as a plain def, or set executor="threads" or "processes"'
)
NOT_BLOCKED_FIX = (
    "no handler blocks it, but the code in the stack (another task, the lifespan, or Perkey): run "
    "it in a thread"
)


#: what ends a slow call, by executor
LONG_FIX = {
    "async": "set timeout_s on the handler: it ends such a call",
    "threads": "a call in a thread cannot be cancelled: set a time-out on what it waits for (see "
    "the stack)",
    "processes": "set timeout_s on the handler: it ends the worker process",
}
#: of any call then: no time-out can end it
LOOP_FIX = "the handlers' loop is blocked: see the line about that, and its stack"
#: functions that call handlers on the loop
CALLERS = (
    AsyncExecutor._burst.__code__,  # noqa: SLF001  # our own function
    BatchTasks._run.__code__,  # noqa: SLF001  # our own function
)


class LoopWatch:
    """Whether the handlers' loop still runs."""

    def __init__(self, loop: HandlerLoop) -> None:
        self._loop = loop.loop
        self._thread = loop.thread_id
        #: when it was probed; None if it has answered
        self._asked_at: float | None = None
        self._next_at = 0.0
        #: a blocked loop was logged
        self.reported = False

    def blocked_s(self) -> float:
        """For how long it has not answered, in seconds; 0 while it runs."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    def ask(self) -> None:
        """Probe the loop, unless a probe is unanswered."""
        now = time.monotonic()
        if self._asked_at is not None or now < self._next_at:
            return
        self._asked_at, self._next_at = now, now + LOOP_ASKED_EVERY_S
        try:
            self._loop.call_soon_threadsafe(self._answer)
        except RuntimeError:  # closed: no handlers run any more
            self._asked_at = None

    def _answer(self) -> None:
        self._thread = threading.get_ident()
        self._asked_at = None

    def stack(self) -> tuple[list[str], bool]:
        """Where its thread is now, and whether that is in a handler."""
        for entry in CALLERS:
            if lines := stacks.of_thread(self._thread, inside=entry):
                return lines, True
        return stacks.of_thread(self._thread), False

    def blocked_by(self) -> str:
        """A short reason, for the liveness probe."""
        lines, handler = self.stack()
        where = lines[-1].partition(": ")[0] if lines else "an unknown place"
        return f"{'a handler blocks it' if handler else 'it is blocked, not by a handler'}: {where}"


class OpenTransactions:
    """Detects records behind another producer's open transaction; on the watching thread.

    A reader of committed records stops at the last stable offset: a log that continues behind it
    looks fully read. The last stable offset is queried for partitions that stay before their log's
    end for a while; the others cost one comparison per second.
    """

    def __init__(self, member: Member) -> None:
        self._member = member
        self._look_at = self._ask_at = 0.0
        #: partitions before the end of their log -> their position, and since when
        self._unmoved: dict[TopicPartition, tuple[int, float]] = {}
        #: those that were logged, with their position
        self._logged: dict[TopicPartition, int] = {}

    def look(self, now: float) -> None:
        """One check; called ten times per second."""
        if now < self._look_at or self._member.ending:
            return
        self._look_at = now + UNMOVED_CHECK_S
        # Partitions that are fetched, and not at the end of their log.
        short = [
            (where, partition.position)
            for where, partition in list(self._member.partitions.items())
            if partition.state == states.OPEN
            and not partition.intake_paused
            and partition.position < partition.log_end
        ]
        before = self._unmoved
        self._unmoved = {
            where: before[where] if before.get(where, (-1, now))[0] == position else (position, now)
            for where, position in short
        }
        still = [where for where, (_, since) in self._unmoved.items() if now - since >= UNMOVED_S]
        if not still:
            self._member.run_log.stable_ends = {}
        elif now >= self._ask_at:
            self._ask_at = now + STABLE_QUERY_EVERY_S
            run_log = self._member.run_log
            try:
                run_log.stable_ends = self._member.membership.consumer.stable_ends(
                    still, STABLE_ANSWER_S
                )
            except KafkaUnavailable:
                run_log.stable_ends = {}
            self._log(now, run_log.stable_ends)

    def _log(self, now: float, stable_ends: Mapping[TopicPartition, int]) -> None:
        """One line for each partition that has waited for long."""
        for where, (position, since) in self._unmoved.items():
            if now - since < STABLE_LOGGED_S or self._logged.get(where) == position:
                continue
            if stable_ends.get(where) == position:
                self._logged[where] = position
                self._member.run_log.line(
                    "warning",
                    "records wait behind an open transaction of another producer",
                    topic=where[0],
                    partition=where[1],
                    stable_end=position,
                    seconds=round(now - since),
                    next=f"perkey why {where[0]}:{where[1]}",
                )


class Watching:
    """Everything that is checked periodically, for one member."""

    def __init__(self, member: Member, group: str, loop: HandlerLoop | None) -> None:
        self._member = member
        self._group = group
        self.loop = None if loop is None else LoopWatch(loop)
        self._account_at = time.monotonic() + ACCOUNT_EVERY_S
        #: logged calls, and the last duration that was logged
        self._long: dict[Work, int] = {}
        self._outputs_logged_at = 0.0
        self._unassigned_at: float | None = time.monotonic()
        self._unassigned_logged = 0
        #: since when it has no partition in a stable group: others own them all
        self.in_reserve = False
        #: why it has no partition, from the state of the group; empty until that is known
        self._unassigned_because = ""
        self._group_asked_at = 0.0
        self._transactions = OpenTransactions(member)
        self._broker_asked_at = 0.0
        #: what was logged of the brokers: unavailable since, and that they refuse the login
        self._lost_logged_at: float | None = None
        self._refused_logged = False
        #: no call has ended and nothing was logged since the last check
        self.quiet = False

    def broker_away_s(self) -> float | None:
        """For how long no broker has answered; None while one does."""
        lost_at = self._member.run_log.broker_lost_at
        return None if lost_at is None else time.monotonic() - lost_at

    def look(self, admin: AdminPort | None) -> None:
        """One check; called ten times per second, and less often while nothing happens."""
        now = time.monotonic()
        self._look_at_loop()
        self._look_at_broker(now, admin)
        self._look_at_assignment(now, admin)
        self._transactions.look(now)
        if now >= self._account_at and not self._member.ending:
            self._account_at = now + ACCOUNT_EVERY_S
            self._look_at_records(now)
        samples = sum(
            histogram.fold()
            for plan in self._member.config.plans
            for histogram in (plan.latency, plan.ages, plan.waits)
        )
        self.quiet = not self._member.run_log.write() and not samples

    # -- the loop ----------------------------------------------------------------------------------

    def _look_at_loop(self) -> None:
        loop = self.loop
        if loop is None:
            return
        blocked_s = loop.blocked_s()
        if blocked_s >= LOOP_BLOCKED_S and not loop.reported:
            loop.reported = True
            lines, handler = loop.stack()
            self._member.run_log.line(
                "warning",
                "the handlers' loop is blocked",
                seconds=round(blocked_s, 1),
                next=BLOCKED_FIX if handler else NOT_BLOCKED_FIX,
                traceback="\n".join(lines),
            )
        elif blocked_s < LOOP_BLOCKED_S and loop.reported:
            loop.reported = False
            self._member.run_log.line("info", "the handlers' loop runs again")
        loop.ask()

    # -- the broker --------------------------------------------------------------------------------

    def _look_at_broker(self, now: float, admin: AdminPort | None) -> None:
        """Query a broker if none has responded for a while because there was no traffic."""
        run_log = self._member.run_log
        due = now - run_log.broker_seen_at >= BROKER_QUIET_S and now >= self._broker_asked_at
        if due and admin is not None and not self._member.leaving:
            self._broker_asked_at = now + BROKER_ASKED_EVERY_S
            self._ask_a_broker(now, admin)
        # Log one line when no broker answers any more, and one when one does again.
        lost_at, logged_at = run_log.broker_lost_at, self._lost_logged_at
        if run_log.refused is not None:  # its text differs each time: milliseconds, states
            if not self._refused_logged:
                run_log.line("warning", "the brokers refuse the login", reason=run_log.refused)
        elif lost_at is not None and logged_at is None:
            self._lost_logged_at = lost_at
            run_log.line(
                "warning",
                "no broker answers",
                seconds=round(time.monotonic() - lost_at, 1),
                next="nothing is fetched or committed until one does; calls continue, and their "
                "records are committed then",
            )
        elif lost_at is None and logged_at is not None:
            self._lost_logged_at = None
            away_s = round(run_log.broker_back_at - logged_at, 1)
            run_log.line("info", "a broker answers again", away_s=away_s)
        self._refused_logged = run_log.refused is not None

    def _ask_a_broker(self, now: float, admin: AdminPort) -> None:
        run_log, member = self._member.run_log, self._member
        seen_at = run_log.broker_seen_at
        try:
            # Not the group: see GROUP_STATE_S.
            admin.describe([next(iter(list(member.partitions)), (NO_TOPIC, 0))[0]], GROUP_ANSWER_S)
        except KafkaUnavailable:
            # One client without an answer is no proof: an answer to any other client counts.
            if run_log.broker_seen_at == seen_at and not member.answers(GROUP_ANSWER_S):
                run_log.broker_lost_at = run_log.broker_lost_at or seen_at
                return
        except LoginRefused as error:
            run_log.refused = str(error)
            run_log.broker_lost_at = run_log.broker_lost_at or seen_at
            return
        except Exception:  # noqa: S110  # it refuses what was asked, so it is there
            pass
        run_log.broker_seen(now)

    # -- the group ---------------------------------------------------------------------------------

    def _look_at_assignment(self, now: float, admin: AdminPort | None) -> None:
        member = self._member
        if member.partitions or member.unread() or member.leaving or member.fatal is not None:
            self._unassigned_at, self._unassigned_logged = None, 0
            self.in_reserve, self._unassigned_because = False, ""
            return
        if self._unassigned_at is None:
            self._unassigned_at = now
        count, for_s = self._unassigned_logged, now - self._unassigned_at
        run_log = member.run_log
        away = run_log.broker_lost_at is not None
        if for_s < UNASSIGNED_S[0] or now < self._group_asked_at or away:
            return
        self._group_asked_at = now + GROUP_ASKED_EVERY_S
        state, members, reason = self._group_state(admin)
        self.in_reserve = is_stable(state) and members > 1
        self._unassigned_because = reason
        if count < len(UNASSIGNED_S) and for_s >= UNASSIGNED_S[count]:
            self._unassigned_logged = count + 1
            member.run_log.line(
                "warning",
                "no partition yet",
                seconds=round(for_s, 1),
                group=self._group,
                group_state=state,
                members=members,
                reason=reason,
            )

    def unassigned(self) -> dict[str, Any]:
        """For how long this member has no partition, and why, as fields of the cause."""
        since = self._unassigned_at
        for_s = 0.0 if since is None else time.monotonic() - since
        reason = self._unassigned_because
        waits = "reserve" if self.in_reserve else "group" if reason else "joining"
        at, failed = self._member.run_log.connection_lost or (float("-inf"), "")
        ago_s = time.monotonic() - at
        if waits == "joining" and ago_s <= JOINING_S:
            reason = f"a connection failed {ago_s:.1f} s ago: {failed}"
        return {"for_s": round(for_s, 1), "why": waits, **({"reason": reason} if reason else {})}

    def _group_state(self, admin: AdminPort | None) -> tuple[str, int, str]:
        if time.monotonic() - self._member.run_log.broker_back_at < SETTLED_S:
            return "unknown", 0, AFTER_OUTAGE
        try:
            state, members = "", 0
            if admin is not None:
                admin.describe([NO_TOPIC], GROUP_ANSWER_S)  # fails if no broker answers now
                state, members = admin.group_state(self._group, GROUP_STATE_S)
        except Exception as error:
            return "unknown", 0, f"the brokers do not answer: {error}"
        if is_stable(state) and members == 1 and admin is not None:
            topics = self._member.config.topics
            literal = [topic for topic in topics if not topic.startswith("^")]
            patterns = [topic for topic in topics if topic.startswith("^")]
            if admin.describe(literal, GROUP_ANSWER_S) or admin.matching(patterns, GROUP_ANSWER_S):
                return state, members, STILL_JOINING
        return state, members, why_unassigned(state, members)

    # -- records -----------------------------------------------------------------------------------

    def _look_at_records(self, now: float) -> None:
        try:
            parts = account_of(self._member.door).parts()
        except InternalError:
            return
        clock = self._member.now()
        self._look_at_calls(clock, parts)
        if now >= self._outputs_logged_at:
            self._look_at_outputs(now, clock, parts)

    def _look_at_calls(self, clock: float, parts: list[Part]) -> None:
        running = {
            work: clock - work.since
            for part in parts
            if part.places["running"] or part.places["not_begun"]
            for work in (*part.works, *part.marked)
            if work is not None and work.state == states.RUNNING
        }
        self._long = {work: count for work, count in self._long.items() if work in running}
        begun = {w.partition.handler for w in running if not waits(w)}
        due = []
        for work, for_s in running.items():
            if waits(work) and work.partition.handler in begun:
                continue  # it waits for running calls
            reached = sum(for_s >= limit for limit in LONG_CALL_S)
            if reached > self._long.get(work, 0):
                self._long[work] = reached
                due.append((for_s, work))
        due.sort(key=lambda entry: entry[0], reverse=True)
        left_out = max(0, len(due) - LONG_SHOWN_MAX)
        for for_s, work in due[:LONG_SHOWN_MAX]:
            where = (work.partition.topic, work.partition.number, work.record.offset)
            handler = work.partition.handler
            kind = self._member.config.plans[handler.index].kind
            no_limit = handler.timeout_s is None or kind == "threads"  # a time-out cannot end it
            fix = {"next": LONG_FIX[kind]} if no_limit else {}
            if kind == "async" and self.loop is not None and self.loop.reported:
                fix = {"next": LOOP_FIX}
            if waits(work):
                fix = {"next": "wait: its worker processes are starting, or its prefetch runs"}
            others = {"more_such_calls": str(left_out)} if left_out else {}
            self._member.run_log.line(
                "warning",
                "a call has not started" if waits(work) else "a call is slow",
                seconds=round(for_s),
                handler=handler.name,
                topic=work.partition.topic,
                partition=work.partition.number,
                offset=work.record.offset,
                key=shown_key(work.record.key),
                attempt=work.attempts + 1,
                traceback="\n".join(self._member.executors[handler.index].stack(where)),
                **fix,
                **others,
            )

    def _look_at_outputs(self, now: float, clock: float, parts: list[Part]) -> None:
        late = [
            work
            for part in parts
            if part.places["sending"]
            for work in part.works
            if work is not None
            and work.state == states.SENDING
            and clock - work.since >= OUTPUTS_LATE_S
        ]
        if not late:
            return
        self._outputs_logged_at = now + OUTPUTS_LOGGED_EVERY_S
        oldest = min(late, key=lambda work: work.since)
        self._member.run_log.line(
            "warning",
            "outputs are not acknowledged",
            seconds=round(clock - oldest.since, 1),
            records=len(late),
            handler=oldest.partition.handler.name,
            topic=oldest.partition.topic,
            partition=oldest.partition.number,
            offset=oldest.record.offset,
            reason="the broker does not accept them: check that the output topic exists, has a "
            "leader, and this user may write to it",
        )


def is_stable(state: str) -> bool:
    """Whether the group has no rebalance in progress."""
    return state.upper() == "STABLE"


def why_unassigned(state: str, members: int) -> str:
    """Why this member has no partition, from the state of the group."""
    word = state.upper().replace("_", "").replace(" ", "")
    if word.startswith(("PREPARINGREBALANC", "COMPLETINGREBALANC", "ASSIGNING", "RECONCILING")):
        return (
            "the group waits for a member that does not respond: until session.timeout.ms if it "
            "was killed, until max.poll.interval.ms if it hangs or is still finishing its records"
        )
    if word == "STABLE" and members == 1:
        return (
            "the group has no other member: the topic was deleted, no topic matches the pattern, "
            "or its partitions do not respond"
        )
    if word == "STABLE":
        return (
            f"the group has {counted(members, 'member')} and no partition left for this one, or a "
            "killed member's session.timeout.ms has not passed"
        )
    if word in ("EMPTY", "DEAD"):
        return "the group does not know this member yet: the coordinator has not answered"
    return "the state of the group is unknown"
