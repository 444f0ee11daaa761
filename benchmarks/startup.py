"""What starting takes: processor time of fresh processes, beside the Kafka client's own import.

Example: python -m benchmarks.startup --rounds 15

Each round runs every line once, in turn; a ratio is the median of the rounds' own ratios.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Sequence

CLIENT = "import confluent_kafka"
LINES = {
    "python": "pass",
    CLIENT: CLIENT,
    "import perkey; perkey.App": "import perkey; perkey.App",
    "… and what a run needs": "import perkey; perkey.App; import perkey.runtime.run.run",
    "perkey --version": "from perkey.cli.main import run; run(['--version'])",
    "perkey status --help": "from perkey.cli.main import run; run(['status', '--help'])",
}
#: of the client's import, without what Python itself takes
LIMITS = {"import perkey; perkey.App": 1.3}


def cpu_s(line: str) -> float:
    """Processor time of a process that runs this line."""
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    words = [sys.executable, "-c", line]
    pid = os.posix_spawn(sys.executable, words, os.environ, file_actions=quiet)
    _, status, used = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"{line!r} ended with {os.waitstatus_to_exitcode(status)}")
    return used.ru_utime + used.ru_stime


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table; exit 1 when a limit is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.startup",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=15, help="times that each line is run")
    rounds = parser.parse_args(arguments).rounds
    if rounds < 1:
        parser.error(f"--rounds {rounds}: give 1 or more")
    for line in LINES.values():
        cpu_s(line)  # its bytecode is there from now on
    runs = [{name: cpu_s(line) for name, line in LINES.items()} for _ in range(rounds)]
    missed = False
    for name in LINES:
        ratios = [(one[name] - one["python"]) / (one[CLIENT] - one["python"]) for one in runs]
        ratio, limit = statistics.median(ratios), LIMITS.get(name)
        missed |= limit is not None and ratio > limit
        ms = 1_000 * statistics.median(one[name] for one in runs)
        most = f"  at most {limit}" if limit else ""
        print(f"{name:26} {ms:6.0f} ms  {ratio:5.2f} of the client's import{most}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
