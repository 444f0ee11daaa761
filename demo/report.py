"""report.html: one self-contained page with the picture, the map and the proof."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from demo.citymap import city_map
from demo.facts import Found, summary
from demo.stage import LOCAL, PLAIN, SPARK
from demo.tracks import SEED

_ROWS_SHOWN = 6


def write_report(found: Found, picture: Path, path: Path) -> None:
    """Fill the template."""
    told = summary(found)
    template = Template(resources.files("demo").joinpath("report.template.html").read_text())
    image = base64.b64encode(picture.read_bytes()).decode()
    path.write_text(
        template.substitute(
            verdict=_verdict(found),
            verdict_class="good" if found.ok else "bad",
            records=f"{told['records']:,}",
            vehicles=f"{told['vehicles']:,}",
            tiles="".join(_tiles(found, told)),
            picture=f"data:image/png;base64,{image}",
            back=_back(told["back_after_kill_s"]),
            repeats=f"{told['repeats']:,}",
            map=city_map(found.fleet),
            alerts=f"{len(found.fleet.alerts):,}",
            checks="".join(_checks(found)),
            rows="".join(_rows(found)),
            summary=html.escape(
                json.dumps({k: v for k, v in told.items() if k != "checks"}, indent=2)
            ),
            seed=str(SEED),
            concurrency=str(told["concurrency"]),
            members=str(told["members"]),
            seconds=f"{told['seconds']:.0f}",
            versions=html.escape(f"Perkey {told['perkey']}, Python {told['python']}"),
        )
    )


def _verdict(found: Found) -> str:
    if found.ok:
        return "Nothing lost, nothing out of order, nothing repeated without a reason."
    wrong = [str(check) for check in found.checks if not check.ok]
    return html.escape(f"{len(wrong)} of {len(found.checks)} checks failed: {'; '.join(wrong)}")


def _tiles(found: Found, told: dict[str, Any]) -> Iterator[str]:
    yield _tile("plain", "A plain loop", found.rate(PLAIN), "one record after the other")
    for kind, title, run, factor in (
        ("perkey", "Perkey, one process", LOCAL, told["perkey_factor"]),
        ("spark", "Perkey on Spark", SPARK, told["spark_factor"]),
    ):
        times = f"{factor:,.0f} × the plain loop" if factor else ""
        yield _tile(kind, title, found.rate(run), times)


def _tile(kind: str, title: str, rate: float, below: str) -> str:
    return (
        f'<div class="tile {kind}"><h3>{title}</h3><p class="number">{rate:,.0f}'
        f"<small> records/s</small></p><p>{below}</p></div>"
    )


def _back(seconds: float | None) -> str:
    if seconds is None:
        return "the other member took over"
    return f"a new process was handling its vehicles {seconds:.1f} s later"


def _checks(found: Found) -> Iterator[str]:
    for check in found.checks:
        sign, kind = ("✓", "good") if check.ok else ("✗", "bad")
        yield (
            f'<tr class="{kind}"><td>{sign}</td><td>{check.run}</td><td>{check.name}</td>'
            f"<td>{check.found:,}</td><td>{check.wanted:,}</td>"
            f"<td>{html.escape(check.meaning)}</td></tr>"
        )


def _rows(found: Found) -> Iterator[str]:
    for row in sorted(found.rows, key=lambda r: (r["at_ms"], r["vehicle"]))[-_ROWS_SHOWN:]:
        cells = (
            row["date"], f"{row['at']:%H:%M:%S}", row["vehicle"], row["event"], row["zone"],
            f"{row['lat']:.5f}", f"{row['lon']:.5f}", f"{row['partition']} / {row['offset']}",
        )  # fmt: skip
        yield "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells) + "</tr>"
