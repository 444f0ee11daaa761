"""The app under chaos in each way of delivery, writing the same log as the default one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import perkey

if TYPE_CHECKING:
    from tests.support.chaos_app import Handlers, Plan

BATCH = 20
MODES = ("each", "at_most_once", "exactly_once", "batch", "explicit", "exact_batch")


def consume(app: perkey.App, plan: Plan, handlers: Handlers) -> None:
    """Give the app the handler and the options of the plan's mode."""
    calls = Calls(plan, handlers)
    function: Callable[..., Any] = calls.single
    options: dict[str, Any] = {"retry": perkey.Retry(attempts=5, delay_s=0.05)}
    if plan.mode == "each":
        options["commit"] = perkey.Commit(each=True)
    elif plan.mode == "at_most_once":
        options = {"delivery": "at_most_once"}
    elif plan.mode in ("exactly_once", "exact_batch"):
        options |= {"delivery": "exactly_once", "output": plan.output}
    if plan.mode in ("batch", "exact_batch"):
        function = calls.batch
        options["batch"] = perkey.Batch(BATCH, linger_s=0.02)
    elif plan.mode == "explicit":
        function = calls.explicit
        options["batch"] = perkey.Batch(BATCH, linger_s=0.02, ack="explicit")
        options["retry"] = perkey.Retry(
            attempts=None, delay_s=0.05
        )  # what stands behind is nacked too
    app.consume(
        plan.topic,
        ordering=plan.ordering,
        concurrency=plan.concurrency,
        **{"commit": perkey.Commit(interval_s=plan.commit_s), **options},
    )(function if plan.kind == "async" else calls.blocking)


class Calls:
    """The handlers; each record's output, where there is one, names the record."""

    def __init__(self, plan: Plan, handlers: Handlers) -> None:
        self._plan, self._handlers = plan, handlers

    def _output(self, record: perkey.Record) -> perkey.Produce | None:
        if not self._plan.output:
            return None
        return perkey.Produce(f"{record.partition}:{record.offset}")

    async def single(self, record: perkey.Record) -> perkey.Produce | None:
        await self._handlers.wait(record)
        return self._output(record)

    def blocking(self, record: perkey.Record) -> perkey.Produce | None:
        self._handlers.block(record)
        return self._output(record)

    async def batch(self, batch: perkey.RecordBatch) -> list[perkey.Produce]:
        """One record after another, as the log wants them; the batch's time is one record's."""
        epochs = [self._handlers._epoch(record) for record in batch]  # before a revoke begins
        await asyncio.sleep(self._plan.work_s)
        outputs = []
        for record, epoch in zip(batch, epochs, strict=True):
            self._handlers._write("S", record, epoch)
            self._handlers._write("E", record, epoch)
            output = self._output(record)
            if output is not None:
                outputs.append(perkey.Produce(output.value, key=record.key))
        return outputs

    async def explicit(self, batch: perkey.RecordBatch) -> None:
        """Acknowledges most of them; the rest comes again."""
        for number, record in enumerate(batch):
            if number % 10 == 0:
                await asyncio.sleep(self._plan.work_s)
            if self._handlers._epoch(record) < 0:
                continue  # revoked while this batch runs: its next owner handles it
            epoch = self._handlers._begin(record)
            if number % 10 == 9 and record.attempt == 1:
                self._handlers._write("F", record, epoch)
                return
            self._handlers._write("E", record, epoch)
            batch.ack(record)
