"""Spans of worker processes, made by the SDK that the user has set up in them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

Span = dict[str, Any]
LIMIT_S = 120
#: not imported here: it would set up this process, too
APP = Path(__file__).with_name("traced.py")
TRACE = "0af7651916cd43dd8448eb211c80319c"


def lived(kind: str, folder: Path) -> tuple[list[dict[str, str]], list[Span]]:
    """Headers of what was made, and the spans in their order, of one app in its own process."""
    spans = folder / "spans"
    spans.touch()
    command = [sys.executable, str(APP), str(spans), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in spans.read_text().splitlines()]
    return json.loads(done.stdout), sorted(told, key=lambda span: span["start_time"])


def links(span: Span) -> dict[str, str]:
    """Whom it is linked to."""
    return {one["attributes"]["perkey.link"]: one["context"]["span_id"] for one in span["links"]}


@pytest.mark.parametrize("kind", ["called", "awaited"])
def test_a_worker_makes_a_span_of_each_attempt(kind: str, tmp_path: Path) -> None:
    """In the producer's trace, linked to the attempt before, around the user's own spans.

    The attempts may be in two workers; the output carries the last one's span on.
    """
    (made,), spans = lived(kind, tmp_path)
    outer = [span for span in spans if span["name"] == "process t"]
    inner = [span for span in spans if span["name"] == "inner"]
    assert [span["attributes"]["perkey.attempt"] for span in outer] == [1, 2, 3]
    assert {span["context"]["trace_id"] for span in spans} == {f"0x{TRACE}"}
    ids = [span["context"]["span_id"] for span in outer]
    assert [links(span).get("attempt before") for span in outer] == [None, *ids[:2]]
    assert [links(span)["producer"] for span in outer] == ["0xb7ad6b7169203331"] * 3
    assert [span["parent_id"] for span in inner] == ids
    assert [one["pid"] for one in inner] == [one["pid"] for one in outer]
    assert made["traceparent"] == f"00-{TRACE}-{ids[2][2:]}-01"


def test_a_batch_in_a_worker_is_a_span(tmp_path: Path) -> None:
    """With links to both producers; its records' own attempts are linked to it."""
    _, (whole, *alone) = lived("together", tmp_path)
    assert whole["attributes"]["messaging.batch.message_count"] == 2
    assert [one["attributes"]["perkey.link"] for one in whole["links"]] == ["producer"] * 2
    assert [links(span)["attempt before"] for span in alone] == [whole["context"]["span_id"]] * 2
    assert [span["attributes"]["messaging.batch.message_count"] for span in alone] == [1, 1]
