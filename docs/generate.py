"""Fills in what the docs take from the code: the diagrams of the state tables.

`make docs` writes them; a test fails when they are stale (`python docs/generate.py --check`).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from weft.core.states import diagrams

PAGE = Path(__file__).parent / "architecture.md"


def filled(text: str) -> str:
    """The page with every generated part as the code has it now."""
    for name, diagram in diagrams().items():
        block = f"<!-- generated: {name} -->\n```mermaid\n{diagram}\n```\n<!-- end -->"
        pattern = rf"<!-- generated: {name} -->.*?<!-- end -->"
        text = re.sub(pattern, block.replace("\\", r"\\"), text, flags=re.DOTALL)
    return text


def main(arguments: list[str]) -> int:
    """Write the page, or with --check say whether it is stale."""
    text = PAGE.read_text()
    fresh = filled(text)
    if "--check" in arguments:
        return int(fresh != text)
    PAGE.write_text(fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
