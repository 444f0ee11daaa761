"""`--listen`: a group's lag for Prometheus and KEDA; dead letters that were not brought back."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from perkey import guard
from perkey.app_options import address
from perkey.errors import PerkeyError
from perkey.kafka.group_lag import PartitionLag
from perkey.observe.serving import STOP_S, listening, need_http, server_of

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily
    from starlette.requests import Request
    from starlette.responses import Response

MEASURED_EVERY_S = 5.0
#: a measurement older than this is ignored
FRESH_S = 60.0
#: an offset that is not done for so long, while later ones are done, is parked or hangs: more
#: members would not help
STANDING_S = 60.0
#: a partition without any change for so long is blocked if others of the group move
BLOCKED_S = 300.0

GAUGES = (
    (
        "perkey_group_remaining_records",
        "Records not done, excluding those done beyond the frontier",
        "remaining",
    ),
    ("perkey_group_log_end_offset", "One past the last record of the log", "end"),
    ("perkey_group_committed_offset", "Offset that the group has committed", "committed"),
    ("perkey_group_done_beyond_records", "Records done past the committed offset", "done_beyond"),
    ("perkey_group_oldest_age_seconds", "Age of the oldest record not done", "oldest_age_s"),
    ("perkey_group_map_characters", "Size of the offset map in the commit", "map_chars"),
    ("perkey_group_parked_records", "Records that the commit remembers as parked", "parked"),
    ("perkey_group_held_records", "Records that the commit remembers as held", "held"),
)
UP = ("perkey_group_up", "1 while the group could be measured lately")
LETTERS_UP = ("perkey_dead_letters_up", "1 while the dead-letter topic could be read lately")
NOT_BACK = ("perkey_dead_letters_not_back", "Dead letters not brought back, by type of error")
PROBLEMS = ("perkey_group_problem_partitions", "Partitions with a problem; perkey lag names them")


class Board(ABC):
    """The last measurement, repeated every few seconds."""

    #: what is measured, as a label and in JSON
    label = "group"
    #: the metric that is 1 while the measurement is recent
    up = UP

    def __init__(self, measure: Callable[[], Any], name: str, every_s: float) -> None:
        self._measure = measure
        self.name = name
        self._every_s = every_s
        self._at: float | None = None
        self._problem = "not measured yet"
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start measuring."""
        self._thread = guard.thread(f"perkey-{self.label}", self._run)
        self._thread.start()

    def close(self) -> None:
        """Stop measuring; a measurement in progress has a few seconds."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(STOP_S)

    def _run(self) -> None:
        turns = guard.Turns(f"perkey-{self.label}")
        while not self._over.is_set():
            with turns.turn():
                self.look()
            self._over.wait(self._every_s)

    def look(self) -> None:
        """Measure once; an error is kept as the problem."""
        try:
            found = self._measure()
        except PerkeyError as error:
            self._problem = str(error)
            return
        now = time.monotonic()
        self._take(found, now)
        self._at, self._problem = now, ""

    @abstractmethod
    def _take(self, found: Any, now: float) -> None:
        """Store a measurement."""

    def problem(self) -> str:
        """Why there is no measurement; empty if there is one."""
        if self._at is None or time.monotonic() - self._at > FRESH_S:
            return self._problem or "the last measurement is too old"
        return ""

    @abstractmethod
    def answers(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """Its paths besides /metrics."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """For prometheus-client: every gauge, with bounded labels."""
        from prometheus_client.core import GaugeMetricFamily

        up = GaugeMetricFamily(*self.up, labels=[self.label])
        up.add_metric([self.name], 0 if self.problem() else 1)
        yield up
        if not self.problem():
            yield from self._gauges()

    @abstractmethod
    def _gauges(self) -> Iterator[GaugeMetricFamily]:
        """The gauges of the last measurement."""


class LagBoard(Board):
    """The lag of a group."""

    def __init__(
        self, measure: Callable[[], Sequence[PartitionLag]], group: str, every_s: float
    ) -> None:
        super().__init__(measure, group, every_s)
        self._rows: Sequence[PartitionLag] = ()
        #: (topic, partition) -> its current frontier, and since when it has not moved
        self._unmoved: dict[tuple[str, int], tuple[int, float]] = {}
        #: the same key -> what is committed, and since when nothing of it has changed
        self._still: dict[tuple[str, int], tuple[tuple[Any, ...], float]] = {}
        #: when any partition of the group last moved
        self._moved_at = float("-inf")

    def _take(self, found: Sequence[PartitionLag], now: float) -> None:
        before, self._unmoved = self._unmoved, {}
        still, self._still = self._still, {}
        for row in found:
            state, known = (row.committed, row.done_beyond, row.holes), (row.topic, row.partition)
            last, since = still.get(known, (state, now))
            self._still[known] = (state, since if last == state else now)
            self._moved_at = now if last != state else self._moved_at
            if row.oldest_not_done is not None:
                where = (row.topic, row.partition)
                frontier, since = before.get(where, (-1, now))
                same = frontier == row.oldest_not_done
                self._unmoved[where] = (row.oldest_not_done, since if same else now)
        self._rows = found

    def answers(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """What `perkey lag --json` prints, and what a scaler reads."""
        return {"/lag": self.lag, "/scale": self.scale}

    def lag(self) -> dict[str, Any]:
        """The JSON of `perkey lag`."""
        remaining = sum(row.remaining or 0 for row in self._rows)
        rows = [row.row() for row in self._rows]
        return {"group": self.name, "remaining": remaining, "partitions": rows}

    def scale(self) -> dict[str, Any]:
        """The records that more members could process: without those that cannot start."""
        now = time.monotonic()
        standing = sum(self._standing(row, now) for row in self._rows)
        remaining = sum(row.remaining or 0 for row in self._rows)
        return {"group": self.name, "value": remaining - standing, "standing": standing}

    def _standing(self, row: PartitionLag, now: float) -> int:
        """Records that cannot start, or that have been in front of finished ones for a while.

        Nothing starts behind a full map. Nor does anything in a partition where nothing has changed
        for minutes while the group works elsewhere: one record blocks that partition.
        """
        _, since = self._unmoved.get((row.topic, row.partition), (-1, now))
        _, still_since = self._still.get((row.topic, row.partition), ((), now))
        if row.remaining is None:
            return 0
        if now - still_since >= BLOCKED_S and now - self._moved_at < BLOCKED_S:
            return row.remaining
        if not row.done_beyond or now - since < STANDING_S:
            return 0
        return row.remaining if row.full else min(row.remaining, row.holes)

    def _gauges(self) -> Iterator[GaugeMetricFamily]:
        from prometheus_client.core import GaugeMetricFamily

        problems = GaugeMetricFamily(*PROBLEMS, labels=["group"])
        problems.add_metric([self.name], sum(row.problem is not None for row in self._rows))
        yield problems
        for name, text, field in GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=["group", "topic", "partition"])
            for row in self._rows:
                if (value := getattr(row, field)) is not None:
                    gauge.add_metric([self.name, row.topic, str(row.partition)], value)
            yield gauge


class LettersBoard(Board):
    """The letters of a dead-letter topic that were not brought back."""

    label, up = "topic", LETTERS_UP

    def __init__(self, measure: Callable[[], dict[str, int]], topic: str, every_s: float) -> None:
        super().__init__(measure, topic, every_s)
        self._counts: dict[str, int] = {}

    def _take(self, found: dict[str, int], now: float) -> None:
        self._counts = found

    def answers(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """The counts as JSON."""
        return {"/letters": lambda: {"topic": self.name, "not_back": self._counts}}

    def _gauges(self) -> Iterator[GaugeMetricFamily]:
        from prometheus_client.core import GaugeMetricFamily

        gauge = GaugeMetricFamily(*NOT_BACK, labels=["topic", "type"])
        for kind, count in self._counts.items():
            gauge.add_metric([self.name, kind], count)
        yield gauge


def app_of(board: Board) -> Any:
    """The ASGI app: the board's paths and /metrics, GET only."""
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    registry = CollectorRegistry()
    registry.register(board)

    def state(what: Callable[[], dict[str, Any]]) -> Callable[[Request], Response]:
        def answer(_: Request) -> Response:
            if problem := board.problem():
                return JSONResponse({board.label: board.name, "error": problem}, 503)
            return JSONResponse(what())

        return answer

    def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    routes = [Route(path, state(what)) for path, what in board.answers().items()]
    return Starlette(routes=[*routes, Route("/metrics", metrics)])


def serve(board: Board, listen: str, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `on_ready` gets the address."""
    need_http("--listen")
    listener = listening("--listen", *address("--listen", listen))
    board.start()
    host, port = listener.getsockname()[:2]
    paths = ", ".join(board.answers())
    on_ready(f"{paths} and /metrics of {board.label} {board.name} on {host}:{port}")
    try:
        server_of(app_of(board)).run(sockets=[listener])
    finally:
        board.close()
        listener.close()
