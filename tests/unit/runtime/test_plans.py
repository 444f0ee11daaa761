"""From options to what the engine and the executors are told."""

from __future__ import annotations

import pytest

from weft.options import HandlerOptions
from weft.runtime.run.handler_plans import ahead_of


@pytest.mark.parametrize(("delivery", "ahead"), [("at_least_once", 64), ("at_most_once", 0)])
def test_at_most_once_grants_nothing_ahead(delivery, ahead):
    """A granted record is marked: after a kill of the parent at most one a slot may be missing."""
    options = HandlerOptions(print, ("t",), executor="processes", concurrency=2, delivery=delivery)
    assert ahead_of(options) == ahead
