"""A member's connection to the committer: claims partitions, sends rows, receives answers.

A request waits for its answer, and is repeated whenever the connection comes back. Each claim of a
partition has an epoch, which rows carry; the driver refuses rows of an old one.
"""

from __future__ import annotations

import base64
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from perkey.kafka.ports import KafkaUnavailable, ToCommit
from perkey.spark.table.progress import Done
from perkey.types import TopicPartition

Send = Callable[[Mapping[str, Any]], bool]
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A member's settings for the table; without its address or credentials."""

    #: the columns, as a serialised Arrow schema
    columns: bytes
    interval_s: float

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return pa.ipc.read_schema(pa.py_buffer(self.columns))


class TableLine:
    """The connection of one member. Thread-safe."""

    def __init__(self, plan: TablePlan, send: Send, gone: threading.Event) -> None:
        """`send`: to the driver; `gone`: it does not answer any more."""
        self.interval_s = plan.interval_s
        self.columns: pa.Schema = plan.schema
        self._send, self._gone = send, gone
        self._numbers = itertools.count(1)
        #: requests without an answer
        self._waiting: dict[int, tuple[Mapping[str, Any], Future[Mapping[str, Any]]]] = {}
        self._epochs: dict[TopicPartition, int] = {}
        self._ids: Mapping[str, str] = {}

    # -- the driver's messages ---------------------------------------------------------------------

    def hear(self, message: Mapping[str, Any]) -> None:
        """An answer."""
        _, answer = self._waiting.get(int(message["id"]), (None, None))
        if answer is not None and not answer.done():  # a repeated request is answered twice
            answer.set_result(message)

    def again(self) -> None:
        """The connection was broken: repeat the requests; the driver recognises duplicates."""
        for message, _ in list(self._waiting.values()):
            self._send(message)

    # -- the member's requests ---------------------------------------------------------------------

    def claim(
        self,
        partitions: Iterable[TopicPartition],
        ids: Mapping[str, str],
        generation: int,
        timeout_s: float,
    ) -> dict[TopicPartition, Done]:
        """Claim these; returns what the table has of them.

        Raises KafkaUnavailable if that is unknown now.
        """
        places = [list(where) for where in partitions]
        asked = {"what": "claim", "partitions": places, "ids": dict(ids), "generation": generation}
        deadline = time.monotonic() + timeout_s
        answer = self._ask(asked, lambda: time.monotonic() >= deadline)
        if answer is None or "error" in answer:
            reason = "the driver does not answer" if answer is None else answer["error"]
            raise KafkaUnavailable(f"what the table has is not known: {reason}")
        held = {}
        for topic, number, epoch, frontier, top, not_done in answer["held"]:
            self._epochs[topic, number] = epoch
            held[topic, number] = Done(frontier, top, tuple(not_done))
        self._ids = {**self._ids, **ids}
        return held

    def hand_over(
        self,
        rows: pa.Table,
        offsets: Sequence[ToCommit],
        hurried: Callable[[], bool],
        over: Callable[[], bool],
    ) -> Mapping[str, Any] | None:
        """Add these rows and wait for the answer; None if none can come.

        `hurried`: do not wait for the interval, `over`: do not wait at all.
        """
        data = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(data, rows.schema, options=options) as writer:
            writer.write_table(rows)
        message = {
            "what": "rows",
            "data": base64.b64encode(bytes(data.getvalue())).decode(),
            "bytes": rows.nbytes,
            "ids": {one.topic: self._ids.get(one.topic, "") for one in offsets},
            "done": [
                [o.topic, o.partition, self._epochs.get((o.topic, o.partition), 0), o.offset,
                 o.metadata]
                for o in offsets
            ],
            "hurry": hurried(),
        }  # fmt: skip

        def enough() -> bool:
            if not message["hurry"] and hurried():
                message["hurry"] = True  # `again` sends it if this connection breaks
                self._send({"type": "table", "what": "hurry", "id": 0})
            return over()

        return self._ask(message, enough)

    def _ask(self, message: dict[str, Any], enough: Callable[[], bool]) -> Mapping[str, Any] | None:
        number = next(self._numbers)
        answer: Future[Mapping[str, Any]] = Future()
        message |= {"type": "table", "id": number}
        self._waiting[number] = message, answer
        try:
            self._send(message)  # if the connection is broken, `again` sends it
            while not wait([answer], _LOOK_S).done:
                if self._gone.is_set() or enough():
                    return None
            return answer.result()
        finally:
            del self._waiting[number]
