"""The loop of confluent-kafka's documentation: record, call, offset stored; commits by time."""

from confluent_kafka import Consumer
from work import work

task = work()
consumer = Consumer(
    {
        "bootstrap.servers": task.job["bootstrap"],
        "group.id": task.job["group"],
        "session.timeout.ms": 6000,
        "auto.offset.reset": "earliest",
        "enable.auto.offset.store": False,
        "auto.commit.interval.ms": 1000,
    }
)
consumer.subscribe([task.job["topic"]])
while True:
    message = consumer.poll(1.0)
    if message is None or message.error():
        continue
    task.call(message.offset(), message.value())
    consumer.store_offsets(message)
