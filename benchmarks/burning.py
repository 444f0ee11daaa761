"""What the worker processes of benchmarks/processes.py run: pure Python, or nothing."""

import time

ROUNDS_A_TRY = 20_000
TRIES = 200
WORK_S = 0.001


def burn(rounds: int) -> int:
    """So many rounds of pure Python."""
    total = 0
    for number in range(rounds):
        total += number & 7
    return total


def rounds_of_work() -> int:
    """How many rounds take 1 ms here and now."""
    times = []
    for _ in range(TRIES):
        began = time.perf_counter()
        burn(ROUNDS_A_TRY)
        times.append(time.perf_counter() - began)
    return int(ROUNDS_A_TRY * WORK_S / min(times))


def work(record: object) -> None:
    """The handler; the record's value says how many rounds."""
    burn(int(record.value))  # type: ignore[attr-defined] # of a perkey.Record or a plain message
