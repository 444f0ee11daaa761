"""What one would write without Perkey, with a handler that does nothing: the sides of floor.py.

Run as a process of its own, as Perkey is: `python -m benchmarks.clients '<json of ClientSpec>'`.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Message

from benchmarks.apps import Meter, noop
from benchmarks.loops import new_event_loop

BATCH = 500
WAIT_S = 0.5
THREADS = 100


@dataclass(frozen=True)
class ClientSpec:
    """What to read, and with which client: a name of CLIENTS."""

    client: str
    bootstrap: str
    topic: str
    group: str
    records: int


def main() -> None:
    """Read the topic to its end; print what was measured, as JSON."""
    spec = ClientSpec(**json.loads(sys.argv[1]))
    meter = Meter(spec.records)
    CLIENTS[spec.client](spec, meter)
    print(json.dumps(meter.row()))


def _loop(spec: ClientSpec, meter: Meter) -> None:
    """The bare client: the handler is called in the loop that polls."""
    consumer, handler = _consumer(spec), noop("threads", meter)
    while not meter.finished_s:
        for message in _checked(consumer.consume(BATCH, WAIT_S)):
            handler(message)
    consumer.close()


def _pool(spec: ClientSpec, meter: Meter) -> None:
    """A pool of threads for each batch."""
    consumer, handler = _consumer(spec), noop("threads", meter)
    with ThreadPoolExecutor(THREADS) as pool:
        while not meter.finished_s:
            list(pool.map(handler, _checked(consumer.consume(BATCH, WAIT_S))))
    consumer.close()


def _gather(spec: ClientSpec, meter: Meter) -> None:
    """A task for each message of a batch."""
    consumer, handler = _consumer(spec), noop("async", meter)

    async def run() -> None:
        while not meter.finished_s:
            messages = await asyncio.to_thread(consumer.consume, BATCH, WAIT_S)
            await asyncio.gather(*map(handler, _checked(messages)))

    _run(run())
    consumer.close()


def _aiokafka(spec: ClientSpec, meter: Meter) -> None:
    """The same loop with aiokafka, whose client is written in Python."""
    from aiokafka import AIOKafkaConsumer

    handler = noop("async", meter)

    async def run() -> None:
        consumer = AIOKafkaConsumer(
            spec.topic,
            bootstrap_servers=spec.bootstrap,
            group_id=spec.group,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        while not meter.finished_s:
            batches = await consumer.getmany(timeout_ms=int(WAIT_S * 1e3), max_records=BATCH)
            for messages in batches.values():
                for message in messages:
                    await handler(message)
        await consumer.stop()

    _run(run())


CLIENTS: dict[str, Callable[[ClientSpec, Meter], None]] = {
    "bare client": _loop,
    "aiokafka": _aiokafka,
    "asyncio.gather": _gather,
    "thread pool": _pool,
}


def _run(coroutine: Any) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(coroutine)


def _consumer(spec: ClientSpec) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": spec.bootstrap,
            "group.id": spec.group,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([spec.topic])
    return consumer


def _checked(messages: list[Message]) -> list[Message]:
    """All of them are records; no loop can do without asking."""
    for message in messages:
        if error := message.error():
            raise RuntimeError(error.str())
    return messages


if __name__ == "__main__":
    main()
