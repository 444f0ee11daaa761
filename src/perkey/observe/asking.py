"""Queries to a run and their answers, by socket and HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from perkey.errors import ConfigError
from perkey.observe.orders import Answer, Order, order_of
from perkey.observe.overview import overview
from perkey.observe.sentences import record_sentence
from perkey.observe.why import why

KEY_BYTES_MAX = 16 * 2**10
#: how many frontiers are looked up besides the worst records
LOOKED_UP_MAX = 20


class Source(Protocol):
    """A run as queried from outside. Every method may be called from any thread at any time."""

    def snapshot(self) -> dict[str, Any]:
        """See `App.snapshot`."""

    def measures(self) -> dict[str, Any]:
        """A snapshot for metrics, possibly without blockers."""

    def report(self) -> dict[str, Any]:
        """A snapshot for the other members, with offset maps."""

    def members(self) -> list[dict[str, Any]]:
        """The snapshots of all known members; silent ones have `silent_s`."""

    def sums(self) -> list[dict[str, Any]]:
        """The same for sums over time; this member's may lack blockers, which is cheaper."""

    def picture(self, topic: str, partition: int) -> dict[str, Any] | None:
        """One partition's offset map and worst records; None if it is unknown."""

    def find(self, topic: str, partition: int, offset: int) -> dict[str, Any]:
        """The place of one record."""

    def find_key(self, key: bytes, topic: str | None) -> list[dict[str, Any]]:
        """The places of the first records of one key."""

    def control(self, order: Order) -> list[Answer]:
        """Obey a command; returns the answer of each member."""

    def commands(self) -> list[dict[str, Any]]:
        """For each member the commands in force, and the last commands with their answers."""

    def live(self) -> tuple[bool, str]:
        """Liveness and the reason if it is false; an unavailable broker does not count."""

    def ready(self) -> tuple[bool, str]:
        """Readiness and the reason if it is false."""


#: query -> required fields of its answer
ANSWERS = {
    "snapshot": ("state", "partitions", "handlers"),
    "why": ("sentences", "found"),
    "control": ("group", "answers", "members"),
    "commands": ("group", "members"),
}


def is_answer(what: str, found: object) -> bool:
    """Whether this can be a run's answer; another program may listen there."""
    return isinstance(found, dict) and all(name in found for name in ANSWERS[what])


@dataclass(frozen=True, slots=True)
class Question:
    """What `perkey why` asks about; everything if all fields are None."""

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    key: str | None = None


def question(where: str | None, key: str | None) -> Question:
    """Parse `TOPIC[:PARTITION[:OFFSET]]` and a key; raises ConfigError."""
    if key is not None and len(key.encode(errors="replace")) > KEY_BYTES_MAX:
        raise ConfigError(f"--key: at most {KEY_BYTES_MAX:,} bytes")
    if where is None:
        return Question(key=key)
    topic, *numbers = where.split(":")
    if not topic or len(numbers) > 2 or not all(one.isdecimal() for one in numbers):
        raise ConfigError(f"{where!r:.80}: write TOPIC, TOPIC:PARTITION or TOPIC:PARTITION:OFFSET")
    partition, offset = (*map(int, numbers), None, None)[:2]
    return Question(topic, partition, offset, key)


def question_of(given: Mapping[str, Any]) -> Question:
    """Parse a question from JSON or a query string; raises ConfigError."""
    where = given.get("where")
    key = given.get("key")
    if not isinstance(where, str | None) or not isinstance(key, str | None):
        raise ConfigError("where and key must be text")
    return question(where, key)


def answer(source: Source, asked: Question) -> dict[str, Any]:
    """`{"sentences": [{"text", "next", "about"}], "found": [records], "group", "member"}`."""
    # Records requested by offset or key; None if none were requested
    if asked.key is not None:
        rows = source.find_key(asked.key.encode(errors="surrogateescape"), asked.topic)
        found = [row for row in rows if asked.partition in (None, row["partition"])]
    elif asked.topic is None or asked.partition is None or asked.offset is None:
        found = None
    else:
        found = [source.find(asked.topic, asked.partition, asked.offset)]
    # The member's snapshot, or the overview of its group if that is known
    shots = source.members()
    if len(shots) < 2:
        shot = shots[0] if shots else source.snapshot()
    else:
        states = sorted({str(shot["state"]) for shot in shots})
        shot = {**overview(shots), "state": ", ".join(states)}
    app = shot.get("app", {})
    member, about = app.get("member", ""), {name: app.get(name) for name in ("group", "member")}
    if found is not None and not shot["partitions"] and _starts(shot):
        return {"sentences": [one.row() for one in why(shot)], "found": [], **about}
    if found is not None:
        sentences = [record_sentence(row, str(row.get("member", member))) for row in found]
        return {"sentences": [one.row() for one in sentences], "found": found, **about}
    if asked.topic is not None:
        # Add the record at the frontier of each requested partition, also if it is healthy
        known = {(row["topic"], row["partition"]) for row in shot["blockers"] if row["at_frontier"]}
        looked_up = 0
        for part in shot["partitions"]:
            where = (part["topic"], part["partition"])
            if asked.topic != where[0] or asked.partition not in (None, where[1]) or where in known:
                continue
            if not part["remaining"] or looked_up >= LOOKED_UP_MAX:
                continue
            looked_up += 1
            row = source.find(*where, part["frontier"])
            if "attempts" in row:  # otherwise the frontier has moved since
                part["blocker"] = {**row, "done_beyond": part["done_beyond"]}
    sentences = why(shot, asked.topic, asked.partition)
    return {"sentences": [one.row() for one in sentences], "found": [], **about}


def _starts(shot: Mapping[str, Any]) -> bool:
    """Whether its start waits: no record is here, which proves nothing about any."""
    return any(halt["cause"] == "starting" for halt in shot.get("halts", ()))


def obeyed(source: Source, given: Mapping[str, Any]) -> dict[str, Any]:
    """Obey a command; returns the answers, and the members of its group as far as they are known.

    Raises ConfigError for an invalid command.
    """
    order = order_of(given)
    shots = source.members()
    known = sorted(str(one["app"]["member"]) for one in shots if not one.get("silent_s"))
    group = shots[0].get("app", {}).get("group", "") if shots else ""
    answers = [one.row() for one in source.control(order)]
    return {"group": group, "answers": answers, "members": known}


def commands(source: Source) -> dict[str, Any]:
    """The commands in force in each member, and the last ones with their answers."""
    shots = source.members()
    group = shots[0].get("app", {}).get("group", "") if shots else ""
    return {"group": group, "members": source.commands()}
