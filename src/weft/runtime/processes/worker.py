"""The child: handles one record after another until its pipe closes."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading
import time
from contextlib import AbstractAsyncContextManager, ExitStack
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from weft.errors import OutOfOrder
from weft.kafka.ports import OutMessage
from weft.options import is_async
from weft.runtime.hosted import owner_of
from weft.runtime.invoke import (
    BadReturn,
    Undecodable,
    asked_delay,
    decoded,
    decoder,
    error_info,
    is_final,
    messages_of,
)
from weft.runtime.loops import takes_argument
from weft.runtime.processes.protocol import (
    IDLE,
    BatchReply,
    Drop,
    Job,
    Opened,
    Reply,
    Warn,
    WorkerSpec,
)
from weft.runtime.record_batch import Nacked, RecordBatch
from weft.types import Record


def main(pipe: Connection, shared: tuple[Any, Any], spec: WorkerSpec) -> None:
    """Entry of the process. `shared`: the number of the record at hand, and when it began."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it drains us
    Worker(pipe, shared, spec).run()


class Worker:
    """Runs in the main thread; a second thread reads the pipe, also while a handler runs."""

    def __init__(self, pipe: Connection, shared: tuple[Any, Any], spec: WorkerSpec) -> None:
        self._pipe = pipe
        self._running, self._began = shared
        self.spec = spec
        self._function = spec.function
        self.decode = decoder(spec.value)
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        #: given and not begun: whoever takes a number out, begins the record or gives it back
        self._waiting: set[int] = set()
        self.warned = threading.Event()
        self._stack = ExitStack()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ledger: Any = None
        self._sending = threading.Lock()

    def run(self) -> None:
        """Open, then handle what comes; never returns."""
        try:
            self._open()
        except BaseException as error:
            self.send(Opened(error_info(error)))
            os._exit(1)
        self.send(Opened(None))
        threading.Thread(target=self._read, daemon=True).start()
        while True:
            self._handle(self._jobs.get())

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
            from weft.ledger.handling import LedgerRun

            use_async = is_async(spec.function)
            self._ledger = LedgerRun(spec.ledger, spec.group, use_async=use_async, concurrency=1)
            self._function = self._ledger.around(spec.function)

    def _on_loop(self, awaitable: Any) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop.run_until_complete(awaitable)

    # -- the pipe ----------------------------------------------------------------------------------

    def _read(self) -> None:
        while True:
            try:
                message = pickle.loads(self._pipe.recv_bytes())  # noqa: S301  # from our own parent
            except (EOFError, OSError):
                os._exit(0)  # the parent is gone, or wants us gone: nobody would hear a result
            if isinstance(message, Job):
                self.warned.clear()
                if not message.batch:
                    self._waiting.update(number for number, _ in message.records)
                self._jobs.put(message)
            elif isinstance(message, Drop):
                for number in filter(self._claimed, message.numbers):
                    self.send(Reply(number, "given_back"))
            elif isinstance(message, Warn):
                self.warned.set()

    def send(self, message: Any) -> None:
        """Send up the pipe."""
        try:
            data = pickle.dumps(message, protocol=5)
        except Exception as error:
            # A returned value that cannot be pickled is only for results: leave it out.
            if not isinstance(message, Reply):
                raise
            slim = message._replace(returned=f"<not picklable: {type(error).__name__}>")
            data = pickle.dumps(slim, protocol=5)
        with self._sending:
            try:
                self._pipe.send_bytes(data)
            except OSError:
                os._exit(0)  # as in _read: nobody hears it

    # -- records -----------------------------------------------------------------------------------

    def _handle(self, job: Job) -> None:
        if self._ledger is not None:
            self._ledger.topic_ids.update(job.topic_ids)
        if job.batch:
            BatchOfWorker(self, job).run()
            return
        for number, record in job.records:
            if self._claimed(number):
                self.send(self._call(number, record, returned=job.returned))

    def _claimed(self, number: int) -> bool:
        """Nobody else has it; taking out of a set is atomic."""
        try:
            self._waiting.remove(number)
        except KeyError:
            return False
        return True

    def _call(self, number: int, record: Record, *, returned: bool) -> Reply:
        began, known = time.time(), self.repeats()
        self.begin(number)
        try:
            if self.decode is not None:
                record = decoded(record, self.decode)
            value = self.call_handler(record)
            outputs = self.outputs(record, value)
        except BaseException as error:
            reply = self.failed(number, record, error)
        else:
            reply = Reply(number, "done", outputs, returned=value if returned else None)
        self.begin(IDLE)
        return reply._replace(began=began, ended=time.time(), repeats=self.repeats() - known)

    def begin(self, number: int) -> None:
        """Tell the parent which record is at hand, at no cost: the numbers are shared memory."""
        self._began.value = time.monotonic()
        self._running.value = number

    def repeats(self) -> int:
        """Records that the ledger knew, so far."""
        return 0 if self._ledger is None else int(self._ledger.repeats)

    def call_handler(self, argument: Any) -> Any:
        """Call the handler with a record or a batch."""
        value = self._function(argument)
        return self._on_loop(value) if is_async(self.spec.function) else value

    def outputs(self, record: Record, value: Any) -> list[OutMessage] | None:
        """What to produce for a returned value."""
        return None if value is None else messages_of(record, value, self.spec.output)

    def failed(self, number: int, record: Record, error: BaseException) -> Reply:
        """A failed attempt, judged here where the exception is still an object."""
        final = is_final(error, self.spec.retry)
        delay_s = None if final else asked_delay(record.attempt, error, self.spec.retry)
        return Reply(number, "failed", None, error_info(error), final, delay_s)


class BatchOfWorker:
    """One batch call in the worker; acknowledgements go up as they are made."""

    def __init__(self, worker: Worker, job: Job) -> None:
        self._worker = worker
        self._spec = worker.spec
        self._job = job
        self._numbers = [number for number, _ in job.records]
        self._records = [record for _, record in job.records]
        self._acked: set[int] = set()
        self._nacks: dict[int, BaseException | None] = {}
        self._before = earlier_in_lane(self._records, self._spec.ordering)
        self.explicit = self._spec.explicit

    def run(self) -> None:
        """Handle the batch and report how it ended."""
        worker = self._worker
        worker.begin(self._numbers[0])
        try:
            decode = worker.decode
            records = (
                self._records if decode is None else [decoded(r, decode) for r in self._records]
            )
        except Undecodable as error:
            self._undecodable(error)
            return
        finally:
            worker.begin(IDLE)
        batch = RecordBatch(self, records, worker.warned)
        before = worker.repeats()
        worker.begin(self._numbers[0])
        try:
            value = worker.call_handler(batch)
            reply = self._returned(value)
        except BaseException as error:
            reply = self._raised(error)
        worker.begin(IDLE)
        worker.send(reply._replace(repeats=worker.repeats() - before))

    def _undecodable(self, _: Undecodable) -> None:
        """Only the bad ones failed; the others are gathered again."""
        replies = []
        decode = self._worker.decode
        assert decode is not None
        for number, record in self._job.records:
            try:
                decoded(record, decode)
            except Undecodable as error:
                replies.append(self._worker.failed(number, record, error))
            else:
                replies.append(Reply(number, "given_back"))
        self._worker.send(BatchReply(replies, whole=False))

    def _returned(self, value: Any) -> BatchReply:
        if self.explicit:
            if value is not None:
                raise BadReturn(
                    "an explicit batch handler returns None: give outputs to batch.ack(...)"
                )
            return self._left(Nacked("not acknowledged when the handler returned"))
        shared = self._worker.outputs(self._records[0], value)
        return BatchReply([Reply(number, "done") for number in self._numbers], False, shared)

    def _raised(self, error: BaseException) -> BatchReply:
        if self.explicit:
            return self._left(error)
        replies = [
            self._worker.failed(number, record, error) for number, record in self._job.records
        ]
        return BatchReply(replies, whole=True)

    def _left(self, error: BaseException) -> BatchReply:
        return BatchReply(
            [
                self._worker.failed(number, record, self._nacks.get(index) or error)
                for index, (number, record) in enumerate(self._job.records)
                if index not in self._acked
            ],
            whole=False,
        )

    # -- as RecordBatch's call ---------------------------------------------------------------------

    def ack(self, index: int, outputs: Any) -> None:
        """See RecordBatch.ack."""
        before = self._before[index]
        if before is not None and before not in self._acked:
            raise OutOfOrder(
                f"{self._records[before]!r} comes before {self._records[index]!r} in its lane and "
                "is not acknowledged"
            )
        if index in self._acked:
            return
        messages = self._worker.outputs(self._records[index], outputs)
        self._acked.add(index)
        self._nacks.pop(index, None)
        self._worker.send(Reply(self._numbers[index], "acked", messages))

    def nack(self, index: int, error: BaseException | str | None) -> None:
        """See RecordBatch.nack."""
        if index in self._acked:
            raise ValueError(f"{self._records[index]!r} is acknowledged already")
        self._nacks[index] = Nacked(error) if isinstance(error, str) else error


def earlier_in_lane(records: list[Record], ordering: str) -> list[int | None]:
    """For each record, the one before it in its lane within the batch."""
    last: dict[Any, int] = {}
    before: list[int | None] = []
    for index, record in enumerate(records):
        own = ordering == "unordered" or (ordering == "key" and record.key is None)
        lane = (record.topic, record.partition, record.key if ordering == "key" else None)
        before.append(None if own else last.get(lane))
        last[lane] = index
    return before
