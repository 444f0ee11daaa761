"""A real Apache Kafka on this machine, without Docker: for `perkey broker up` and from Python.

with LocalBroker() as broker:
    broker.create_topic("orders", partitions=4)
    connect(broker.bootstrap)
"""

from perkey.broker.local import LocalBroker
from perkey.broker.process import BrokerError

__all__ = ["BrokerError", "LocalBroker"]
