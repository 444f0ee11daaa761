"""The data of the web page: refreshed once per second while it is open, with a history."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from perkey import guard
from perkey.account.snapshot import NOT_LISTED
from perkey.errors import ConfigError
from perkey.observe.overview import ORDERS, overview, page_of
from perkey.observe.why import why

WATCHED_EVERY_S = 1.0
ALONE_EVERY_S = 5.0
HISTORY_MAX = 600
#: most handlers whose latency is recorded over time
HANDLERS_MAX = 20
WATCHERS_MAX = 20
PAGE_MAX = 200
TEXT_MAX = 300


#: the dead-letter topics of the handlers of these topics
Letters = Callable[[Iterable[str]], list[str]]


class Looks(Protocol):
    """What the page requests from a run in addition to its snapshots. Thread-safe."""

    def picture(self, topic: str, partition: int) -> dict[str, Any] | None:
        """One partition's offset map and worst records; None if it is unknown."""

    def find(self, topic: str, partition: int, offset: int) -> dict[str, Any]:
        """Where one record is."""

    def find_key(self, key: bytes, topic: str | None) -> list[dict[str, Any]]:
        """Where the first records of one key are."""


def view_of(given: Mapping[str, str]) -> dict[str, Any]:
    """The view that a page requests, from its query; ConfigError if it is invalid."""
    if any(len(value) > TEXT_MAX for value in given.values()):
        raise ConfigError(f"a parameter of the page has at most {TEXT_MAX} characters")
    view: dict[str, Any] = {name: given.get(name, "") for name in ("topic", "key", "text")}
    view["order"] = given.get("order", "remaining")
    if view["order"] not in ORDERS:
        raise ConfigError(f"order is one of {', '.join(ORDERS)}")
    view["list"] = given.get("list", "")
    if view["list"] not in ("", *NOT_LISTED):
        raise ConfigError(f"list is one of {', '.join(NOT_LISTED)}")
    for name in ("partition", "offset", "start", "count"):
        text = given.get(name)
        if text is not None and not (text.isascii() and text.isdecimal() and len(text) < 20):
            raise ConfigError(f"{name} is a whole number from 0")
        view[name] = None if text is None else int(text)
    if view["count"] is not None and not 1 <= view["count"] <= PAGE_MAX:
        raise ConfigError(f"count is 1 to {PAGE_MAX}")
    return view


class Feed:
    """Takes snapshots of the members on a separate thread until it is closed."""

    def __init__(
        self,
        shots: Callable[[], Sequence[Mapping[str, Any]]],
        looks: Looks,
        sums: Callable[[], Sequence[Mapping[str, Any]]] | None = None,
        *,
        control: bool = False,
        letters: Letters | None = None,
        reach: Mapping[str, Any] | None = None,
    ) -> None:
        """`sums` replaces `shots` while no page is open: it may lack blockers.

        `control`: the page has buttons that pause and resume. `letters`: the dead-letter topics
        that it lists. `reach`: the options of the commands that it shows.
        """
        self._control, self._letters, self._reach = control, letters, dict(reach or {})
        self._shots, self._looks, self._sums = shots, looks, sums or shots
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._watchers = 0
        self._closed = False
        #: number of snapshots taken
        self.number = 0
        self._overview: dict[str, Any] = overview([])
        self._history: deque[dict[str, Any]] = deque(maxlen=HISTORY_MAX)
        self._thread = guard.thread("perkey-page", self._run)
        self._thread.start()

    def _run(self) -> None:
        turns = guard.Turns("perkey-page")
        while not self._closed:
            with turns.turn():
                if self._watchers:
                    self.look()
                else:
                    self.look_alone()
            self._wake.wait(WATCHED_EVERY_S if self._watchers else ALONE_EVERY_S)
            self._wake.clear()

    def look(self) -> None:
        """Take one snapshot for the open pages."""
        shots = self._shots()
        seen = overview(shots)
        states = ", ".join(sorted({str(shot["state"]) for shot in shots}))
        seen["sentences"] = [one.row() for one in why({**seen, "state": states})]
        if self._letters is not None:
            seen["letters"] = self._letters({row["topic"] for row in seen["partitions"]})
        with self._lock:
            self._overview = seen
            self._history.append(_sample(seen))
            self.number += 1

    def look_alone(self) -> None:
        """No page is open: only update the history."""
        sample = _sample(overview(self._sums()))
        with self._lock:
            self._history.append(sample)

    def enter(self) -> bool:
        """Count one more open page; False if there are too many already."""
        with self._lock:
            if self._closed or self._watchers >= WATCHERS_MAX:
                return False
            self._watchers += 1
        self._wake.set()
        return True

    def leave(self) -> None:
        """Count one open page less."""
        with self._lock:
            self._watchers -= 1

    @property
    def closed(self) -> bool:
        """Whether no more data will come."""
        return self._closed

    def history(self) -> list[dict[str, Any]]:
        """The samples so far, the oldest first."""
        with self._lock:
            return list(self._history)

    def event(self, view: Mapping[str, Any]) -> dict[str, Any]:
        """The data for one open page."""
        with self._lock:
            seen, sample = self._overview, self._history[-1] if self._history else None
        listed = page_of(
            seen["partitions"],
            order=view["order"],
            text=view["text"],
            start=view["start"] or 0,
            count=view["count"] or 50,
        )
        shown = {**seen, "partitions": listed, "sample": sample, "now": round(time.time(), 3)}
        for name in NOT_LISTED:  # up to 50 rows, which most pages do not show
            if name != view["list"]:
                del shown[name]
        if self._control:
            shown["control"] = True
        if self._reach:
            shown["reach"] = self._reach
        if view["key"]:
            key = view["key"].encode(errors="surrogateescape")
            return {**shown, "found": self._looks.find_key(key, view["topic"] or None)}
        if not view["topic"] or view["partition"] is None:
            return shown
        where = (view["topic"], view["partition"])
        if view["offset"] is not None:
            shown["found"] = [self._looks.find(*where, view["offset"])]
        return {**shown, "picture": self._looks.picture(*where)}

    def close(self) -> None:
        """Stop taking snapshots."""
        self._closed = True
        self._wake.set()
        self._thread.join(5.0)


def _sample(seen: Mapping[str, Any]) -> dict[str, Any]:
    sums = seen["totals"]
    latency = {row["name"]: row["latency_ms"].get("p99") for row in seen["handlers"][:HANDLERS_MAX]}
    names = ("remaining", "lag", "rate_per_s", "failures")
    return {
        "at": round(time.time(), 1),
        **{name: sums[name] for name in names},
        "p99_ms": latency,
    }
