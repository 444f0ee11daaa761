"""A violated guarantee, by its name in docs/guarantees.md."""

from __future__ import annotations


class Violation(AssertionError):
    """The engine broke an invariant; `name` is S1 to S18, L1, L2, L4 or "structure"."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name}: {what}")
        self.name = name


def require(holds: object, name: str, what: str) -> None:
    """Raise where a promise does not hold. Call it only where `what` costs nothing to build."""
    if not holds:
        raise Violation(name, what)
