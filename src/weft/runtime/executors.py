"""Which executor calls which handler."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.options import HandlerOptions, is_async
from weft.runtime.aio import AsyncExecutor
from weft.runtime.batches import BatchTasks, BatchThreads
from weft.runtime.plan import HandlerPlan
from weft.runtime.prefetch import Prefetcher
from weft.runtime.processes.executor import ProcessExecutor
from weft.runtime.processes.protocol import WorkerSpec, found_by_name
from weft.runtime.processes.spawnable import check_spawnable
from weft.runtime.threads import ThreadExecutor

if TYPE_CHECKING:
    from weft.runtime.member import Member
    from weft.runtime.member_config import Executor

Loop = asyncio.AbstractEventLoop | None


def needs_loop(handlers: Sequence[HandlerOptions]) -> bool:
    """Whether something of theirs runs on an event loop."""
    return any(
        handler.kind == "async"
        or is_async(handler.prefetch)
        or inspect.isasyncgenfunction(handler.prefetch)
        for handler in handlers
    )


def make_executors(
    member: Member, handlers: Sequence[HandlerOptions], plans: Sequence[HandlerPlan], loop: Loop
) -> list[Executor]:
    """One executor a handler, in their order."""
    return [
        _with_prefetch(member, handler, plan, loop)
        for handler, plan in zip(handlers, plans, strict=True)
    ]


def _with_prefetch(
    member: Member, handler: HandlerOptions, plan: HandlerPlan, loop: Loop
) -> Executor:
    if plan.prefetch is None:
        return _plain(member, handler, plan, loop)
    prefetcher = Prefetcher(plan, member.door, loop)
    prefetcher.inner = _plain(member, handler, plan, loop)
    return prefetcher


def _plain(member: Member, handler: HandlerOptions, plan: HandlerPlan, loop: Loop) -> Executor:
    if handler.kind == "processes":
        return _processes(member, handler, plan)
    if handler.kind == "threads":
        if plan.spec.batch is not None:
            return BatchThreads(plan, member.door)
        return ThreadExecutor(plan, member.door)
    assert loop is not None, "an async handler needs the loop that was opened for it"
    if plan.spec.batch is not None:
        return BatchTasks(plan, member.door, loop)
    return AsyncExecutor(plan, member.door, loop)


def _processes(member: Member, handler: HandlerOptions, plan: HandlerPlan) -> Executor:
    batch = plan.spec.batch
    if found_by_name():
        check_spawnable(handler.function, member.config.lifespan, handler.name)
    spec = WorkerSpec(
        function=handler.function,
        lifespan=member.config.lifespan,
        value=handler.value,
        output=handler.output,
        retry=handler.retry,
        ordering=handler.ordering,
        explicit=batch is not None and batch.ack == "explicit",
        group=member.config.group,
        ledger=handler.ledger,
    )
    return ProcessExecutor(plan, member.door, spec, member.fail)
