"""Handlers that worker processes can import; what they do is in the record's value."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import perkey

NOTES = "PERKEY_TEST_NOTES"  # a file that handlers append to, whichever process they are in


def note(text: str) -> None:
    """Append a line in one write, which lines of other processes cannot tear."""
    with Path(os.environ[NOTES]).open("ab", buffering=0) as file:
        file.write(f"{text} {os.getpid()}\n".encode())


def noted() -> list[list[str]]:
    """What all have noted, whole lines."""
    return [line.split() for line in Path(os.environ[NOTES]).read_text().splitlines()]


def until(true: Callable[[], bool], what: str) -> None:
    """Wait for it, with a limit."""
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, f"it never came so far: {what}"
        time.sleep(0.01)  # between two looks, with a limit


def meet(processes: int = 2) -> None:
    """Wait until so many processes, this one among them, have noted something."""
    until(lambda: len({line[-1] for line in noted()}) >= processes, "the others have begun")


def linger(others: int) -> None:
    """Wait until so many other records have begun."""
    until(lambda: len({line[1] for line in noted()}) > others, "the others are handled")


@contextmanager
def opened(app: perkey.App) -> Iterator[str]:
    """A lifespan that says so."""
    note("open")
    yield "resource"


def work(record: perkey.Record) -> perkey.Produce | None:
    """Do what the value says: die, die-once, sleep, linger, meet, raise, out, or just burn.

    Only what is in front of a "|" counts.
    """
    text = record.value.decode().partition("|")[0]
    note(f"start {record.offset} {record.attempt}")
    if text == "die" or (text == "die-once" and record.attempt == 1):
        os.kill(os.getpid(), 9)
    if text == "suspend" and record.attempt == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    if text == "fork" and record.attempt == 1:
        fork_and_die()
    if text == "log":
        logging.getLogger("burning").warning("%d apples", "five")
    if text == "sleep":
        time.sleep(60)  # a call that hangs
    if text.startswith("linger"):
        linger(int(text.split()[1]))  # a slow one among fast ones
    if text == "meet":
        meet()
    if text == "raise":
        raise ValueError("as asked")
    end = time.perf_counter() + (0.0 if text == "quick" else 0.001)
    while time.perf_counter() < end:
        pass
    return perkey.Produce(b"seen", topic="out") if text == "out" else None


def fork_and_die() -> None:
    """Die, and leave a process behind that this one has forked."""
    if os.fork() == 0:
        note("forked")
        time.sleep(300)  # the test ends it
        os._exit(0)
    until(lambda: any(line[0] == "forked" for line in noted()), "the other process runs")
    os.kill(os.getpid(), 9)


class Unreadable:
    """A value that can be pickled but not unpickled."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return int, ("no number",)


def delay_of(attempt: int, error: BaseException) -> float:
    """As `Retry(delay_s=)`: note which attempt has failed."""
    note(f"delay {attempt}")
    return 0.0


async def work_async(record: perkey.Record) -> None:
    """The same kind of work in an `async def`."""
    note(f"start {record.offset} {record.attempt}")


def work_batch(batch: perkey.RecordBatch) -> None:
    """Acknowledge all but the last; die on request."""
    for record in batch:
        note(f"start {record.offset} {record.attempt}")
        if record.value == b"die" and record.attempt == 1:
            os.kill(os.getpid(), 9)
        batch.ack(record)


def state_of_app(record: perkey.Record) -> perkey.Produce:
    """What the lifespan opened in this process; all of them meet over each record."""
    meet(3)
    return perkey.Produce(str(app.state), topic="out")


app = perkey.App(group="burning", kafka={"bootstrap.servers": "nowhere:1"}, lifespan=opened)
app.consume("work", executor="processes", concurrency=2)(state_of_app)


def sum_batch(batch: perkey.RecordBatch) -> perkey.Produce:
    """One output for all, after a while."""
    time.sleep(0.05)  # the time that its results have
    return perkey.Produce(f"{len(batch)}", topic="out")
