"""Rows of a command's output, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text


def whole(*names: str) -> list[Column]:
    """Columns whose cells stay in one line."""
    return [Column(name, no_wrap=True) for name in names]


def folded(*names: str) -> list[Column]:
    """Columns whose cells are continued in the next line."""
    return [Column(name, overflow="fold") for name in names]


def numbers(*names: str) -> list[Column]:
    """Columns of numbers."""
    return [Column(name, justify="right", no_wrap=True) for name in names]


def print_table(
    columns: Sequence[Column | str], rows: Iterable[Sequence[str]], *, edge: bool = True
) -> None:
    """Print a table; a cell is text, never markup. `edge`: with an empty line around it."""
    table = Table(*columns, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=edge)
    for cells in rows:
        table.add_row(*map(Text, cells))
    Console().print(table)
