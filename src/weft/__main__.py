"""`python -m weft` is the command `weft`, also where its script is on no path."""

from __future__ import annotations

from weft.cli.main import main

main()
