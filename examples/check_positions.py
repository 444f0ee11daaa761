"""The slow part with Perkey: a service is asked about each prepared position.

    perkey run check_positions:app                    # in examples/; one process
    perkey run check_positions:app --engine spark --members 4 --master spark://host:7077

Reads `gps.prepared` (examples/prepare_positions.py fills it), writes `geofence.alerts`. Positions
of one vehicle are checked one after another, those of all others at the same time.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import perkey

ZONE = ((48.0, 11.0), (48.3, 11.9))  # south-west and north-east corner


class Geofence:
    """Stands for the client of a service that takes 50 ms to answer."""

    async def is_inside(self, lat: float, lon: float) -> bool:
        """Whether the position is in the zone."""
        await asyncio.sleep(0.05)
        (south, west), (north, east) = ZONE
        return south <= lat <= north and west <= lon <= east


@asynccontextmanager
async def clients() -> AsyncIterator[Geofence]:
    """Opened once per member: here a session to the service would be."""
    yield Geofence()


app = perkey.App(
    group="geofence",
    kafka={"bootstrap.servers": os.environ.get("BOOTSTRAP", "localhost:9092")},
    lifespan=clients,
)


@app.consume("gps.prepared", value="json", concurrency=200, output="geofence.alerts")
async def check(record: perkey.Record) -> dict[str, str] | None:
    """An alert for a vehicle in the zone; nothing for others."""
    position = record.value
    if await app.state.is_inside(position["lat"], position["lon"]):
        return {"vehicle": position["vehicle"], "owner": position["owner"]}
    return None


if __name__ == "__main__":
    app.main()
