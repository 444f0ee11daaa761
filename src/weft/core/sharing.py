"""Texts that many failing records have in common are kept once.

A dependency that is down fails thousands of records with one traceback, of up to 2,000 characters.
The table that finds equal ones is bounded; what it forgets stays shared by those that have it.
"""

from __future__ import annotations

TEXTS_MAX = 512
TEXT_OVERHEAD_BYTES = 56


class SharedTexts:
    """The texts that failures were given last."""

    def __init__(self) -> None:
        #: a dictionary keeps its order: the one that was asked for least lately comes first
        self._texts: dict[str, str] = {}

    def same(self, text: str) -> tuple[str, int]:
        """The text as it is kept already, and how many bytes it takes more if it is not."""
        known = self._texts.pop(text, None)
        kept = self._texts[text if known is None else known] = text if known is None else known
        if len(self._texts) > TEXTS_MAX:
            del self._texts[next(iter(self._texts))]
        return kept, size_bytes(kept) if known is None else 0


def size_bytes(text: str) -> int:
    """About what a text takes in memory; the empty one is everywhere the same."""
    return TEXT_OVERHEAD_BYTES + len(text) * (1 if text.isascii() else 4) if text else 0
