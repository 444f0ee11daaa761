"""A member that knows its group: itself as it is now, the others as they last reported."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from weft.kafka.ports import Word
from weft.observe.asking import Source
from weft.observe.reports import GroupReports, key_of


class Words(Protocol):
    """The last report of each member."""

    def last(self) -> Mapping[bytes, Word]:
        """By key, packed."""

    def now(self) -> float:
        """The time by the clock that stamped them."""


class GroupSource:
    """A source that knows of other members of its group, too."""

    def __init__(
        self, own: Source, words: Words, group: str, refused: Callable[[str], None]
    ) -> None:
        """`refused` takes a line for each report that is none."""
        self._own, self._words = own, words
        self.snapshot, self.measures, self.report = own.snapshot, own.measures, own.report
        self.live, self.ready = own.live, own.ready
        self._reports, self._lock = GroupReports(group, refused), threading.Lock()

    def members(self) -> list[dict[str, Any]]:
        """Ourselves first, then the others; who is silent has `silent_s`."""
        return self._with_others(self._own.members())

    def sums(self) -> list[dict[str, Any]]:
        """The same, at less cost: ourselves without the records that hold up most."""
        return self._with_others(self._own.sums())

    def _with_others(self, own: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [*own, *self._others({str(shot["app"]["member"]) for shot in own})]

    def _others(self, ours: set[str]) -> list[dict[str, Any]]:
        with self._lock:
            shots = self._reports.shots(self._words.last(), self._words.now())
        return [shot for shot in shots if shot["app"]["member"] not in ours]

    def picture(self, topic: str, partition: int) -> dict[str, Any] | None:
        """Our own partition's offset map; of another member's what it reported."""
        drawn = self._own.picture(topic, partition)
        return drawn if drawn is not None else self._reported_picture(topic, partition)

    def _reported_picture(self, topic: str, partition: int) -> dict[str, Any] | None:
        for shot, part in self._reported(topic, partition):
            rows = [row for row in shot["blockers"] if _at(row, topic, partition)]
            drawn = [one for one in shot.get("maps", ()) if _at(one, topic, partition)]
            return {
                **(drawn[0] if drawn else _no_map(part)),
                "partition": part,
                "records": rows,
                "reported": _reporter(shot),
            }
        return None

    def _reported(
        self, topic: str, partition: int
    ) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """The reports that have this partition, the latest word first."""
        shots = self._others({str(shot["app"]["member"]) for shot in self._own.sums()})
        for shot in sorted(shots, key=lambda one: -float(one["at"])):
            for part in shot["partitions"]:
                if _at(part, topic, partition):
                    yield shot, part

    def find(self, topic: str, partition: int, offset: int) -> dict[str, Any]:
        """Where one record is; of another member's partition as far as its report tells."""
        found = self._own.find(topic, partition, offset)
        if found["place"] != "elsewhere":
            return found
        for shot, part in self._reported(topic, partition):
            member = shot["app"]["member"]
            for row in shot["blockers"]:
                if _at(row, topic, partition) and row["offset"] == offset:
                    return {**row, "member": member}
            place = "done" if offset < (part["frontier"] or 0) else "elsewhere"
            place = "not_there" if part["end"] is not None and offset >= part["end"] else place
            return {**found, "place": place, "end": part["end"], "member": member}
        return found

    def find_key(self, key: bytes, topic: str | None) -> list[dict[str, Any]]:
        """Our own records of this key, and those of others that hold something up."""
        text = key.decode(errors="backslashreplace")
        own = self._own.sums()
        others = self._others({str(shot["app"]["member"]) for shot in own})
        return self._own.find_key(key, topic) + [
            {**row, "member": shot["app"]["member"]}
            for shot in others
            for row in shot["blockers"]
            if row["key"] == text and topic in (None, row["topic"])
        ]


def wanted_of(group: str) -> Any:
    """Whether a key of the topic is one of this group's members."""
    begins = key_of(group, "").removesuffix(b'""]')
    return lambda key: key.startswith(begins)


def _at(row: Mapping[str, Any], topic: str, partition: int) -> bool:
    return bool(row["topic"] == topic and row["partition"] == partition)


def _no_map(part: Mapping[str, Any]) -> dict[str, Any]:
    """Nothing beyond its frontier is done, or its map is one of too many."""
    return {"from": part["frontier"], "to": part["frontier"], "per_cell": 1, "cells": ""}


def _reporter(shot: Mapping[str, Any]) -> dict[str, Any]:
    return {"member": shot["app"]["member"], "at": shot["at"], "silent_s": shot["silent_s"]}
