"""Pyrallel Consumer: order by key's hash, completed offsets kept in the commit's metadata."""

import asyncio
from typing import Any

from pyrallel_consumer.config import KafkaConfig
from pyrallel_consumer.consumer import PyrallelConsumer
from pyrallel_consumer.dto import ExecutionMode, OrderingMode
from work import work


async def main() -> None:
    """Until the process is killed."""
    task = work()
    config = KafkaConfig()
    config.BOOTSTRAP_SERVERS = [task.job["bootstrap"]]
    config.CONSUMER_GROUP = task.job["group"]
    config.SESSION_TIMEOUT_MS = 6000
    config.dlq_enabled = False
    parallel = config.parallel_consumer
    parallel.ordering_mode = OrderingMode.KEY_HASH  # as a string it is not recognised
    parallel.worker_pool_size = 1000
    parallel.rebalance_state_strategy = "metadata_snapshot"
    parallel.execution.mode = ExecutionMode.ASYNC
    parallel.execution.max_in_flight = task.job["concurrency"]
    # Its own limit of a call is 30 s, after which the record counts as failed.
    parallel.execution.async_config.task_timeout_ms = 10_000_000

    async def handle(item: Any) -> None:
        await task.call_async(item.offset, item.payload)

    consumer = PyrallelConsumer(config=config, worker=handle, topic=task.job["topic"])
    await consumer.start()
    await asyncio.Event().wait()


asyncio.run(main())
