"""Results for their readers: the record with the value that the handler received."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context

from weft.decoding import TRANSIENT, Undecodable, decoding_of
from weft.options import HandlerOptions
from weft.routing import Routes
from weft.types import Result


def as_handled(handlers: Sequence[HandlerOptions]) -> Callable[[Result], Result] | None:
    """Decodes a result's record; it stays bytes where it cannot be decoded, or only on a loop.

    None where every handler takes bytes. Called by the reader, whose time it takes: inside the
    engine's door no function of the user's may run.
    """
    decodings = [decoding_of(handler.key, handler.value) for handler in handlers]
    if not any(decodings):
        return None
    routes = Routes(handlers)

    def see(result: Result) -> Result:
        decoding = decodings[routes.handler_of(result.record.topic)]
        if decoding is None or decoding.is_async:
            return result
        try:
            record = Context().run(decoding.here, result.record)  # as in a call: private
            return result._replace(record=record)
        except (Undecodable, *TRANSIENT):
            return result

    return see
