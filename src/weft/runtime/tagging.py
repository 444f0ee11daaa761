"""What functions of the user return for records that come in: `Hold.by`.

They are called on the polling thread, once for each record, before the engine has it: the core
cannot call them. The record is as it was fetched: its key and value are bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from weft.core.spec import HandlerSpec
from weft.core.work import Tags
from weft.decoding import message_of
from weft.runtime.logs import event
from weft.sparse import Sparse
from weft.types import Record

_log = logging.getLogger("weft")
_sparse = Sparse()


def tags_of(spec: HandlerSpec, records: Sequence[Record]) -> list[Tags]:
    """What they return for each of these; empty where the handler has none."""
    if spec.hold is None or spec.hold.by is None:
        return []
    by = spec.hold.by
    return [Tags(_value(spec.name, by, record)) for record in records]


def _value(handler: str, function: Callable[[Any], Hashable], record: Record) -> Hashable:
    """What it returns; None, and a line in the log, where it raises or that cannot be compared."""
    try:
        value = function(record)
        hash(value)
    except Exception as error:
        left_out = _sparse.left_out(handler)
        if left_out is not None:
            more = {"similar_lines_omitted": left_out} if left_out else {}
            event(
                _log, "error", "Hold(by=) failed: the record belongs to the value None",
                handler=handler, offset=record.offset,
                error=f"{type(error).__name__}: {message_of(error)}", **more,
            )  # fmt: skip
        return None
    return value
