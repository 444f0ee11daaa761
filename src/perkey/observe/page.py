"""The web page: a few static files, and one stream of events with the displayed data.

Everything comes from this server; the browser is not allowed to load anything from elsewhere.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perkey import guard
from perkey.errors import ConfigError
from perkey.observe.feed import Feed, view_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

STATIC = Path(__file__).parent / "static"
#: path -> file and its type
FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/views.js": ("views.js", "text/javascript"),
    "/control.js": ("control.js", "text/javascript"),
    "/commands.js": ("commands.js", "text/javascript"),
    "/drawing.js": ("drawing.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
LOOK_S = 0.1
#: after this many seconds without data a comment line is sent, which detects closed connections
ALIVE_S = 10.0


def page_routes(feed: Feed) -> list[Route]:
    """The routes of the page and of its events."""
    from starlette.routing import Route

    files = [
        Route(path, partial(_file, name, kind), methods=["GET"])
        for path, (name, kind) in FILES.items()
    ]
    return [*files, Route("/events", partial(_events, feed), methods=["GET"])]


async def _file(name: str, kind: str, _request: Request) -> Response:
    from starlette.responses import Response

    body = await asyncio.to_thread((STATIC / name).read_bytes)
    return Response(body, media_type=kind, headers=HEADERS)


async def _events(feed: Feed, request: Request) -> Response:
    """Server-sent events: first the history, then each new look."""
    from starlette.responses import PlainTextResponse, StreamingResponse

    try:
        view = view_of(request.query_params)
    except ConfigError as error:
        return PlainTextResponse(f"{error}\n", 400, HEADERS)
    return StreamingResponse(_stream(feed, view), 200, HEADERS, "text/event-stream")


async def _stream(feed: Feed, view: Mapping[str, Any]) -> AsyncIterator[bytes]:
    # The latest data may be old if the page was not open: the next refresh comes soon.
    seen = feed.number
    # Counted here: a client that disconnects before the first line is never counted.
    if not feed.enter():
        yield _event("refused", "Too many pages watch this run already: close one of them.")
        return
    turns = guard.Turns("perkey-http")
    try:
        yield _event("history", feed.history())
        silent_s = 0.0
        while not feed.closed:
            if feed.number == seen:
                await asyncio.sleep(LOOK_S)
                silent_s += LOOK_S
                if silent_s >= ALIVE_S:
                    silent_s = 0.0
                    yield b": still here\n\n"
                continue
            seen, silent_s, event = feed.number, 0.0, None
            with turns.turn():
                event = _event("look", await asyncio.to_thread(feed.event, view))
            if event is not None:
                yield event
    finally:
        feed.leave()


def _event(name: str, data: Any) -> bytes:
    # JSON contains no raw line breaks: one event is one `data:` line.
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
