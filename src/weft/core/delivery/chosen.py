"""Which delivery a handler has."""

from __future__ import annotations

from collections.abc import Callable

from weft.core.delivery import AtLeastOnce, Delivery, Each
from weft.core.delivery.at_most_once import AtMostOnce
from weft.core.delivery.exactly_once import ExactlyOnce
from weft.core.engine import EngineState
from weft.core.spec import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, HandlerSpec

#: by the handler's delivery, and whether each record is committed by itself
_DELIVERIES: dict[tuple[str, bool], Callable[[EngineState], Delivery]] = {
    (AT_LEAST_ONCE, False): AtLeastOnce,
    (AT_LEAST_ONCE, True): Each,
    (AT_MOST_ONCE, False): AtMostOnce,
    (EXACTLY_ONCE, False): ExactlyOnce,
}


def delivery_of(spec: HandlerSpec, state: EngineState) -> Delivery:
    """The delivery of one handler; asked once."""
    return _DELIVERIES[spec.delivery, spec.commit_each](state)
