"""The reference: one consumer, one record after another, one HTTP call each.

python -m demo.plain BOOTSTRAP SERVICE TOPIC SECONDS
"""

from __future__ import annotations

import http.client
import os
import sys
import time
from urllib.parse import urlsplit

from confluent_kafka import Consumer

_AGAIN_S = 0.1


def loop(bootstrap: str, service: str, topic: str, seconds: float) -> int:
    """Handle records for so long; how many it were."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "plain-loop",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    address = urlsplit(service)
    connection = http.client.HTTPConnection(address.netloc)  # kept open: as fast as a loop can be
    done, ends_at = 0, None
    while ends_at is None or time.monotonic() < ends_at:
        message = consumer.poll(1.0)
        if message is None or message.error():
            continue
        ends_at = ends_at or time.monotonic() + seconds  # joining the group is not counted
        while ask(connection, address.path, message.value() or b"") == 503:
            time.sleep(_AGAIN_S)
        consumer.commit(message=message, asynchronous=True)
        done += 1
    consumer.close()
    return done


def ask(connection: http.client.HTTPConnection, path: str, position: bytes) -> int:
    """One call; its status."""
    connection.request("POST", path, position, {"X-Member": str(os.getpid())})
    answer = connection.getresponse()
    answer.read()
    return answer.status


if __name__ == "__main__":
    loop(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
