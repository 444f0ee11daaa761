"""A member's way to the committer: it claims its partitions, hands rows over, and is answered."""

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

from weft.kafka.ports import KafkaUnavailable, ToCommit
from weft.spark.table.progress import Done
from weft.types import TopicPartition

Send = Callable[[Mapping[str, Any]], bool]
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What a member must know of the table; neither its address nor how to get in."""

    #: the columns, as Arrow writes a schema
    columns: bytes
    interval_s: float

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return pa.ipc.read_schema(pa.py_buffer(self.columns))


class TableLine:
    """One member's; any thread."""

    def __init__(self, plan: TablePlan, send: Send, gone: threading.Event) -> None:
        """`send`: to the driver; `gone`: it does not answer any more."""
        self.interval_s = plan.interval_s
        self.columns: pa.Schema = plan.schema
        self._send, self._gone = send, gone
        self._numbers = itertools.count(1)
        #: questions that have no answer yet
        self._waiting: dict[int, tuple[Mapping[str, Any], Future[Mapping[str, Any]]]] = {}
        self._epochs: dict[TopicPartition, int] = {}
        self._ids: Mapping[str, str] = {}

    # -- what the driver says ----------------------------------------------------------------------

    def hear(self, message: Mapping[str, Any]) -> None:
        """An answer."""
        _, answer = self._waiting.get(int(message["id"]), (None, None))
        if answer is not None and not answer.done():  # asked again, it comes twice
            answer.set_result(message)

    def again(self) -> None:
        """The line was broken: ask again; what comes twice is recognised."""
        for message, _ in list(self._waiting.values()):
            self._send(message)

    # -- what the member wants ---------------------------------------------------------------------

    def claim(
        self,
        partitions: Iterable[TopicPartition],
        ids: Mapping[str, str],
        generation: int,
        timeout_s: float,
    ) -> dict[TopicPartition, Done]:
        """Claim them; what the table has of those that were given.

        Raises KafkaUnavailable where that cannot be known now.
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
        """Have these rows added, and wait until they are; None where nobody will say.

        `hurried`: not to wait for the interval, `over`: not to wait at all.
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
                message["hurry"] = True  # `again` sends it so, where this line gets lost
                self._send({"type": "table", "what": "hurry", "id": 0})
            return over()

        return self._ask(message, enough)

    def _ask(self, message: dict[str, Any], enough: Callable[[], bool]) -> Mapping[str, Any] | None:
        number = next(self._numbers)
        answer: Future[Mapping[str, Any]] = Future()
        message |= {"type": "table", "id": number}
        self._waiting[number] = message, answer
        try:
            self._send(message)  # where the line is broken `again` does it
            while not wait([answer], _LOOK_S).done:
                if self._gone.is_set() or enough():
                    return None
            return answer.result()
        finally:
            del self._waiting[number]
