"""One way to break the core, for the duration of a `with` block.

`promises` are those that it breaks; the simulator must report one of them, not just fail somehow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Mutant:
    """One way to break the core."""

    name: str
    promises: tuple[str, ...]
    owner: Any
    attribute: str
    broken: Callable[..., Any]
    #: where the seeds begin that are likely to meet it (see profiles.py)
    first_seed: int = 0

    @contextmanager
    def alive(self) -> Iterator[None]:
        """The core is broken inside."""
        original = vars(self.owner)[self.attribute]
        broken = self.broken(original)
        setattr(self.owner, self.attribute, broken)
        try:
            yield
        finally:
            setattr(self.owner, self.attribute, original)


MUTANTS: list[Mutant] = []


def mutant(
    owner: Any, attribute: str, *promises: str, first_seed: int = 0
) -> Callable[[Callable[..., Any]], None]:
    """Register a patch: the function gets the original and returns what takes its place."""

    def register(broken: Callable[..., Any]) -> None:
        name = broken.__name__.lstrip("_")
        MUTANTS.append(Mutant(name, promises, owner, attribute, broken, first_seed))

    return register
