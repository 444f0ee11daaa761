"""The geofence service: a small HTTP server in a separate process that takes 50 ms per response.

    python -m demo.service LOGFILE [PORT]

POST /{run}/check with a position answers 200 {"zone": ..., "event": ...}, 422 for a place that is
not on Earth, or 503. It remembers in which zone it saw each vehicle last: this is why positions
must come in order. One answer in 100 takes ten times as long, one in 200 is a failure; which ones
follows from their content, so every run meets the same. GET /stats counts. LOGFILE gets a line for
each answer: begin, end, run, member, vehicle, seq, status. It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from demo.tracks import SEED
from demo.zones import crossing, is_on_earth, zone_of

ANSWER_S, SLOW_ANSWER_S = 0.05, 0.5
FAILING_SHARE, SLOW_SHARE = 0.005, 0.01
MEMBER_HEADER = "X-Member"
_FLUSH_S = 0.2


def trouble_of(vehicle: str, seq: int) -> tuple[int, float]:
    """(answers that fail before one is good, seconds an answer takes): by content alone."""
    dice = zlib.crc32(f"{SEED}:{vehicle}:{seq}".encode()) / 2**32
    if dice < FAILING_SHARE:
        return (2 if dice < FAILING_SHARE / 5 else 1), ANSWER_S
    return 0, SLOW_ANSWER_S if dice < FAILING_SHARE + SLOW_SHARE else ANSWER_S


@dataclass(slots=True)
class Known:
    """What the service knows of one vehicle in one run."""

    zone: str | None = None
    #: seq -> the answer that was given, for a position that comes again
    answers: dict[int, bytes] = field(default_factory=dict)
    failed: Counter[int] = field(default_factory=Counter)


class Service:
    """Answers, counts and logs."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._vehicles: defaultdict[tuple[str, str], Known] = defaultdict(Known)
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request."""
        if request.path == "/stats":
            return web.json_response(self._counts)
        begin = time.time()
        run = request.path.split("/", 2)[1]
        member = request.headers.get(MEMBER_HEADER, "-")
        position = json.loads(await request.read())
        # Decided at arrival, told when the time is up: an answer that nobody waits for any more
        # must not overtake those that came after it.
        status, body, answer_s = self._decide(run, position)
        await asyncio.sleep(answer_s)
        self._counts[run][member] += status != 503
        self.lines.append(
            f"{begin:.4f},{time.time():.4f},{run},{member},"
            f"{position['vehicle']},{position['seq']},{status}\n"
        )
        return web.Response(body=body, status=status, content_type="application/json")

    def _decide(self, run: str, position: dict[str, Any]) -> tuple[int, bytes, float]:
        vehicle, seq, lat, lon = (position[name] for name in ("vehicle", "seq", "lat", "lon"))
        known = self._vehicles[run, vehicle]
        failures, answer_s = trouble_of(vehicle, seq)
        if known.failed[seq] < failures:
            known.failed[seq] += 1
            return 503, b'{"error": "overloaded, try again"}', answer_s
        if not is_on_earth(lat, lon):
            return 422, b'{"error": "this is not on Earth"}', answer_s
        answer = known.answers.get(seq)
        if answer is None:
            now = zone_of(lat, lon)
            event = crossing(known.zone, now)
            known.zone = now
            name, zone = event or (None, now)
            answer = known.answers[seq] = json.dumps({"event": name, "zone": zone}).encode()
        return 200, answer, answer_s


async def serve(log: Path, port: int, on_port: Callable[[int], None]) -> None:
    """Serve until standard input ends, or a signal comes."""
    service, over = Service(), asyncio.Event()
    runner = web.ServerRunner(web.Server(service.handle, access_log=None))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, backlog=1024)
    await site.start()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    # A daemon: a signal ends the process though this thread still reads.
    threading.Thread(target=_until_input_ends, args=(loop, over), daemon=True).start()
    on_port(runner.addresses[0][1])
    with log.open("a") as file:
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), _FLUSH_S)
            lines, service.lines = service.lines, []
            file.writelines(lines)
            file.flush()
        await runner.cleanup()
        file.writelines(service.lines)


def _until_input_ends(loop: asyncio.AbstractEventLoop, over: asyncio.Event) -> None:
    # Not by way of sys.stdin: its lock would be in the way of Python's end.
    while os.read(0, 1024):
        pass
    with contextlib.suppress(RuntimeError):  # a signal was faster, and the loop is closed
        loop.call_soon_threadsafe(over.set)


def main() -> None:
    """Run it; the port is its first line on standard output."""
    log = Path(sys.argv[1])
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    asyncio.run(serve(log, port, lambda number: print(number, flush=True)))  # noqa: T201  # whoever started it reads this


if __name__ == "__main__":
    main()
