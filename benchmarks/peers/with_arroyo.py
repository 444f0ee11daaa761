"""Arroyo: RunTaskInThreads, then a commit each second."""

from typing import Any

from arroyo.backends.kafka.configuration import build_kafka_consumer_configuration
from arroyo.backends.kafka.consumer import KafkaConsumer
from arroyo.commit import ONCE_PER_SECOND
from arroyo.processing.processor import StreamProcessor
from arroyo.processing.strategies import CommitOffsets, ProcessingStrategyFactory
from arroyo.processing.strategies.run_task_in_threads import RunTaskInThreads
from arroyo.types import Topic
from work import work

task = work()


def handle(message: Any) -> None:
    """One record."""
    task.call(message.value.offset, message.payload.value)


class Factory(ProcessingStrategyFactory[Any]):
    """The chain of one assignment."""

    def create_with_partitions(self, commit: Any, partitions: Any) -> Any:
        """Threads, then the commit."""
        threads = min(task.job["concurrency"], 1000)
        return RunTaskInThreads(handle, threads, 10 * threads, CommitOffsets(commit))


configuration = build_kafka_consumer_configuration(
    {"session.timeout.ms": 6000},
    bootstrap_servers=[task.job["bootstrap"]],
    group_id=task.job["group"],
    auto_offset_reset="earliest",
)
StreamProcessor(
    KafkaConsumer(configuration), Topic(task.job["topic"]), Factory(), ONCE_PER_SECOND
).run()
