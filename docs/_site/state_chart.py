"""A state diagram of Mermaid as SVG: a column for each state, a row for each change."""

from __future__ import annotations

import html
import re

ROW, COLUMN, MARGIN, HEAD = 34, 81, 42, 34
CHANGE = re.compile(r"^\s*(\w+) --> (\w+): (.+)$", re.MULTILINE)
WIDTH = 6.6  # of a letter of a label, at 12 pixels


def draw(source: str) -> str:
    """The SVG; `source` is a stateDiagram-v2 with one `a --> b: why` in each line."""
    if not source.startswith("stateDiagram-v2"):
        raise ValueError("only state diagrams are drawn: draw others as docs/diagrams/*.svg")
    changes = CHANGE.findall(source)
    names = list(dict.fromkeys(name for before, after, _ in changes for name in (before, after)))
    if "done" in names:  # the end of a life is its last column
        names.append(names.pop(names.index("done")))
    at = {name: MARGIN + n * COLUMN for n, name in enumerate(names)}
    right = max(at.values()) + MARGIN
    rows = [
        _row(n, at[before], at[after], why, right) for n, (before, after, why) in enumerate(changes)
    ]
    width = max([right, *(end for _, end in rows)])
    bottom = HEAD + 22 + len(changes) * ROW
    heads = [_head(name, x, bottom) for name, x in at.items()]
    words = "; ".join(f"{before} to {after}: {why}" for before, after, why in changes)
    return (
        f'<svg class="pk-chart" role="img" aria-label="{html.escape(words, quote=True)}" '
        f'viewBox="0 0 {width:.0f} {bottom + 6}" width="{width:.0f}">'
        + "".join(heads)
        + "".join(row for row, _ in rows)
        + "</svg>"
    )


def _head(name: str, x: int, bottom: int) -> str:
    title = html.escape(name.replace("_", " "))
    kind = " end" if name in {"done", "closed"} else ""
    return (
        f'<line class="life" x1="{x}" y1="{HEAD}" x2="{x}" y2="{bottom}"/>'
        f'<rect class="state{kind}" x="{x - 38}" y="4" width="76" height="{HEAD - 6}" rx="7"/>'
        f'<text class="name" x="{x}" y="23" text-anchor="middle">{title}</text>'
    )


def _row(number: int, start: int, end: int, why: str, right: int) -> tuple[str, float]:
    """One change, and how far right it reaches."""
    y = HEAD + 34 + number * ROW
    text = html.escape(why)
    length = WIDTH * len(why)
    if start == end:
        path = f"M{start} {y - 7}h22v10h-15"
        tip, x = _tip(start + 6, y + 3, -1), start + 30.0
    else:
        way = 1 if end > start else -1
        path = f"M{start} {y}H{end - 7 * way}"
        tip, x = _tip(end - 1 * way, y, way), min(start, end) + 8.0
    anchor = ""
    if x + length > right:  # it ends at the border, or, of a loop, to the left of it
        anchor, x, length = ' text-anchor="end"', start - 8.0 if start == end else right, 0
    begin_y, label_y = (y, y - 6) if start != end else (y - 7, y + 2)
    drawn = (
        f'<path class="change" d="{path}"/>{tip}'
        f'<circle class="from" cx="{start}" cy="{begin_y}" r="3"/>'
        f'<text class="why"{anchor} x="{x:.0f}" y="{label_y}">{text}</text>'
    )
    return drawn, x + length


def _tip(x: float, y: int, way: int) -> str:
    return f'<path class="tip" d="M{x} {y}l{-8 * way} -4v8z"/>'
