"""The child process: handle one record after another until its pipe closes."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, ExitStack
from contextvars import Context
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

from perkey import guard
from perkey.app_options import owner_of
from perkey.decoding import all_decoded, decoding_of, is_async
from perkey.errors import NotNow
from perkey.kafka.ports import OutMessage
from perkey.policies import Retry
from perkey.runtime.calls import stacks
from perkey.runtime.calls.invoke import (
    BadReturn,
    asked_delay,
    asked_wait_s,
    error_info,
    is_final,
    messages_of,
)
from perkey.runtime.calls.processes.protocol import (
    ENDED,
    IDLE,
    AskStack,
    BatchReply,
    Cost,
    Drop,
    Job,
    Opened,
    Packed,
    Reply,
    StackIs,
    Unread,
    Warn,
    WorkerSpec,
    log_to_parent,
)
from perkey.runtime.calls.record_batch import Acks, Nacked, RecordBatch
from perkey.runtime.calls.tracing import Tracing, flush, tracing_of
from perkey.runtime.suspension import SUSPENDED_S, since_boot
from perkey.signatures import takes_argument
from perkey.types import CHARGE, Charge, Record

if TYPE_CHECKING:
    import asyncio

#: blocked while a worker starts, so that none ends it before it ignores them
HELD_BACK = (signal.SIGINT, signal.SIGTERM)
#: limit for exporting its last spans when it ends; less than its parent waits for that
FLUSH_S = 0.7


def main(pipe: Connection, shared: tuple[Any, Any], spec: WorkerSpec) -> None:
    """Entry of the process. `shared`: the number of the current record, and its start time."""
    leave_signals_to_the_parent()
    Worker(pipe, shared, spec).run()


def leave_signals_to_the_parent() -> None:
    """Ctrl-C, and the SIGTERM that service managers send to the whole group, are for the parent.

    The parent lets running calls finish and then closes the pipe. SIGTERM is caught, not ignored:
    processes that a handler starts would inherit that, and could not be terminated.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.siginterrupt(signal.SIGTERM, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)  # see Link: until here they were


class Worker:
    """Runs in the main thread; a second thread reads the pipe, also while a handler runs."""

    def __init__(self, pipe: Connection, shared: tuple[Any, Any], spec: WorkerSpec) -> None:
        self._pipe = pipe
        self._running, self._began = shared
        self.spec = spec
        self._function = spec.function
        self._async = is_async(spec.function)
        self._decoding = decoding_of(spec.key, spec.value)
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        #: received and not started: the thread that removes a number starts or returns the record
        self._waiting: set[int] = set()
        #: batches that have not started, by the number of their first record
        self._batches: dict[int, Job] = {}
        self.warned = threading.Event()
        self._stack = ExitStack()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ledger: Any = None
        self._tracing: Tracing | None = None
        #: outcomes that `on_exhausted` returned for single records, by number
        self._retries: dict[int, Retry] = {}
        self._sending = threading.Lock()
        self._task: asyncio.Task[Any] | None = None

    def run(self) -> None:
        """Open, then handle jobs; never returns."""
        # The parent learns of this process's end by the end of the pipe: a process that a handler
        # forks, and that outlives it, must not hold it open.
        os.register_at_fork(after_in_child=self._pipe.close)
        log_to_parent(self.send, self.spec.log_level)
        try:
            self._open()
        except BaseException as error:
            self.send(Opened(error_info(error)))
            os._exit(1)
        self.send(Opened(None, traced=self._tracing is not None))
        guard.thread("perkey-worker-pipe", self._read, self._die).start()
        while True:
            self._handle(self._jobs.get())

    @staticmethod
    def _die(thread: str, error: BaseException) -> None:
        """Close the pipe: the parent sees a dead worker, and starts another."""
        guard.log_death(thread, error)
        os._exit(1)

    def _open(self) -> None:
        spec = self.spec
        app = owner_of(spec.function)
        if spec.lifespan is not None:
            context = spec.lifespan(app) if takes_argument(spec.lifespan) else spec.lifespan()
            if isinstance(context, AbstractAsyncContextManager):
                state = self._on_loop(context.__aenter__())
            else:
                state = self._stack.enter_context(context)
            if app is not None:
                app.state = state
        if spec.ledger is not None:
            from perkey.ledger.ledger_run import LedgerRun

            self._ledger = LedgerRun(spec.ledger, spec.group, use_async=self._async, concurrency=1)
            self._function = self._ledger.around(spec.function)
        # Last: the imported module or the lifespan may have set up a tracer provider.
        self._tracing = tracing_of(spec.group)
        if self._tracing is not None:
            self._function = self._tracing.around(self._function)

    def _on_loop(self, awaitable: Awaitable[Any], context: Context | None = None) -> Any:
        if self._loop is None:
            import asyncio  # on use: half of what a worker loads, and a plain handler needs none

            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        # In the context itself, not in a copy: outputs use what the call has set.
        self._task = self._loop.create_task(_awaited(awaitable), context=context)
        return self._loop.run_until_complete(self._task)

    def _leave(self) -> NoReturn:
        """The parent is gone, or ends this worker: results would reach nothing."""
        if self._tracing is not None:
            flushing = guard.thread("perkey-worker-flush", flush)
            flushing.start()
            flushing.join(FLUSH_S)
        os._exit(0)

    # -- the pipe ----------------------------------------------------------------------------------

    def _read(self) -> None:
        while True:
            try:
                message = pickle.loads(self._pipe.recv_bytes())  # noqa: S301  # from our own parent
            except (EOFError, OSError):
                self._leave()
            if isinstance(message, Packed):
                try:
                    message = pickle.loads(message.job)  # noqa: S301  # from our own parent
                except BaseException as error:
                    self.send(Unread(message.numbers, error_info(error).line))
                    continue
            if isinstance(message, Job):
                self.warned.clear()
                if message.batch:
                    self._batches[message.records[0][0]] = message
                numbers = [number for number, _ in message.records]
                self._waiting.update(numbers[:1] if message.batch else numbers)
                self._jobs.put(message)
            elif isinstance(message, Drop):
                for number in filter(self._claimed, message.numbers):
                    self._end_unhandled(number)
            elif isinstance(message, Warn):
                self.warned.set()
            elif isinstance(message, AskStack):
                task, main = self._task, threading.main_thread().ident
                waits = [] if task is None else stacks.of_coroutine(task.get_coro())
                inside = Worker._handle.__code__
                self.send(StackIs(waits or stacks.of_thread(main, inside=inside)))

    def send(self, message: Any) -> None:
        """Send up the pipe."""
        try:
            data = pickle.dumps(message, protocol=5)
        except Exception as error:
            # A returned value that cannot be pickled is only needed for results: omit it.
            if not isinstance(message, Reply | BatchReply):
                raise
            slim = message._replace(returned=f"<not picklable: {type(error).__name__}>")
            data = pickle.dumps(slim, protocol=5)
        with self._sending:
            try:
                self._pipe.send_bytes(data)
            except OSError:
                self._leave()

    # -- records -----------------------------------------------------------------------------------

    def _handle(self, job: Job) -> None:
        self._retries = job.retries or {}
        if self._ledger is not None:
            self._ledger.topic_ids.update(job.topic_ids)
        if self._tracing is not None and job.failed:
            records = dict(job.records)
            for number, span in job.failed.items():
                self._tracing.learn(records[number], span)
        if job.batch:
            number = job.records[0][0]
            if self._claimed(number):
                if self._too_late(job):
                    self._end_unhandled(number)
                else:
                    del self._batches[number]
                    BatchOfWorker(self, job).run()
            return
        for number, record in job.records:
            if not self._claimed(number):
                continue
            if self._too_late(job):
                self._end_unhandled(number)
            else:
                self.report(self._call(number, record, returned=job.returned))

    @staticmethod
    def _too_late(job: Job) -> bool:
        """Whether it waited so long that the member may have been suspended and lost partitions."""
        return since_boot() - job.sent_at > SUSPENDED_S

    def _end_unhandled(self, number: int) -> None:
        """Return a record, or the batch that starts with it."""
        batch = self._batches.pop(number, None)
        if batch is None:
            self.send(Reply(number, "unhandled"))
            return
        replies = [Reply(one, "unhandled") for one, _ in batch.records]
        self.send(BatchReply(number, replies, whole=False))

    def _claimed(self, number: int) -> bool:
        """Whether this thread takes it; removing from a set is atomic."""
        try:
            self._waiting.remove(number)
        except KeyError:
            return False
        return True

    def _call(self, number: int, record: Record, *, returned: bool) -> Reply:
        began, known = time.time(), self.repeats()
        self.begin(number)
        context = Context()  # the call's contextvars stay private
        if self.spec.budget:
            context.run(CHARGE.set, Charge(lambda _, *costs: self.send(Cost(number, *costs))))
        try:
            decode = self.decode(context)
            given = record if decode is None else decode(record)
            value = self.call_handler(context, given)
            # A generator runs only now.
            outputs = None if value is None else context.run(self.outputs, record, value)
        except BaseException as error:
            spent = None if self.spec.away else record.attempt  # an outage costs no attempt
            reply = self.failed(number, record, error, spent)
        else:
            reply = Reply(number, "done", outputs, returned=value if returned else None)
        return reply._replace(began=began, ended=time.time(), repeats=self.repeats() - known)

    def begin(self, number: int) -> None:
        """Show the parent the current record at no cost: the numbers are shared memory."""
        self._began.value = time.monotonic()
        self._running.value = number

    def report(self, reply: Reply | BatchReply) -> None:
        """Send how the current call ended; it stays current until that is sent.

        If the worker is killed in between, the call counts as started, which is true: with
        at_most_once no member may handle it again.
        """
        self._began.value = ENDED
        self.send(reply)
        self._running.value = IDLE

    def repeats(self) -> int:
        """Records that the ledger knew, so far."""
        return 0 if self._ledger is None else int(self._ledger.repeats)

    def decode(self, context: Context) -> Callable[[Record], Record] | None:
        """The decoder for this call's records, in its context; None if they stay bytes."""
        decoding = self._decoding
        if decoding is None:
            return None
        if decoding.is_async:
            return lambda record: self._on_loop(decoding.awaited(record), context)
        return lambda record: context.run(decoding.here, record)

    def call_handler(self, context: Context, argument: Any) -> Any:
        """Call the handler with a record or a batch, in this context."""
        value = context.run(self._function, argument)
        return self._on_loop(value, context) if self._async else value

    def outputs(self, record: Record, value: Any) -> list[OutMessage] | None:
        """What to produce for a returned value."""
        return None if value is None else messages_of(record, value, self.spec.output)

    def failed(
        self, number: int, record: Record, error: BaseException, spent: int | None = None
    ) -> Reply:
        """A failed attempt, classified here while the exception is still an object."""
        retry = self._retries.get(number, self.spec.retry)
        final = is_final(error, retry)
        delay_s = None if final else asked_delay(record.attempt, error, retry, spent)
        span = None if self._tracing is None else self._tracing.seen(record)
        away = isinstance(error, self.spec.away)
        budget_s = asked_wait_s(error) if self.spec.budget else None
        return Reply(
            number, "failed", None, error_info(error), final, delay_s, away, budget_s,
            isinstance(error, NotNow), span=span,
        )  # fmt: skip


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


class BatchOfWorker:
    """One batch call in the worker; acknowledgements are sent immediately."""

    def __init__(self, worker: Worker, job: Job) -> None:
        self._worker = worker
        self._job = job
        self._numbers = [number for number, _ in job.records]
        self._records = [record for _, record in job.records]
        self._acks = Acks(self._records, worker.spec.ordering)
        self.explicit = worker.spec.explicit
        self._began = time.time()

    def run(self) -> None:
        """Handle the batch and report how it ended."""
        worker = self._worker
        before = worker.repeats()
        worker.begin(self._numbers[0])
        reply = self._called()
        worker.report(
            reply._replace(repeats=worker.repeats() - before, began=self._began, ended=time.time())
        )

    def _called(self) -> BatchReply:
        worker, context = self._worker, Context()  # the call's contextvars stay private
        records, bad = all_decoded(self._records, worker.decode(context))
        if bad:
            replies = [
                self._worker.failed(number, record, bad[index])
                if index in bad
                else Reply(number, "unhandled")
                for index, (number, record) in enumerate(self._job.records)
            ]
            return self._reply(replies, whole=False)
        try:
            batch = RecordBatch(self, records, worker.warned)
            value = worker.call_handler(context, batch)
            return context.run(self._returned, value)
        except BaseException as error:
            if self.explicit:
                return self._left(error)
            replies = [worker.failed(number, record, error) for number, record in self._job.records]
            return self._reply(replies, whole=True)

    def _reply(
        self, replies: list[Reply], *, whole: bool, shared: list[OutMessage] | None = None
    ) -> BatchReply:
        self._acks.end()
        return BatchReply(self._numbers[0], replies, whole, shared)

    def _returned(self, value: Any) -> BatchReply:
        if self.explicit:
            if value is not None:
                raise BadReturn(
                    "an explicit batch handler returns None: give outputs to batch.ack(...)"
                )
            return self._left(Nacked("not acknowledged when the handler returned"))
        shared = self._worker.outputs(self._records[0], value)
        done = [Reply(number, "done") for number in self._numbers]
        reply = self._reply(done, whole=False, shared=shared)
        return reply._replace(returned=value) if self._job.returned else reply

    def _left(self, error: BaseException) -> BatchReply:
        replies = [
            self._worker.failed(
                self._numbers[index], self._records[index], self._acks.why(index, error) or error
            )
            for index in self._acks.end()
        ]
        return self._reply(replies, whole=False)

    # -- as RecordBatch's call ---------------------------------------------------------------------

    def ack(self, index: int, outputs: Any) -> None:
        """See RecordBatch.ack."""
        self._acks.check(index)
        messages = self._worker.outputs(self._records[index], outputs)
        reply = Reply(self._numbers[index], "acked", messages, began=self._began, ended=time.time())
        self._acks.ack(index, lambda: self._worker.send(reply))

    def nack(self, index: int, error: BaseException | str | None) -> None:
        """See RecordBatch.nack."""
        self._acks.nack(index, error)
