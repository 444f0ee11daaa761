"""FastStream with faststream-concurrent-aiokafka, as its quick start says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from faststream import ContextRepo, FastStream
from faststream.kafka import KafkaBroker, KafkaMessage
from faststream.middlewares import AckPolicy
from faststream_concurrent_aiokafka import (
    KafkaConcurrentProcessingMiddleware,
    initialize_concurrent_processing,
    stop_concurrent_processing,
)
from work import work

task = work()
broker = KafkaBroker(task.job["bootstrap"], logger=None)  # not two lines for each record
broker.add_middleware(KafkaConcurrentProcessingMiddleware)


@asynccontextmanager
async def lifespan(context: ContextRepo) -> AsyncIterator[None]:
    """The limits of its quick start, but for the number of calls."""
    await initialize_concurrent_processing(
        context=broker.context,
        concurrency_limit=task.job["concurrency"],
        commit_batch_size=100,
        commit_batch_timeout_sec=5.0,
    )
    try:
        yield
    finally:
        await stop_concurrent_processing(broker.context)


@broker.subscriber(
    task.job["topic"],
    group_id=task.job["group"],
    auto_offset_reset="earliest",
    session_timeout_ms=6000,
    ack_policy=AckPolicy.MANUAL,
)
async def handle(body: bytes, message: KafkaMessage) -> None:
    """One record."""
    await task.call_async(message.raw_message.offset, message.raw_message.value)


asyncio.run(FastStream(broker, lifespan=lifespan).run())
