"""Probes, metrics, the snapshot and `why` over HTTP; commands only where they are allowed.

Only loopback needs no token. There the Host header must name loopback: this refuses a page in the
user's browser whose domain was pointed to this address. Elsewhere everything needs a token except
the two probes, which return only a status and its reason.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from perkey.app_options import check_http
from perkey.errors import ConfigError
from perkey.observe.asking import Source, answer, commands, obeyed, question_of
from perkey.observe.feed import Feed, Letters
from perkey.observe.metrics import exposed
from perkey.observe.page import page_routes
from perkey.observe.serving import Serving, listening, need_http

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

PROBES = ("/livez", "/readyz")
TOKEN_CHARS_MIN = 16
TOKEN_BYTES_MAX = 4096
COMMAND_BYTES_MAX = 64 * 2**10
ALWAYS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
Send = Callable[[Any], Awaitable[None]]


def token_of(path: object) -> str:
    """The token in this file; ConfigError if it is unusable."""
    if not isinstance(path, str | Path):
        raise ConfigError(f"http_token_file={path!r:.80}: give the path of a file")
    try:
        with Path(path).expanduser().open("rb") as file:
            text = file.read(TOKEN_BYTES_MAX + 1).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"http_token_file {path}: cannot be read: {error}") from None
    if not TOKEN_CHARS_MIN <= len(text) <= TOKEN_BYTES_MAX or not text.isascii():
        raise ConfigError(
            f"http_token_file {path}: a token has {TOKEN_CHARS_MIN} to {TOKEN_BYTES_MAX} ASCII "
            "characters, such as of `openssl rand -hex 32`"
        )
    return text


class Guard:
    """Access control by Host, Origin and token."""

    def __init__(self, host: str, token: str | None) -> None:
        self._hosts = {"localhost", "127.0.0.1", "::1", host.lower()} if token is None else None
        self._token = token

    def refusal(self, path: str, headers: Any) -> tuple[int, str] | None:
        """Status and reason of a refusal, or None."""
        host = headers.get("host", "")
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            name = None
        if self._hosts is not None and name not in self._hosts:
            return 403, "this Host header is not allowed"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return 403, "this Origin is not allowed"
        if path in PROBES or self._token is None or self._knows(headers.get("authorization", "")):
            return None
        if headers.get("authorization"):
            return 401, "wrong token: send the one in the run's http_token_file"
        return 401, "token required: send Authorization: Bearer TOKEN"

    def _knows(self, given: str) -> bool:
        assert self._token is not None
        kind, _, value = given.partition(" ")
        if kind.lower() == "basic":  # what browsers can send: any name, the token as password
            try:
                value = base64.b64decode(value, validate=True).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                return False
        elif kind.lower() != "bearer":
            return False
        return hmac.compare_digest(value.strip().encode(), self._token.encode())


def routes_of(source: Source, *, allow_control: bool = False) -> list[BaseRoute]:
    """The routes: GET only, except POST /control."""
    from prometheus_client import CONTENT_TYPE_LATEST
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    class Json(JSONResponse):
        """In ASCII: bytes of a key that are not UTF-8 are lone surrogates."""

        def render(self, content: Any) -> bytes:
            return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()

    def probe(ask: Callable[[], tuple[bool, str]]) -> Callable[[Request], Response]:
        def state(_: Request) -> Response:
            well, reason = ask()
            return PlainTextResponse(f"{reason}\n", 200 if well else 503)

        return state

    def metrics(_: Request) -> Response:
        return Response(exposed(source.measures), media_type=CONTENT_TYPE_LATEST)

    def snapshot(_: Request) -> Response:
        return Json(source.snapshot())

    def why(request: Request) -> Response:
        query = str(request.scope["query_string"], "latin-1")
        given = dict(parse_qsl(query, keep_blank_values=True, errors="surrogateescape"))
        try:
            return Json(answer(source, question_of(given)))
        except ConfigError as error:
            return Json({"error": str(error)}, 400)

    def known(_: Request) -> Response:
        return Json(commands(source))

    async def control(request: Request) -> Response:
        status, answered = await _controlled(source, request, allow_control=allow_control)
        return Json(answered, status)

    return [
        Route("/commands", known),
        Route("/control", control, methods=["POST"]),
        Route("/livez", probe(source.live)),
        Route("/readyz", probe(source.ready)),
        Route("/metrics", metrics),
        Route("/snapshot", snapshot),
        Route("/why", why),
    ]


async def _controlled(
    source: Source, request: Request, *, allow_control: bool
) -> tuple[int, dict[str, Any]]:
    """Status and answer of a command.

    The guard has checked token and origin. Requiring a JSON content type keeps out forms of other
    sites, which a browser sends with the user's password.
    """
    if not allow_control:
        return 403, {"error": "commands over HTTP are off: start with --allow-control"}
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return 415, {"error": "send Content-Type: application/json"}
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > COMMAND_BYTES_MAX:
            return 413, {"error": f"a command has at most {COMMAND_BYTES_MAX:,} bytes"}
    try:
        return 200, await asyncio.to_thread(obeyed, source, json.loads(body))
    except ConfigError as error:
        return 400, {"error": str(error)}
    except (ValueError, RecursionError):
        return 400, {"error": "a command is a JSON object"}


def app_of(
    source: Source,
    guard: Guard,
    more: Sequence[BaseRoute] = (),
    *,
    allow_control: bool = False,
) -> Any:
    """The ASGI app with access control on every path."""
    from starlette.applications import Starlette

    routes = routes_of(source, allow_control=allow_control)
    return Guarded(Starlette(routes=[*routes, *more]), guard)


class Guarded:
    """ASGI access control without middleware classes: it runs often under load."""

    def __init__(self, app: Any, guard: Guard) -> None:
        self._app, self._guard = app, guard

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        """Serve one request."""
        from starlette.datastructures import Headers, MutableHeaders
        from starlette.responses import PlainTextResponse

        refused = self._guard.refusal(scope["path"], Headers(scope=scope))
        if refused is not None:
            status, reason = refused
            headers = {"WWW-Authenticate": 'Basic realm="perkey"'} if status == 401 else None
            await PlainTextResponse(f"{reason}\n", status, headers)(scope, receive, send)
            return

        async def locked(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(ALWAYS)
            await send(message)

        await self._app(scope, receive, locked)


def check_serving(http: str, token_file: str | None) -> tuple[str, int, str | None]:
    """Host, port and token of a server; ConfigError if it could not start."""
    need_http("http")
    host, port = check_http(http, token_file)
    return host, port, None if token_file is None else token_of(token_file)


def serve(
    source: Source,
    http: str,
    token_file: str | None,
    *,
    allow_control: bool = False,
    letters: Letters | None = None,
    reach: Mapping[str, Any] | None = None,
) -> Serving:
    """Serve until it is closed. Raises ConfigError. `letters`, `reach`: see `Feed`."""
    host, port, token = check_serving(http, token_file)
    listener = listening("http", host, port)
    feed = Feed(
        source.members, source, source.sums, control=allow_control, letters=letters, reach=reach
    )
    more = page_routes(feed)
    app = app_of(source, Guard(host, token), more, allow_control=allow_control)
    return Serving(app, listener, feed.close)
