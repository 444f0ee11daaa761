"""A real Apache Kafka on this machine, without Docker: for `weft broker up` and from Python.

with LocalBroker() as broker:
    broker.create_topic("orders", partitions=4)
    connect(broker.bootstrap)
"""

from weft.broker.local import LocalBroker
from weft.broker.process import BrokerError

__all__ = ["BrokerError", "LocalBroker"]
