"""Convert the options of an app's handlers to settings of runtime and engine; wrap ledgers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perkey.app_options import AppOptions
from perkey.core.events import NEVER
from perkey.decoding import is_async
from perkey.kafka.ports import AdminPort
from perkey.kafka.secrets import redacted
from perkey.options import HandlerOptions
from perkey.policies import Commit
from perkey.runtime.calls.pace import may_run_ahead
from perkey.runtime.handling import Charges, HandlerPlan
from perkey.runtime.logs import event
from perkey.types import Committed, RunReport

if TYPE_CHECKING:
    from perkey.ledger.ledger_run import LedgerRun

PROCESS_AHEAD = 32

Function = Callable[..., Any]


def plans_of(
    handlers: Sequence[HandlerOptions],
    around: Callable[[Function], Function],
    traced: Callable[[Function], Function],
) -> list[HandlerPlan]:
    """One plan per handler. Functions of the same name are numbered: snapshots use names.

    `around`: see `Connection`; `traced`: see `calls/tracing.py`.
    """
    seen: Counter[str] = Counter()
    plans: list[HandlerPlan] = []
    for handler in handlers:
        seen[handler.name] += 1
        count = seen[handler.name]
        plan = plan_of(handler, handler.name if count == 1 else f"{handler.name}-{count}")
        if handler.kind != "processes":  # there the worker finds the function by its name
            plan.function = traced(around(plan.function))
        if handler.budget is not None:
            plan.charges = Charges(len(plans))
            if handler.kind != "processes":
                plan.function = plan.charges.around(plan.function)
        plans.append(plan)
    return plans


def plan_of(handler: HandlerOptions, name: str) -> HandlerPlan:
    """The options of one handler, under its name in logs and snapshots."""
    plan = HandlerPlan.of(handler, name)
    spec = plan.spec
    if handler.kind == "processes" and may_run_ahead(spec):  # a worker never waits for its next
        each = PROCESS_AHEAD if spec.batch is None else 1
        plan.spec = replace(spec, ahead=spec.concurrency * each)
    return plan


#: `Commit()`: also when so many records are done, see `Limits.commit_after`
COMMIT_AFTER = 1_000


def commit_of(handlers: Sequence[HandlerOptions]) -> Commit:
    """One commit setting for all handlers of a member: the shortest interval among them."""
    counts = [h.commit.max_records for h in handlers if h.commit.max_records is not None]
    return Commit(
        interval_s=min(handler.commit.interval_s for handler in handlers),
        max_records=min(counts, default=None),
    )


def commit_after(handlers: Sequence[HandlerOptions]) -> int:
    """After how many records a member commits by default; never if all its handlers set that.

    Other deliveries, and `each`, do not wait for the interval: their commits are always due.
    """
    periodic = [h.commit for h in handlers if h.delivery == "at_least_once" and not h.commit.each]
    return COMMIT_AFTER if any(commit.by_default for commit in periodic) else NEVER


def log_start(
    options: AppOptions,
    handlers: Sequence[HandlerOptions],
    plans: Sequence[HandlerPlan],
    topics: Sequence[str],
    until: str | None,
) -> None:
    """One line with the effective options; secrets are masked."""
    shown = {
        plan.spec.name: f"{handler.ordering}/{handler.kind}/{plan.spec.concurrency}"
        for handler, plan in zip(handlers, plans, strict=True)
    }
    event(
        "info",
        "starting",
        **options.shown(),
        topics=",".join(topics),
        handlers=shown,
        until=until,
        kafka=redacted(options.kafka),
    )


def log_end(report: RunReport) -> None:
    """The last line of a run."""
    event(
        "info",
        "ended",
        exit_code=report.exit_code,
        reason=report.reason,
        done=report.done,
        failed_attempts=report.failed_attempts,
        dead_lettered=report.dead_lettered,
        skipped=report.skipped,
        parked=report.parked,
        seconds=round(report.seconds, 3),
    )


ANSWER_S = 10.0


def open_ledgers(
    handlers: Sequence[HandlerOptions],
    plans: Sequence[HandlerPlan],
    group: str,
    admin: AdminPort,
    waits: Callable[[str, str], None],
) -> list[LedgerRun]:
    """Create the tables and have each handler called inside its ledger's transaction.

    `waits` gets what the start waits for, and the database's place without its password.

    Raises ConfigError if a database cannot be used.
    """
    ledgers = []
    for handler, plan in zip(handlers, plans, strict=True):
        if handler.ledger is None:
            continue
        from perkey.ledger.ledger_run import LedgerRun  # SQLAlchemy comes with an extra

        ledger = LedgerRun(
            handler.ledger,
            group,
            use_async=is_async(handler.function),
            concurrency=handler.concurrency,
            topic_id=topic_ids(admin),
        )
        waits("ledger", handler.ledger.url.rpartition("@")[2].partition("?")[0])
        ledger.prepare()
        plan.ledger = ledger
        if handler.kind != "processes":  # a worker process opens the ledger itself
            plan.function = ledger.around(plan.function)
            asked = plan.spec.concurrency
            if ledger.concurrency < asked:  # further calls would only wait for a connection
                plan.spec = replace(plan.spec, concurrency=ledger.concurrency)
                event(
                    "warning",
                    "the ledger's connection pool caps concurrency",
                    handler=plan.spec.name,
                    asked=asked,
                    concurrency=ledger.concurrency,
                )
        ledgers.append(ledger)
    return ledgers


def topic_ids(admin: AdminPort) -> Callable[[str], str]:
    """Topic -> its id, which changes if the topic is recreated under the same name."""

    def topic_id(topic: str) -> str:
        return str(admin.describe([topic], ANSWER_S)[topic].topic_id)

    return topic_id


def pruning(
    ledgers: Sequence[LedgerRun], on_commit: Callable[..., Any] | None
) -> Callable[[list[Committed]], None]:
    """The user's `on_commit`, preceded by the removal of old ids from the ledgers."""

    def committed(items: list[Committed]) -> None:
        for ledger in ledgers:
            ledger.prune(items)
        if on_commit is not None:
            on_commit(items)

    return committed
