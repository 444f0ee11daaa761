"""A source for the whole group: this member's state now, the others' last reports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from perkey.kafka.ports import Word
from perkey.observe.asking import Source
from perkey.observe.reports import GroupReports, key_of


class Words(Protocol):
    """The last report of each member."""

    def last(self) -> Mapping[bytes, Word]:
        """Packed reports by key."""

    def now(self) -> float:
        """The time of the clock that stamped the reports."""


class GroupSource:
    """A source that includes the other members of the group."""

    def __init__(
        self, own: Source, words: Words, group: str, refused: Callable[[str], None]
    ) -> None:
        """`refused` gets one line for each invalid report."""
        self._own, self._words = own, words
        self.snapshot, self.measures, self.report = own.snapshot, own.measures, own.report
        self.live, self.ready = own.live, own.ready
        self.control, self.commands = own.control, own.commands
        self._reports, self._lock = GroupReports(group, refused), threading.Lock()

    def members(self) -> list[dict[str, Any]]:
        """This member first, then the others; silent ones have `silent_s`."""
        return self._with_others(self._own.members())

    def sums(self) -> list[dict[str, Any]]:
        """The same at lower cost: this member without its blocking records."""
        return self._with_others(self._own.sums())

    def _with_others(self, own: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [*own, *self._others({str(shot["app"]["member"]) for shot in own})]

    def _others(self, ours: set[str]) -> list[dict[str, Any]]:
        with self._lock:
            shots = self._reports.shots(self._words.last(), self._words.now())
        return [shot for shot in shots if shot["app"]["member"] not in ours]

    def picture(self, topic: str, partition: int) -> dict[str, Any] | None:
        """A partition's offset map: from this member, or from another member's report."""
        own = self._own.picture(topic, partition)
        if own is not None:
            return own
        for shot, part in self._reported(topic, partition):
            rows = [row for row in shot["blockers"] if _at(row, topic, partition)]
            drawn = [one for one in shot.get("maps", ()) if _at(one, topic, partition)]
            return {
                "from": part["frontier"],
                "to": part["frontier"],
                "per_cell": 1,
                "cells": "",  # of a map that is empty, or one of too many
                **(drawn[0] if drawn else {}),
                "partition": part,
                "records": rows,
                "reported": {
                    "member": shot["app"]["member"],
                    "at": shot["at"],
                    "silent_s": shot["silent_s"],
                },
            }
        return None

    def _reported(
        self, topic: str, partition: int
    ) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """The reports with this partition, the latest first."""
        shots = self._others({str(shot["app"]["member"]) for shot in self._own.sums()})
        for shot in sorted(shots, key=lambda one: -float(one["at"])):
            for part in shot["partitions"]:
                if _at(part, topic, partition):
                    yield shot, part

    def find(self, topic: str, partition: int, offset: int) -> dict[str, Any]:
        """The place of one record; in another member's partition only what its report contains."""
        found = self._own.find(topic, partition, offset)
        if found["place"] != "elsewhere":
            return found
        for shot, part in self._reported(topic, partition):
            member = shot["app"]["member"]
            for row in _records(shot):
                if _at(row, topic, partition) and row["offset"] == offset:
                    return {**row, "member": member}
            place = "done" if offset < (part["frontier"] or 0) else "elsewhere"
            place = "not_there" if part["end"] is not None and offset >= part["end"] else place
            return {**found, "place": place, "end": part["end"], "member": member}
        return found

    def find_key(self, key: bytes, topic: str | None) -> list[dict[str, Any]]:
        """This member's records of the key, and other members' blocking ones."""
        text = key.decode(errors="backslashreplace")
        own = self._own.sums()
        others = self._others({str(shot["app"]["member"]) for shot in own})
        return self._own.find_key(key, topic) + [
            {**row, "member": shot["app"]["member"]}
            for shot in others
            for row in _records(shot)
            if row["key"] == text and topic in (None, row["topic"])
        ]


def _records(shot: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The records that a report names, each once."""
    rows = [*shot["blockers"], *shot["parked"], *shot["on_hold"]]
    return list({(r["topic"], r["partition"], r["offset"]): r for r in reversed(rows)}.values())


def wanted_of(group: str) -> Any:
    """A predicate: whether a key of the reports topic belongs to this group."""
    begins = key_of(group, "").removesuffix(b'""]')
    return lambda key: key.startswith(begins)


def _at(row: Mapping[str, Any], topic: str, partition: int) -> bool:
    return bool(row["topic"] == topic and row["partition"] == partition)
