"""`python -m benchmarks`: Perkey beside bare sleeps and Java; `stuck`: what a kill repeats."""

import sys

from benchmarks import run, stuck

if __name__ == "__main__":
    if sys.argv[1:2] == ["stuck"]:
        sys.exit(stuck.main(sys.argv[2:]))
    sys.exit(run.main())
