"""`python -m perkey` runs the command `perkey`, also if its script is not on the path."""

from __future__ import annotations

from perkey.cli.main import main

main()
