"""A machine with other things to do: what a test must bear that CI runs once.

    python -m tests.support.load --seed 7 tests/integration/app

runs pytest with the rest of the line, and meanwhile stops its processes for up to four seconds at a
time (SIGSTOP: tests, brokers, JVMs, workers, one or all), while others use the processors. Inside
the test processes, threads rest at random where they hand something over: at the engine's door,
before and inside, and between two rounds of the polling thread. What fails like this, and not
without, asserts something that holds on a quick machine only.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from perkey.runtime.door import Door
from perkey.runtime.member.member import Member

STALL_S = (0.2, 4.0)
BETWEEN_S = (2.0, 10.0)
REST_S = 0.15  # at most; less than what counts as having stood still
ODDS = 0.02


# -- inside: a pytest plugin -----------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Only the command below gives it."""
    parser.addoption("--load-seed", type=int, default=0)


def pytest_configure(config: pytest.Config) -> None:
    """Have threads rest where they hand over."""
    draw = random.Random(config.getoption("--load-seed"))
    for owner, name in ((Door, "turn"), (Door, "_drain"), (Member, "_step")):
        setattr(owner, name, _resting(getattr(owner, name), draw))


def _resting(function: Callable[..., Any], draw: random.Random) -> Callable[..., Any]:
    @functools.wraps(function)
    def rested(*args: Any) -> Any:
        if draw.random() < ODDS:
            time.sleep(draw.uniform(0, REST_S))  # what this is for
        return function(*args)

    return rested


# -- outside: stops and hogs -----------------------------------------------------------------------


def _stall(tree: list[psutil.Process], draw: random.Random) -> None:
    """Some or all of them stand still for a while; what a test has stopped remains so."""
    tree = [one for one in tree if not _stopped(one)]
    chosen = tree if draw.random() < 0.3 else draw.sample(tree, min(len(tree), draw.randint(1, 3)))
    for process in chosen:
        with contextlib.suppress(psutil.Error):
            process.suspend()
    try:
        time.sleep(draw.uniform(*STALL_S))  # they stand still
    finally:
        for process in chosen:
            with contextlib.suppress(psutil.Error):
                process.resume()


def _stopped(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.Error:  # it has ended
        return True


@contextlib.contextmanager
def _hogs(count: int) -> Iterator[None]:
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.send_signal(signal.SIGKILL)
            hog.wait()


def main(arguments: list[str]) -> int:
    """Run pytest under load; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.load", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hogs", type=int, default=2, help="processes that only compute")
    parser.add_argument("--no-stalls", action="store_true", help="stop no process")
    options, rest = parser.parse_known_args(arguments)
    draw = random.Random(options.seed)
    inside = ["-p", "tests.support.load", "--load-seed", str(options.seed)]
    with _hogs(options.hogs):
        tests = subprocess.Popen([sys.executable, "-m", "pytest", *inside, *rest])
        while tests.poll() is None:
            time.sleep(draw.uniform(*BETWEEN_S))  # they run
            with contextlib.suppress(psutil.Error):
                root = psutil.Process(tests.pid)
                if not options.no_stalls:
                    _stall([root, *root.children(recursive=True)], draw)
    return tests.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
