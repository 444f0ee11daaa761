"""aiokafka by hand: of each batch one chain for every key, all chains together, then the commit."""

import asyncio
from collections import defaultdict
from typing import Any

from aiokafka import AIOKafkaConsumer
from work import work


async def main() -> None:
    """Until the process is killed."""
    task = work()
    consumer = AIOKafkaConsumer(
        task.job["topic"],
        bootstrap_servers=task.job["bootstrap"],
        group_id=task.job["group"],
        session_timeout_ms=6000,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()

    async def chain(messages: list[Any]) -> None:
        for message in messages:
            await task.call_async(message.offset, message.value)

    while True:
        fetched = await consumer.getmany(timeout_ms=100, max_records=task.job["concurrency"])
        chains: dict[Any, list[Any]] = defaultdict(list)
        for messages in fetched.values():
            for message in messages:
                chains[message.key].append(message)
        if chains:
            await asyncio.gather(*map(chain, chains.values()))
            await consumer.commit()


asyncio.run(main())
