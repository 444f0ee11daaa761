"""The demo's app, and an example: a slow service checks every position, in order per vehicle.

    perkey run demo.geofence:app
    perkey run demo.geofence:app --engine spark --members 2

Where things are comes from environment variables, so the same file runs everywhere.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

import perkey

BOOTSTRAP = os.environ.get("GEOFENCE_BOOTSTRAP", "localhost:9092")
SERVICE = os.environ.get("GEOFENCE_SERVICE", "http://localhost:8080/check")
GROUP = os.environ.get("GEOFENCE_GROUP", "geofence")
POSITIONS = os.environ.get("GEOFENCE_POSITIONS", "gps.positions")
ALERTS = os.environ.get("GEOFENCE_ALERTS", "gps.alerts")
CONCURRENCY = int(os.environ.get("GEOFENCE_CONCURRENCY", "300"))


@asynccontextmanager
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """One HTTP session for each process: opened when it starts, closed when it ends."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),  # Perkey's `concurrency` is the limit
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"X-Member": str(os.getpid())},
    ) as http:
        yield http


app = perkey.App(group=GROUP, kafka={"bootstrap.servers": BOOTSTRAP}, lifespan=session)


@app.consume(
    POSITIONS,
    ordering="key",  # the key is the vehicle: its positions are checked one after the other
    concurrency=CONCURRENCY,  # and so many vehicles at once
    value="json",
    retry=perkey.Retry(attempts=6, delay_s=0.1),
    timeout_s=10.0,
    on_exhausted=perkey.DeadLetter("{topic}.dlq"),
    commit=perkey.Commit(each=True),  # kill -9 repeats no more than what was in flight
    output=ALERTS,
)
async def check(record: perkey.Record) -> dict[str, object] | None:
    """Ask the service; an alert where the vehicle has crossed a border."""
    position = record.value
    async with app.state.post(SERVICE, json=position) as answer:
        if answer.status == 422:
            raise perkey.Reject(await answer.text())  # trying again will not help: a dead letter
        answer.raise_for_status()  # anything else is tried again, and only this vehicle waits
        verdict = await answer.json()
    if verdict["event"] is None:
        return None
    return {**position, "event": verdict["event"], "zone": verdict["zone"]}


if __name__ == "__main__":
    app.main()
