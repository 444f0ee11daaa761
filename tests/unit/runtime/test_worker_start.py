"""What a worker process loads before it opens: each of them pays for it."""

from __future__ import annotations

import subprocess
import sys

LOADED = "import sys; import perkey.runtime.calls.processes.worker; print(*sys.modules)"


def test_a_worker_of_a_plain_handler_loads_no_engine_and_no_event_loop() -> None:
    """They took half of its start."""
    words = [sys.executable, "-c", LOADED]
    shown = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    unwanted = {"asyncio", "confluent_kafka", "perkey.core.engine", "perkey.runtime.door"}
    assert unwanted & set(shown.stdout.split()) == set()
