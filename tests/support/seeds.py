"""Which seeds a push runs: those of a simulator whose inputs have changed since they were run.

`python -m tests.support.seeds` runs them all and writes down on what: tests/data/seeds-run.txt has a
hash of every file that they reach. It need not be run: without it a push takes two minutes longer.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "tests/data/seeds-run.txt"
TESTS = ("tests/simulation/test_seeds.py", "tests/simulation/test_runtime_seeds.py")
SIMULATORS = ("core", "runtime")
ALL = "PERKEY_SEEDS"
BASE = "PERKEY_SEED_BASE"
FILES = """
import sys, simulators.{}.runner
print("\\n".join(sorted(filter(None, (getattr(m, "__file__", None) for m in sys.modules.values())))))
"""


def files(simulator: str) -> set[str]:
    """The files of this repository that its seeds reach: what it imports."""
    shown = subprocess.run(
        [sys.executable, "-c", FILES.format(simulator)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    ours = (ROOT / "src", ROOT / "simulators")
    paths = [Path(line) for line in shown.stdout.splitlines()]
    return {
        path.relative_to(ROOT).as_posix() for path in paths if any(map(path.is_relative_to, ours))
    }


def inputs(simulator: str) -> str:
    """A hash of these files."""
    digest = hashlib.sha256()
    for name in sorted(files(simulator)):
        digest.update(f"{name}\n".encode() + (ROOT / name).read_bytes())
    return digest.hexdigest()[:32]


def skip_unless_changed(simulator: str) -> None:
    """Skip the test whose seeds have been run on exactly these files."""
    known = RECORD.read_text().split() if RECORD.exists() else []
    if ALL not in os.environ and inputs(simulator) in known:
        pytest.skip(f"what these seeds reach is as it was when they were run ({ALL}=1 runs them)")


def new_seeds(last: int) -> int:
    """The first of a number of seeds that nobody has run: below `last`, chosen anew each time."""
    given = os.environ.get(BASE)
    first = random.SystemRandom().randrange(last) if given is None else int(given) % last
    print(f"new seeds from {first} on: {BASE}={first} runs this test with the same ones")
    return first


def main() -> int:
    """Run the push's seeds; write down on what, if every promise held and no file has changed."""
    before = [inputs(one) for one in SIMULATORS]
    words = [sys.executable, "-m", "pytest", "-q", "-m", "not long", *TESTS]
    code = subprocess.run(words, cwd=ROOT, env={**os.environ, ALL: "1"}, check=False).returncode
    if code == 0 and before == [inputs(one) for one in SIMULATORS]:
        rows = zip(SIMULATORS, before, strict=True)
        RECORD.write_text("".join(f"{name} {digest}\n" for name, digest in rows))
    return code


if __name__ == "__main__":
    sys.exit(main())
