"""Results as their readers expect them: the record with the value that the handler saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context

from weft.options import HandlerOptions
from weft.routing import Routes
from weft.runtime.calls.invoke import Undecodable, decoded, decoder
from weft.types import Result


def as_handled(handlers: Sequence[HandlerOptions]) -> Callable[[Result], Result] | None:
    """Decodes the value of a result's record; what cannot be decoded stays bytes.

    None where every handler takes bytes. Called by the reader, whose time it takes: inside the
    engine's door no function of the user's may run.
    """
    decoders = [decoder(handler.value) for handler in handlers]
    if not any(decoders):
        return None
    routes = Routes(handlers)

    def see(result: Result) -> Result:
        decode = decoders[routes.handler_of(result.record.topic)]
        if decode is None:
            return result
        try:
            record = Context().run(decoded, result.record, decode)  # as of a call: nobody else's
            return result._replace(record=record)
        except Undecodable:
            return result

    return see
