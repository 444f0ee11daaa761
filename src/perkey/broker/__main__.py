"""`python -m perkey.broker`: check that this machine can run a broker; download its jars once."""

from __future__ import annotations

import sys

from perkey.broker.jars import ensure_jars
from perkey.broker.java import find_java
from perkey.errors import ConfigError


def main() -> int:
    """Return 0 if nothing is missing, else 2 after one line that names the missing part."""
    if len(sys.argv) > 1:
        sys.stderr.write(
            "perkey: python -m perkey.broker checks this machine and takes no argument: brokers "
            "are started by `perkey broker up`\n"
        )
        return 2
    try:
        find_java()
        ensure_jars()
    except ConfigError as error:
        sys.stderr.write(f"perkey: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
