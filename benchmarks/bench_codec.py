"""How long the offset map takes to write, cut to size, measure and read, and how long it gets.

Run: python benchmarks/bench_codec.py [--seed N]
"""

import argparse
import random
import time
from collections.abc import Callable

from perkey.codec import MapTooLarge, decode, encode, encode_fitting, measure

ROUNDS = 7

#: name, offsets in range, share of them not done (None: the first offset alone)
CASES: list[tuple[str, int, float | None]] = [
    ("one stuck, 1,000,000 done beyond", 1_000_000, None),
    ("one stuck, 2,000,000,000 done beyond", 2_000_000_000, None),
    ("1 % of 200,000", 200_000, 0.01),
    ("10 % of 40,000", 40_000, 0.1),
    ("50 % of 24,000 (fits exactly)", 24_000, 0.5),
    ("50 % of 50,000 (25,000 not done)", 50_000, 0.5),
]


def best_ms(work: Callable[[], object]) -> float:
    """Fastest of some rounds, in milliseconds."""
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times) * 1000


def not_done_of(length: int, share: float | None, seed: int) -> list[int]:
    """The offsets that are not done; the last is done."""
    if share is None:
        return [0]
    chance = random.Random(seed)
    return [offset for offset in range(length - 1) if chance.random() < share]


def row(name: str, length: int, not_done: list[int]) -> str:
    """One line of the table."""
    top = length - 1
    try:
        text = encode(0, top, not_done)
    except MapTooLarge:
        return f"{name:38} too large"
    times = (
        best_ms(lambda: encode(0, top, not_done)),
        best_ms(lambda: encode_fitting(0, top, not_done)),
        best_ms(lambda: measure(0, top, not_done)),
        best_ms(lambda: decode(0, text)),
    )
    columns = "".join(f"{one:12.3f}" for one in times)
    return f"{name:38}{columns}{len(text):8}  {decode(0, text).encoding}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    seed = parser.parse_args().seed
    print(f"seed {seed}; fastest of {ROUNDS}; milliseconds")
    heads = "".join(f"{head:>12}" for head in ("encode", "fitting", "measure", "decode"))
    print(f"{'not done':38}{heads}{'chars':>8}  encoding")
    for name, length, share in CASES:
        print(row(name, length, not_done_of(length, share, seed)))


if __name__ == "__main__":
    main()
