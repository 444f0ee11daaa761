"""Run one side of a workload, each in a process of its own, and return its seconds."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import javapc
from benchmarks.bare import BareSpec
from benchmarks.workloads import Workload

_ROOT = Path(__file__).resolve().parent.parent
_JAVA_MAX_POLL_RECORDS = 500
_LIMIT_S = 180
_SLOWEST_FACTOR = 10


class SideError(Exception):
    """A side did not finish; the message is the end of what it said."""


def run_side(side: str, workload: Workload, bootstrap: str, topic: str) -> dict[str, Any]:
    """Run "bare-async", "perkey-threads", "java" …; raises SideError."""
    limit_s = int(_LIMIT_S + _SLOWEST_FACTOR * workload.expected_s)
    name, _, kind = side.partition("-")
    if name == "bare":
        return run_python("benchmarks.bare", asdict(bare_spec(workload, kind)), limit_s)
    if name == "perkey":
        return run_app(app_spec(workload, kind, bootstrap, topic), limit_s)
    return _java(workload, bootstrap, topic, limit_s)


def bare_spec(workload: Workload, kind: str) -> BareSpec:
    """The baseline of the same kind: its lanes limit it as they limit Perkey."""
    topic = workload.topic
    return BareSpec(kind, workload.handler, topic.records, workload.concurrency, workload.lanes)


def app_spec(workload: Workload, kind: str, bootstrap: str, topic: str) -> dict[str, Any]:
    """Fields of an AppSpec for a workload, under a group of its own."""
    return {
        "bootstrap": bootstrap,
        "topic": topic,
        "group": fresh_group(),
        "ordering": workload.ordering,
        "executor": kind,
        "handler": workload.handler,
        "concurrency": workload.concurrency,
        "records": workload.topic.records,
    }


def run_app(spec: dict[str, Any], limit_s: int, source: Path | None = None) -> dict[str, Any]:
    """Run the app that AppSpec's fields describe; raises SideError, also for a repeated record.

    `source`: a `src` of another commit, to be used in the place of this one's.
    """
    answer = run_python("benchmarks.apps", spec, limit_s, source)
    if not answer["complete"] or answer["calls"] != answer["records"]:
        raise SideError(f"{answer['calls']} calls for {answer['records']} records")
    return answer


def fresh_group() -> str:
    """A name that no other run has."""
    return f"bench-{uuid.uuid4().hex[:12]}"


def run_python(
    module: str, spec: dict[str, Any], limit_s: int, source: Path | None = None
) -> dict[str, Any]:
    """Run a module of ours with its spec as JSON; return the JSON it prints; raises SideError."""
    command = [sys.executable, "-m", module, json.dumps(spec)]
    with _process(command, source or _ROOT / "src") as process:
        try:
            stdout, stderr = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise SideError(f"{module}: not finished after {limit_s} s") from None
    lines = stdout.strip().splitlines()
    if process.returncode != 0 or not lines:
        raise SideError(f"{module}: exit {process.returncode}: {stderr.strip()[-1500:]}")
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


@contextmanager
def _process(command: list[str], source: Path) -> Iterator[subprocess.Popen[str]]:
    """A child in a group of its own, killed whole when the block ends before it does."""
    path = os.pathsep.join([str(_ROOT), str(source), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _java(workload: Workload, bootstrap: str, topic: str, limit_s: int) -> dict[str, Any]:
    try:
        return javapc.run(
            "bench",
            limit_s=limit_s,
            bootstrap=bootstrap,
            topic=topic,
            group=fresh_group(),
            ordering=workload.ordering.upper(),
            concurrency=workload.concurrency,
            handler=workload.handler,
            records=workload.topic.records,
            max_poll_records=_JAVA_MAX_POLL_RECORDS,
        )
    except javapc.JavaError as error:
        raise SideError(str(error)) from error
