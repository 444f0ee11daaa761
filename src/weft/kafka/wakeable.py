"""Wait for a consumer's records and callbacks and for Weft's own threads at the same time."""

import os
import select
import threading
from contextlib import suppress

from confluent_kafka import Consumer

from weft.kafka.clib import handle, library


class WakeableQueue:
    """One select for what librdkafka has for us and for what our threads want.

    The polling thread does ``wait(timeout_s)`` and then ``consumer.consume(n, 0)``; any
    thread may ``wake()`` it. Close it before the consumer.
    """

    def __init__(self, consumer: Consumer) -> None:
        """Have librdkafka write to a pipe of ours when the consumer's queue gets work."""
        work: int = library().rd_kafka_queue_get_consumer(handle(consumer))
        self._closing = threading.Lock()
        self._readable, self._writable = os.pipe()
        # Not select(): it refuses descriptors from 1,024 on, and handlers may hold thousands.
        self._poller = select.poll()
        self._poller.register(self._readable, select.POLLIN)
        os.set_blocking(self._readable, False)
        os.set_blocking(self._writable, False)
        self._queue: int | None = work
        library().rd_kafka_queue_io_event_enable(self._queue, self._writable, b"k", 1)

    def fileno(self) -> int:
        """The descriptor that becomes readable, for a select of the caller's own."""
        return self._readable

    def also(self, queue: int) -> None:
        """Have another queue of this client, as that of commit answers, end a wait too."""
        library().rd_kafka_queue_io_event_enable(queue, self._writable, b"w", 1)

    def wake(self) -> None:
        """Make the waiting thread return, or its next wait. Any thread, never blocks.

        After a close it does nothing: without the lock, the descriptor could be closed and
        given to another file between the look and the write.
        """
        with self._closing, suppress(BlockingIOError):  # Full: of wake-ups not yet taken.
            if self._queue is not None:
                os.write(self._writable, b"w")

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is something to consume or another thread wakes this one; True if so.

        librdkafka signals only when its queue was empty. So the pipe is emptied first and
        the queue's length looked at after: what came before shows in the length, what
        comes later in the pipe, and no record is left sleeping between the two.
        """
        if self._drain() or library().rd_kafka_queue_length(self._queue):
            return True
        return bool(self._poller.poll(max(timeout_s, 0.0) * 1000))

    def close(self) -> None:
        """Stop the signals and give the queue back. May be called again.

        Queues given to ``also`` must be closed before: they would continue writing.
        """
        with self._closing:
            queue, self._queue = self._queue, None
            if queue is None:
                return
            library().rd_kafka_queue_io_event_enable(queue, -1, None, 0)
            library().rd_kafka_queue_destroy(queue)
            os.close(self._readable)
            os.close(self._writable)

    def _drain(self) -> bool:
        """Take what is in the pipe; whether one of our own wake-ups was in it."""
        woken = False
        while True:
            try:
                signals = os.read(self._readable, 4096)
            except BlockingIOError:
                return woken
            woken = woken or b"w" in signals
