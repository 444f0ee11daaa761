"""Records of a parked lane whose bytes were dropped are read from the log again on release.

A second client on a separate thread reads them, created at the first release: the consumer fetches
new records meanwhile, and no look-up waits. The client is closed after a while without requests.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread

from perkey import guard
from perkey.core import effects as fx
from perkey.core import states
from perkey.kafka.log_reader import LogReader, fetch
from perkey.runtime.logs import event
from perkey.runtime.member.group_membership import GroupMembership
from perkey.runtime.tagging import tags_of
from perkey.types import Record, content_bytes

#: after so long without requests the client is closed
IDLE_S = 10.0
#: a seek takes as long as reading this many records
GAP_MAX = 10_000
#: delay before a failed read is repeated
AGAIN_S = 1.0


class Refetcher:
    """Answers `effects.Refetch`."""

    def __init__(
        self, membership: GroupMembership, make_reader: Callable[[], LogReader] | None
    ) -> None:
        """`make_reader`: None if parked lanes keep their bytes."""
        self._membership = membership
        self._make_reader = make_reader
        #: added inside the door, taken by the thread
        self._queue: SimpleQueue[fx.Refetch | None] = SimpleQueue()
        self._thread: Thread | None = None
        #: used by that thread only
        self._reader: LogReader | None = None

    def ask(self, effect: fx.Refetch) -> None:
        """Have this read soon. Inside the door."""
        if self._thread is None:
            self._thread = guard.thread("perkey-refetch", self._run, self._membership.died)
            self._thread.start()
        self._queue.put(effect)

    def close(self, timeout_s: float) -> None:
        """Stop reading; pending requests are not answered."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while (effect := self._next()) is not None:
                self._answer(effect)
        finally:
            self._close_reader()

    def _next(self) -> fx.Refetch | None:
        if self._reader is not None:
            try:
                return self._queue.get(timeout=IDLE_S)
            except Empty:
                self._close_reader()
        return self._queue.get()

    def _answer(self, effect: fx.Refetch) -> None:
        partition = effect.partition
        while partition.state != states.CLOSED and not self._membership.ended.is_set():
            if (records := self._read(effect)) is not None:
                break
            self._membership.pause(AGAIN_S)
        else:
            return
        sizes = [content_bytes(record.key, record.value, record.headers) for record in records]
        tags, number = tags_of(partition.handler.spec, records), effect.number
        self._membership.door.post(
            lambda engine, now: engine.refetched(now, partition, number, records, sizes, tags)
        )

    def _read(self, effect: fx.Refetch) -> list[Record] | None:
        """The records that the log has; None if that cannot be known now."""
        partition = effect.partition
        places = {(partition.topic, partition.number, offset) for offset in effect.offsets}
        try:
            if self._reader is None:
                assert self._make_reader is not None
                self._reader = self._make_reader()
            found = fetch(self._reader, places, GAP_MAX)
            return sorted(found, key=lambda record: record.offset)
        except Exception as error:
            self._close_reader()
            event(
                "warning",
                "released records cannot be read again now",
                topic=partition.topic,
                partition=partition.number,
                records=len(places),
                error=f"{type(error).__name__}: {error}",
            )
            return None

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
