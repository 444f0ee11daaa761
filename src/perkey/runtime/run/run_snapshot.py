"""`app.snapshot()`: the engine's state with rates and latencies, as JSON-able data."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perkey._version import __version__
from perkey.account.account import begin
from perkey.account.blockers import record_row
from perkey.account.picture import NO_PICTURE, maps, picture
from perkey.account.shown import error_row
from perkey.account.snapshot import NOT_LISTED, snapshot, with_left_out, with_unread
from perkey.core.states import InternalError
from perkey.runtime.door import account_of, copied
from perkey.runtime.handling import HandlerPlan
from perkey.runtime.histogram import summed
from perkey.runtime.member.member import Member
from perkey.types import RunReport, TopicPartition

if TYPE_CHECKING:
    from perkey.runtime.run.watching import Watching

#: calls whose stack is in a snapshot, and the least duration for it: reading one is not free
STACKS_MAX = 3
STACK_AFTER_S = 5.0
#: the reason of a run that ended before it was drained, or has no end
STOPPED = "stopped"
#: librdkafka repeats an error of a connection every 30 s
COORDINATOR_S = 45.0
#: several apps of one process are separate members
_runs = itertools.count()


def about_run(group: str, instance_id: str | None) -> dict[str, Any]:
    """The group, the member's name and where it runs."""
    host, number = socket.gethostname(), next(_runs)
    name = f"{host}-{os.getpid()}" + (f"-{number}" if number else "")
    return {
        "group": group,
        "member": instance_id or name,
        "pid": os.getpid(),
        "host": host,
        "started_at": round(time.time(), 3),
        "version": __version__,
    }


class Rates:
    """Remembers recent counts, so that a snapshot can contain rates."""

    WINDOW_S = 1.0

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._at = time.monotonic()
        self._rates: dict[str, float] = {}

    def rates(self, done: dict[str, int]) -> dict[str, float]:
        """Records per second over about the last second, by handler."""
        now = time.monotonic()
        elapsed_s = now - self._at
        if elapsed_s >= self.WINDOW_S or not self._rates:
            span_s = max(elapsed_s, 1e-6)
            self._rates = {n: (v - self._before.get(n, 0)) / span_s for n, v in done.items()}
            self._before, self._at = dict(done), now
        return self._rates


class Starting:
    """What a start waits for, until its member runs."""

    def __init__(self) -> None:
        self.waits("brokers")

    def waits(self, why: str, value: str = "", stack: Callable[[], list[str]] = list) -> None:
        """It waits for this from now on; `stack` reads where."""
        self._halt: dict[str, Any] = {"cause": "starting", "why": why, "value": value}
        self._since, self._stack = time.monotonic(), stack

    def failed(self, error: Exception) -> None:
        """What it waits for has failed, and is tried again."""
        self._halt["reason"] = str(error)

    def halt(self) -> dict[str, Any]:
        """The cause, for the snapshot."""
        for_s = round(time.monotonic() - self._since, 1)
        return {**self._halt, "for_s": for_s, "stack": self._stack()}


class Snapshots:
    """Makes the snapshots of one run."""

    def __init__(self, plans: Sequence[HandlerPlan], group: str, instance_id: str | None) -> None:
        self._plans = plans
        self._about = about_run(group, instance_id)
        self._rates = Rates()

    def taken(
        self,
        member: Member | None,
        watching: Watching | None = None,
        *,
        starting: Starting | None = None,
        over: bool,
        worst: bool = True,
        mapped: bool = False,
    ) -> dict[str, Any]:
        """The contract's snapshot; without the `worst` records it is cheaper.

        `mapped`: with the offset maps, for reports. `watching` knows the loop and the group.
        """
        begins = {"state": "starting", "at": round(time.time(), 3), "app": self._about}
        nothing: dict[str, Any] = {
            "partitions": [], "handlers": {}, "blockers": [], "halts": [], "holds": [],
            "failures": [], **with_left_out(NOT_LISTED, ()),
        }  # fmt: skip
        if starting is not None and not over:
            return begins | nothing | {"halts": [starting.halt()]}
        if member is None:
            return begins | nothing | {"state": "failed"}
        try:
            account = account_of(member.door, records=worst)
        except InternalError:
            return begins | nothing | {"state": "failed"}
        epoch_s, sent = time.time() - member.now(), member.transactor
        shot = snapshot(account, epoch_s, worst=worst, unread=member.unread())
        if member.refetched:
            shot["counts"]["partitions_refetched"] = member.refetched
        if mapped:
            shot["maps"] = maps(account.parts())
        rows = shot["handlers"]
        rates = self._rates.rates({name: row["done"] for name, row in rows.items()})
        for plan in self._plans:
            row = rows[plan.spec.name]
            row["rate_per_s"] = round(rates.get(plan.spec.name, 0.0), 1)
            row["latency_ms"] = plan.latency.percentiles_ms()
            row["latency_buckets"] = plan.latency.buckets()
            row["age_buckets"] = plan.ages.buckets()
            row["wait_buckets"] = plan.waits.buckets()
            if plan.ledger is not None:
                row["repeats"] = plan.ledger.repeats
        calls = [halt["oldest"] for halt in shot["halts"] if "oldest" in halt]
        add_calls(member, [*calls, *shot["blockers"]])
        shot["halts"] = of_group(member, watching, shot["halts"])
        shot["halts"] += of_brokers(member, shot["partitions"])
        if worst and watching is not None:
            shot["halts"] += of_loop(member, watching, account.at, epoch_s)
        shot["halts"] += of_failures(member, shot)
        shot["halts"] += behind_transactions(shot["partitions"], member.run_log.stable_ends)
        return {
            **begins,
            "state": state_of(member, over=over),
            **shot,
            "failures": member.run_log.troubles.rows(),
            "callback_errors": member.callbacks.errors,
            "dead_letters_cut": member.outputs.letters.count + (sent.letters.count if sent else 0),
            "poll_gap_max_s": round(member.poll_gaps.max_s, 4),
            "poll_gap_recent_s": round(member.poll_gaps.recent_s(ended=member.ended.is_set()), 4),
            # Commits, and transactions with those in them.
            "commit_buckets": summed(
                member.committer.took.row(), sent.took.row() if sent else None
            ),
        }


def add_calls(member: Member, rows: Sequence[dict[str, Any]]) -> None:
    """Add what the engine does not know of these records: executor and stack."""
    executors = {
        plan.spec.name: (plan.kind, executor)
        for plan, executor in zip(member.config.plans, member.executors, strict=False)
    }
    for row in rows:
        row["executor"], row["stack"] = executors.get(row.get("handler", ""), ("", None))[0], []
    granted = [row for row in rows if row["place"] in ("running", "not_begun")]
    runs = [row for row in granted if row["for_s"] is not None]
    read: dict[tuple[str, int, int], list[str]] = {}
    # Started ones first: a call that waits to start was granted as long ago, and has no stack.
    for row in sorted(runs, key=lambda row: (row["place"] != "running", -row["for_s"])):
        where = (row["topic"], row["partition"], row["offset"])
        if where not in read and (row["for_s"] < STACK_AFTER_S or len(read) >= STACKS_MAX):
            continue
        if where not in read and row["handler"] in executors:
            read[where] = executors[row["handler"]][1].stack(where)
        row["stack"] = read.get(where, [])


def of_group(
    member: Member, watching: Watching | None, halts: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The same causes, with why this member has no partition, or which error ends the run."""
    ends = member.leaving or member.fatal is not None or member.engine.stop_mode is not None
    found = []
    for halt in halts:
        if ends and halt["cause"] in ("unassigned", "membership"):
            continue  # it leaves the group: a consequence
        details: Mapping[str, Any] = {}
        if halt["cause"] == "unassigned" and watching is not None:
            details = watching.unassigned()
        elif halt["cause"] == "stopping" and member.fatal is not None:
            details = {"reason": member.fatal.reason}
        elif halt["cause"] == "membership" and member.proof.waited_for:
            details = {"reason": member.proof.waited_for}
        found.append({**halt, **details})
    return found


def of_loop(member: Member, watching: Watching, at: float, epoch_s: float) -> list[dict[str, Any]]:
    """The cause if the handlers' loop is blocked: by the call of which record, or by what else."""
    loop = watching.loop
    if loop is None or not loop.reported or not (blocked_s := loop.blocked_s()):
        return []
    lines, by_handler = loop.stack()
    halt: dict[str, Any] = {"cause": "loop", "for_s": round(blocked_s, 1)}
    running = [executor.blocking() for executor in member.executors] if by_handler else []
    work = next((work for work in running if work is not None), None)
    if work is None:
        return [{**halt, "reason": lines[-1] if lines else "an unknown place"}]
    spec = work.partition.handler.spec
    row = {
        "topic": work.partition.topic, "partition": work.partition.number,
        "offset": work.record.offset, "handler": spec.name, "place": "running",
        **record_row(work, spec, at, epoch_s), "executor": "async", "stack": lines,
    }  # fmt: skip
    return [{**halt, "oldest": row}]


def of_failures(member: Member, shot: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The handlers of which every attempt fails, unless `hold=` or `brake=` has named them."""
    named = {
        streak["handler"] for streak in shot["halts"] if streak["cause"] in ("outage", "brake")
    }
    halts = []
    for name, streak in member.run_log.troubles.failing(shot["handlers"]).items():
        rows = [row for row in shot["partitions"] if row["handler"] == name]
        waiting = sum(row["retrying"] for row in rows)
        if name not in named and (waiting or any(row["in_flight"] for row in rows)):
            halts.append(
                {
                    "cause": "failing", "handler": name,
                    "failed": streak.failed, "waiting": waiting,
                    "since": round(streak.since, 3), "for_s": round(time.time() - streak.since, 1),
                    "error": error_row(streak.error),
                }
            )  # fmt: skip
    return halts


def of_brokers(member: Member, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The causes if the brokers do not answer, or refuse the login."""
    if (refused := member.run_log.refused) is not None:
        return [{"cause": "refused", "reason": refused}]
    if (lost_at := member.run_log.broker_lost_at) is not None:
        return [{"cause": "broker", "for_s": round(time.monotonic() - lost_at, 1)}]
    at, reason = member.run_log.coordinator_lost or (float("-inf"), "")
    ago_s = time.monotonic() - at
    waits = not rows or any(row["committed"] != row["frontier"] for row in rows)
    if ago_s > COORDINATOR_S or not waits:
        return []
    return [{"cause": "broker", "for_s": round(ago_s, 1), "reason": reason}]


def picture_of(member: Member | None, topic: str, number: int) -> dict[str, Any] | None:
    """One partition as `account/picture.py` draws it; None if this member does not own it."""
    if member is None:
        return None
    try:
        account, partitions = member.door.call(begin)
        wanted = [p for p in partitions if p.where == (topic, number)]
        account.copies.extend(copied(member.door, wanted, records=True))
    except InternalError:
        return None
    drawn = [picture(account, part, time.time() - member.now()) for part in account.parts()]
    unread = [
        partition
        for partition in member.unread()
        if (partition.topic, partition.number) == (topic, number)
    ]
    rows = with_unread([partition["partition"] for partition in drawn], unread, account.at)
    shown = drawn or [NO_PICTURE]
    add_calls(member, shown[0]["records"])
    return {**shown[0], "partition": rows[0]} if rows else None


def under_way(member: Member) -> int:
    """Calls and outputs that only the passing of time ends; none once the member has ended."""
    if member.ended.is_set() or member.door.broken is not None:
        return 0
    return member.door.call(lambda engine, _: engine.under_way())


def state_of(member: Member, *, over: bool) -> str:
    """The state of the run, in one word."""
    if over:
        return "failed" if member.fatal is not None else "ended"
    if member.leaving:
        return "leaving"
    if member.engine.stop_mode is not None or member.fatal is not None:
        return "stopping"
    if None in member.engine.paused:
        return "paused"
    return "running" if member.partitions else "waiting"


def ending_of(member: Member, signal_code: int | None, *, drained: bool) -> tuple[int, str]:
    """The exit code of a run and the reason; `signal_code` if signals ended it."""
    if signal_code is not None:
        return signal_code, "stopped by a second signal"
    if member.fatal is not None:
        return member.exit_code, member.fatal.reason
    if drained and any(handler.standing for handler in member.engine.handlers):
        return 3, "drained, but parked records remain"
    return (0, "drained") if drained else (0, STOPPED)


def report_of(member: Member, exit_code: int, reason: str, seconds: float) -> RunReport:
    """How the run ended, with its counts over all handlers."""
    handlers = member.engine.handlers
    return RunReport(
        exit_code=exit_code,
        reason=reason,
        done=sum(handler.done for handler in handlers),
        failed_attempts=sum(handler.failures for handler in handlers),
        retried=sum(handler.retries for handler in handlers),
        dead_lettered=sum(handler.dead_lettered for handler in handlers),
        skipped=sum(handler.skipped for handler in handlers),
        parked=sum(handler.parked for handler in handlers),
        superseded=sum(handler.superseded for handler in handlers),
        seconds=seconds,
        error=None if member.fatal is None else member.fatal.error,
    )


def behind_transactions(
    rows: Iterable[Mapping[str, Any]], stable_ends: Mapping[TopicPartition, int]
) -> list[dict[str, Any]]:
    """The partitions of a snapshot that are still behind an open transaction, as causes."""
    found = []
    for row in rows:
        stable_end = stable_ends.get((row["topic"], row["partition"]))
        if stable_end is not None and row["highest_seen"] + 1 == stable_end < row["end"]:
            where = {"topic": row["topic"], "partition": row["partition"]}
            found.append(
                {"cause": "open_transaction", **where, "stable_end": stable_end, "end": row["end"]}
            )
    return found
