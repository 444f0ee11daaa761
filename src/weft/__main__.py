"""`python -m weft` runs the command `weft`, also if its script is not on the path."""

from __future__ import annotations

from weft.cli.main import main

main()
