"""What the numbers were measured on: hardware and versions, nothing that names a host."""

import datetime as dt
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import confluent_kafka

from benchmarks import javapc
from benchmarks.loops import loop_name


def facts() -> dict[str, Any]:
    """JSON-able facts of this machine and of the versions in use."""
    return {
        "type": "machine",
        "date_utc": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_1m": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "event_loop": loop_name(),
        "confluent_kafka": confluent_kafka.version(),
        "librdkafka": confluent_kafka.libversion()[0],
        "java": _output("java", "-version").partition("\n")[0],
        "java_parallel_consumer": javapc.VERSION,
        "perkey_commit": _output("git", "rev-parse", "--short", "HEAD"),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _output(*command: str) -> str:
    here = Path(__file__).parent
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=True, cwd=here
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return (done.stdout + done.stderr).strip()
