"""Wrap the app's handlers with their ledgers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from weft.decoding import is_async
from weft.kafka.connect import AdminPort
from weft.ledger.handling import LedgerRun
from weft.options import HandlerOptions
from weft.runtime.handling import HandlerPlan
from weft.runtime.logs import event
from weft.types import Committed

_log = logging.getLogger("weft")

ANSWER_S = 10.0


def open_ledgers(
    handlers: Sequence[HandlerOptions],
    plans: Sequence[HandlerPlan],
    group: str,
    admin: AdminPort,
) -> list[LedgerRun]:
    """Make the tables and have each handler called inside its ledger's transaction.

    Raises ConfigError when a database cannot be used.
    """
    ledgers = []
    for handler, plan in zip(handlers, plans, strict=True):
        if handler.ledger is None:
            continue
        ledger = LedgerRun(
            handler.ledger,
            group,
            use_async=is_async(handler.function),
            concurrency=handler.concurrency,
            topic_id=topic_ids(admin),
        )
        ledger.prepare()
        plan.ledger = ledger
        if handler.kind != "processes":  # a worker process opens the ledger itself
            plan.function = ledger.around(plan.function)
            _cap(plan, ledger)
        ledgers.append(ledger)
    return ledgers


def _cap(plan: HandlerPlan, ledger: LedgerRun) -> None:
    """Each call holds a connection: more calls than connections would only wait for one."""
    asked = plan.spec.concurrency
    if ledger.concurrency < asked:
        plan.spec = replace(plan.spec, concurrency=ledger.concurrency)
        event(
            _log,
            "warning",
            "the ledger's connection pool caps concurrency",
            handler=plan.spec.name,
            asked=asked,
            concurrency=ledger.concurrency,
        )


def topic_ids(admin: AdminPort) -> Callable[[str], str]:
    """Topic -> its id, which tells a topic from one of the same name made after it."""

    def topic_id(topic: str) -> str:
        return str(admin.describe([topic], ANSWER_S)[topic].topic_id)

    return topic_id


def pruning(
    ledgers: Sequence[LedgerRun], on_commit: Callable[..., Any] | None
) -> Callable[[list[Committed]], None]:
    """The user's `on_commit`, with old ids dropped from the ledgers before it."""

    def committed(items: list[Committed]) -> None:
        for ledger in ledgers:
            ledger.prune(items)
        if on_commit is not None:
            on_commit(items)

    return committed
