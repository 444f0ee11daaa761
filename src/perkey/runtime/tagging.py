"""Call the user's functions for fetched records: `Hold.by`, `Budget.by` and `cost`.

They run on the polling thread, once per record, before the engine gets it: the core cannot call
them. The record is as it was fetched: its key and value are bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from perkey.core.events import HandlerSpec
from perkey.core.work import Tags
from perkey.decoding import message_of
from perkey.kafka.clientlog import Sparse
from perkey.runtime.logs import event
from perkey.types import COST_MAX, Record, is_cost

_sparse = Sparse()
_COST = 1.0


def tags_of(spec: HandlerSpec, records: Sequence[Record]) -> list[Tags]:
    """The results for each of these records; empty if the handler has no such functions."""
    hold, budget = spec.hold, spec.budget
    away = None if hold is None else hold.by
    by, cost = (None, None) if budget is None else (budget.by, budget.cost)
    if away is None and by is None and cost is None:
        return []
    return [
        Tags(
            None if away is None else _asked(spec.name, away, "Hold(by=)", _comparable, record),
            None if by is None else _asked(spec.name, by, "Budget(by=)", _named, record),
            _COST if cost is None else _asked(spec.name, cost, "Budget(cost=)", _cost, record),
        )
        for record in records
    ]


def _comparable(value: Any) -> Hashable:
    hash(value)
    return value  # type: ignore[no-any-return]  # hashable, as just seen


def _named(value: Any) -> str | bytes:
    if isinstance(value, str | bytes):
        return value
    raise TypeError(f"it returned {type(value).__name__}: return str or bytes")


def _cost(value: Any) -> float:
    if is_cost(value):
        return float(value)
    raise ValueError(f"it returned {value!r:.40}: return a number from 0 to {COST_MAX:.0f}")


#: the results for a record for which such a function fails
INSTEAD = {"Hold(by=)": None, "Budget(by=)": None, "Budget(cost=)": _COST}


def _asked(
    handler: str,
    function: Callable[[Any], Any],
    name: str,
    checked: Callable[[Any], Any],
    record: Record,
) -> Any:
    """The function's result; if it fails `INSTEAD`, with a log line."""
    try:
        return checked(function(record))
    except Exception as error:
        left_out = _sparse.left_out((handler, name))
        instead = INSTEAD[name]
        if left_out is not None:
            omitted = {"similar_lines_omitted": left_out} if left_out else {}
            instead_text = "costs 1" if instead == _COST else "belongs to the value None"
            event(
                "error", f"{name} failed: the record {instead_text}",
                handler=handler, offset=record.offset,
                error=f"{type(error).__name__}: {message_of(error)}", **omitted,
            )  # fmt: skip
        return instead
