"""Outputs shared by several records of one batch: all records are done when they are stored."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, overload

from perkey.kafka.ports import OutMessage

MESSAGE_OVERHEAD_BYTES = 200  # cost of the Python objects of one message

_numbers = itertools.count()


class SharedOutputs(Sequence[OutMessage]):
    """The outputs of a batch that is acknowledged as a whole."""

    __slots__ = ("_messages", "number", "pending", "records", "size_bytes")

    def __init__(self, messages: Sequence[OutMessage], records: int) -> None:
        self._messages = messages
        #: how many records they belong to
        self.records = records
        self.size_bytes = sum(map(_bytes_of, messages)) // max(1, records)
        #: ascending in the order of the batches' ends; with a common lane the earlier one is lower
        self.number = next(_numbers)
        #: their state, once they are requested for the first of their records
        self.pending: Any = None

    @overload
    def __getitem__(self, index: int) -> OutMessage: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[OutMessage]: ...
    def __getitem__(self, index: int | slice) -> OutMessage | Sequence[OutMessage]:
        return self._messages[index]

    def __len__(self) -> int:
        return len(self._messages)


def size_of(outputs: Any) -> int:
    """Bytes that a record's outputs take in memory: its share of those of a batch."""
    if type(outputs) is SharedOutputs:
        return outputs.size_bytes
    return sum(map(_bytes_of, outputs))


def _bytes_of(message: OutMessage) -> int:
    return MESSAGE_OVERHEAD_BYTES + len(message.value or b"") + len(message.key or b"")
