"""One record hangs, the others are done behind it, kill -9: what is handled again.

    python -m benchmarks stuck [--records 200000] [--only Perkey] [--rates] [--json F] [--picture F]

Each peer of `benchmarks/peers` gets a topic of one partition and handles it until all records but
the hanging one are done, or nothing moves for 15 s. Seven seconds later (longer than any of their
commit intervals) its process is killed with -9 and started again, now with a call that returns. A
record that both runs have finished was handled again.

`--rates` also measures, on four partitions and 1,000 keys: records per second without a wait and
with 10 ms a call, 1,000 calls at a time; and, at 1,000 records per second with keys by Zipf's law,
the latency of the others while 1 % of the calls, of 50 other keys, take 1 s.

A peer that cannot be installed, or does not finish, is listed with its reason.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import topics
from benchmarks.peers import FOLDER, PEERS, Peer, PeerError
from perkey.broker import LocalBroker

HANGS = 100
CONCURRENCY = 1000
#: session.timeout.ms of every peer, so that a killed member's partition is soon assigned again
_SESSION_MS = 6000
_STILL_S, _COMMITTED_S, _LIMIT_S = 15.0, 7.0, 240.0
_SKEW_PER_S, _SKEW_S, _SLOW_SHARE, _SLOW_KEYS, _ZIPF_KEYS = 1000, 15, 0.01, 50, 1000


class EndedError(Exception):
    """The peer's process ended by itself."""


@dataclass
class Row:
    """What one peer did."""

    peer: str
    #: records behind the hanging one that were done before the kill
    done_beyond: int | None = None
    #: of the records done before the kill, those that the second run handled once more
    again: int | None = None
    #: characters of metadata in the group's last commit
    map_chars: int | None = None
    noop_per_s: float | None = None
    wait_per_s: float | None = None
    wait_cpu_us: float | None = None
    p99_ms: float | None = None
    ordered: bool = True
    problems: list[str] = field(default_factory=list)


@contextmanager
def _running(command: Sequence[str], job: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """The peer's process with this job; it and its children are killed with -9 at the end."""
    java = command[-1] == "PcRunner"
    arguments = _java_arguments(job) if java else [json.dumps(job)]
    environment = {**os.environ, "PYTHONPATH": str(FOLDER), "PYTHONDONTWRITEBYTECODE": "1"}
    printed = subprocess.DEVNULL if job["mode"] == "stuck" else subprocess.PIPE
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [*command, *arguments],
            env=environment, start_new_session=True, stdout=printed, stderr=errors,
        )  # fmt: skip
        try:
            yield process
        except EndedError:
            errors.seek(0)
            last = errors.read().decode(errors="replace").strip().splitlines() or ["without a word"]
            raise PeerError(f"it ended with exit code {process.poll()}: {last[-1]}") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _java_arguments(job: dict[str, Any]) -> list[str]:
    options = {
        "bootstrap": job["bootstrap"], "topic": job["topic"], "group": job["group"],
        "ordering": "KEY", "concurrency": job["concurrency"], "session_timeout_ms": _SESSION_MS,
    }  # fmt: skip
    if job["mode"] == "stuck":
        mode, own = "stuck", {"hang": job["hang"], "log": job["log"]}
    else:
        wait_ms = job["wait_s"] * 1000
        mode = "bench"
        own = {"handler": wait_ms or "noop", "records": job["records"], "limit_s": int(_LIMIT_S)}
    return [mode, *(f"{name}={value}" for name, value in {**options, **own}.items())]


def _handled(log: Path) -> array[int]:
    """The offsets of a log, in the order of their calls' ends; a torn last one is left out."""
    offsets = array("Q")
    if log.exists():
        content = log.read_bytes()
        offsets.frombytes(content[: len(content) // 8 * 8])
        offsets.byteswap()
    return offsets


def _until_still(process: subprocess.Popen[bytes], log: Path, enough: int) -> bool:
    """Wait for `enough` records in the log, or until nothing moves; False: it is not over yet."""
    size, since = 0, time.monotonic()
    limit = since + _LIMIT_S
    while time.monotonic() < limit:
        now = log.stat().st_size if log.exists() else 0
        if now != size:
            size, since = now, time.monotonic()
        still_s = time.monotonic() - since
        if size >= enough * 8 or (size and still_s > _STILL_S) or still_s > 4 * _STILL_S:
            return True
        if process.poll() is not None:
            raise EndedError
        time.sleep(0.05)
    return False


def _map_chars(bootstrap: str, group: str, topic: str) -> int:
    """Characters of metadata beside the group's committed offset; 0 without a commit."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    partitions = asked[group].result(30).topic_partitions
    return sum(len(p.metadata or "") for p in partitions if p.topic == topic)


def kill_while_stuck(peer: Peer, bootstrap: str, records: int, row: Row) -> None:
    """Both runs of one peer. Raises PeerError."""
    command = peer.command()
    topic = topics.create(bootstrap, spec := topics.TopicSpec(records, 1000, 1, 100))
    topics.fill(bootstrap, topic, spec, lambda _: None)
    group = f"stuck-{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / name for name in ("first", "second")]
        job = {
            "mode": "stuck", "bootstrap": bootstrap, "topic": topic, "group": group,
            "concurrency": CONCURRENCY,
        }  # fmt: skip
        with _running(command, {**job, "hang": HANGS, "log": str(logs[0])}) as process:
            _until_still(process, logs[0], records - 1)
            time.sleep(_COMMITTED_S)
        first = set(_handled(logs[0]))
        row.map_chars = _map_chars(bootstrap, group, topic)
        with _running(command, {**job, "hang": -1, "log": str(logs[1])}) as process:
            over = _until_still(process, logs[1], records)
        second = set(_handled(logs[1]))
    topics.delete(bootstrap, topic)
    row.done_beyond = sum(offset > HANGS for offset in first)
    row.again = len(first & second)
    if lost := records - len(first | second):
        row.problems.append(
            f"{lost:,} records were handled by neither run"
            if over
            else f"after {_LIMIT_S:.0f} s the second run still had {lost:,} records before it"
        )


def _answer(peer: Peer, job: dict[str, Any]) -> dict[str, Any]:
    """What the peer prints at the end of a job. Raises PeerError."""
    with _running(peer.command(), job) as process:
        return _printed(process, job)


def _printed(process: subprocess.Popen[bytes], job: dict[str, Any]) -> dict[str, Any]:
    """The JSON of its last line. Raises PeerError, EndedError."""
    try:
        out, _ = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise PeerError(f"{job['mode']}: not finished after {_LIMIT_S:.0f} s") from None
    lines = out.strip().splitlines()
    if not lines:
        raise EndedError
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def rates(peer: Peer, bootstrap: str, row: Row) -> None:
    """Records per second without a wait and with 10 ms, and processor time of the latter."""
    for wait_s, records in ((0.0, 300_000), (0.01, 100_000)):
        topic = topics.create(bootstrap, spec := topics.TopicSpec(records, 1000, 4, 100))
        topics.fill(bootstrap, topic, spec, lambda _: None)
        job = _job("rate", bootstrap, topic, records)
        answer = _answer(peer, {**job, "wait_s": wait_s})
        topics.delete(bootstrap, topic)
        per_s = records / answer["seconds"]
        if wait_s:
            row.wait_per_s = per_s
            row.wait_cpu_us = answer["cpu_s"] / records * 1e6 if "cpu_s" in answer else None
        else:
            row.noop_per_s = per_s


def _job(mode: str, bootstrap: str, topic: str, records: int) -> dict[str, Any]:
    return {
        "mode": mode, "bootstrap": bootstrap, "topic": topic, "group": f"g-{uuid.uuid4().hex[:8]}",
        "concurrency": CONCURRENCY, "records": records,
    }  # fmt: skip


def skew(peer: Peer, bootstrap: str, row: Row) -> None:
    """Produce at a steady rate while the peer handles; the 99th percentile of the fast records."""
    if not peer.program:
        return  # the Java runner measures no latency
    records = _SKEW_PER_S * _SKEW_S
    topic = topics.create(bootstrap, topics.TopicSpec(records, _ZIPF_KEYS, 4, 20))
    job = _job("skew", bootstrap, topic, records)
    with _running(peer.command(), job) as process:
        _produce_skewed(bootstrap, topic, records)
        row.p99_ms = _printed(process, job)["p99_ms"]
    topics.delete(bootstrap, topic)


def _produce_skewed(bootstrap: str, topic: str, records: int) -> None:
    dice = random.Random(7)
    weights = [1 / rank for rank in range(1, _ZIPF_KEYS + 1)]
    keys = dice.choices(range(_ZIPF_KEYS), weights, k=records)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, "log_level": 0})
    time.sleep(3)  # the peer joins its group
    start = time.perf_counter()
    for n, key in enumerate(keys):
        slow = dice.random() < _SLOW_SHARE
        name = b"slow-%d" % dice.randrange(_SLOW_KEYS) if slow else b"key-%d" % key
        value = b"%d%s" % (time.time_ns(), b"s" if slow else b"")
        producer.produce(topic, value, name)
        producer.poll(0)
        ahead_s = start + n / _SKEW_PER_S - time.perf_counter()
        if ahead_s > 0:
            time.sleep(ahead_s)
    producer.flush(30)


def table(rows: Sequence[Row], *, with_rates: bool) -> Table:
    """One line a peer."""
    shown = Table("peer", "done beyond", "handled again", "map, characters")
    if with_rates:
        for name in ("no-op /s", "10 ms /s", "10 ms µs CPU", "p99 ms, 1 % at 1 s"):
            shown.add_column(name)
    for row in rows:
        figures: list[float | None] = [row.done_beyond, row.again, row.map_chars]
        if with_rates:
            figures += [row.noop_per_s, row.wait_per_s, row.wait_cpu_us, row.p99_ms]
        name = row.peer if row.ordered else f"{row.peer} (no key order)"
        shown.add_row(name, *("–" if f is None else _figure(f) for f in figures))
    return shown


def _figure(value: float) -> str:
    return f"{value:,.1f}" if not float(value).is_integer() and value < 100 else f"{value:,.0f}"


def picture(rows: Sequence[Row], records: int) -> str:
    """Bars of what was handled again and of what nobody had reached, as SVG for light and dark."""
    measured = [row for row in rows if row.again is not None and row.done_beyond is not None]
    height, left, width = 34, 190, 430
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 {height * len(measured) + 46}"',
        ' role="img" font-family="system-ui, sans-serif" font-size="14" fill="currentColor">',
        f"<title>One record of {records:,} hangs, then kill -9: handled again, not reached</title>",
    ]
    for n, row in enumerate(measured):
        y = n * height + 8
        again = (row.again or 0) / records * width
        waiting = (records - 1 - HANGS - (row.done_beyond or 0)) / records * width
        text = f"{row.again:,} again"
        if waiting > 1:
            text += f", {records - 1 - HANGS - (row.done_beyond or 0):,} waited"
        lines += [
            f'<text x="{left - 10}" y="{y + 16}" text-anchor="end">{row.peer}</text>',
            f'<rect x="{left}" y="{y}" width="{max(again, 1.5):.1f}" height="20" fill="#d1483b"/>',
            f'<rect x="{left + again:.1f}" y="{y}" width="{max(waiting, 0):.1f}" height="20"',
            ' fill="#8a94a3" fill-opacity=".5"/>',
            f'<text x="{left + again + max(waiting, 0) + 8:.1f}" y="{y + 16}">{text}</text>',
        ]
    y = len(measured) * height + 30
    lines.append(
        f'<text x="{left}" y="{y}" fill-opacity=".75">red: handled again after the kill; '
        "grey: not reached while one record hung</text>"
    )
    return "\n".join([*lines, "</svg>", ""])


def _measure(peer: Peer, bootstrap: str, asked: argparse.Namespace, bars: Progress) -> Row:
    row = Row(peer.name, ordered=peer.ordered)
    task = bars.add_task(peer.name, total=None)
    steps: list[tuple[str, Callable[[], None]]] = [
        ("stuck", lambda: kill_while_stuck(peer, bootstrap, asked.records, row))
    ]
    if asked.rates:
        steps += [
            ("rates", lambda: rates(peer, bootstrap, row)),
            ("skew", lambda: skew(peer, bootstrap, row)),
        ]
    for name, step in steps:
        bars.update(task, description=f"{peer.name}: {name}")
        try:
            step()
        except PeerError as error:
            row.problems.append(str(error))
    bars.remove_task(task)
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; exit code 2 for a peer that does not exist."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks stuck",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--only", action="append", default=[], help="a peer's name")
    parser.add_argument("--rates", action="store_true", help="also rates and latency")
    parser.add_argument("--json", type=Path, help="where to keep the figures")
    parser.add_argument("--picture", type=Path, help="where to draw them, as SVG")
    asked = parser.parse_args(arguments)
    names = [peer.name for peer in PEERS]
    if unknown := set(asked.only) - set(names):
        sys.stderr.write(f"--only {min(unknown)}: no such peer; there are {', '.join(names)}\n")
        return 2
    if asked.records <= 2 * HANGS:
        sys.stderr.write(f"--records {asked.records}: must be above {2 * HANGS}\n")
        return 2
    peers = [peer for peer in PEERS if not asked.only or peer.name in asked.only]
    console = Console() if sys.stdout.isatty() else Console(width=160)
    with LocalBroker() as broker, Progress(console=Console(stderr=True), transient=True) as bars:
        rows = [_measure(peer, broker.bootstrap, asked, bars) for peer in peers]
    console.print(table(rows, with_rates=asked.rates))
    for row in rows:
        for problem in row.problems:
            console.print(f"{row.peer}: {problem}", highlight=False)
    if asked.json:
        asked.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if asked.picture:
        asked.picture.write_text(picture(rows, asked.records))
    return 0
