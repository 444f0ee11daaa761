"""A program with worker processes, to be signalled: `python -m tests.integration.workers.signalled`.

Each of its records takes a second; it says what began and what ended.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import perkey
from perkey.testing import MemoryKafka

RECORDS = 60  # half a minute of work


def say(text: str) -> None:
    """One line, whole."""
    os.write(1, f"{text}\n".encode())


def slow(record: perkey.Record) -> None:
    """A second of work."""
    say(f"begun {record.offset}")
    time.sleep(1.0)  # the work
    say(f"done {record.offset}")


def main() -> None:
    """Run until SIGTERM; the exit code is the run's."""
    with MemoryKafka(auto_create=True) as kafka:
        kafka.create_topic("work")
        for number in range(RECORDS):
            kafka.produce("work", b"", key=b"%d" % number)
        app = perkey.App(
            group="g",
            kafka={"bootstrap.servers": kafka.bootstrap, "auto.offset.reset": "earliest"},
        )
        app.consume("work", executor="processes", concurrency=2, delivery=sys.argv[-1])(slow)
        run = app.start()
        signal.signal(signal.SIGTERM, lambda *_: run.stop())
        report = run.wait()
    sys.exit(report.exit_code)


if __name__ == "__main__":
    main()
