"""From options to what the engine and the executors are told."""

from __future__ import annotations

from typing import Any

import pytest

from perkey.options import HandlerOptions
from perkey.policies import Budget, Commit
from perkey.runtime.run.handler_plans import plan_of


@pytest.mark.parametrize(
    ("options", "ahead"),
    [
        ({}, 64),
        ({"delivery": "exactly_once"}, 64),
        ({"delivery": "at_most_once"}, 0),
        ({"commit": Commit(each=True)}, 0),
        ({"timeout_s": 1.0}, 0),
        ({"budget": Budget("b", in_flight=1)}, 0),
    ],
)
def test_nothing_is_granted_ahead_where_a_grant_counts(options: dict[str, Any], ahead: int) -> None:
    """After a kill at most one record a slot is missing or repeated; time counts from the grant."""
    handler = HandlerOptions(print, ("t",), executor="processes", concurrency=2, **options)
    assert plan_of(handler, "h").spec.ahead == ahead
