"""What can be asked of a run from outside, and the answers; by socket, by HTTP and by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from weft.errors import ConfigError
from weft.observe.overview import overview
from weft.observe.sentences import record_sentence
from weft.observe.why import why

KEY_BYTES_MAX = 16 * 2**10
#: partitions of a topic whose frontier is looked up, where it is not among the worst anyway
LOOKED_UP_MAX = 20


class Source(Protocol):
    """A run, as seen from outside. Every method may be called from any thread, at any time."""

    def snapshot(self) -> dict[str, Any]:
        """See `App.snapshot`."""

    def measures(self) -> dict[str, Any]:
        """A snapshot for metrics: it may be without blockers."""

    def report(self) -> dict[str, Any]:
        """A snapshot for the other members: with the offset maps, which they draw."""

    def members(self) -> list[dict[str, Any]]:
        """The snapshots of all members that are known of; `silent_s` where one is not heard of."""

    def sums(self) -> list[dict[str, Any]]:
        """The same for sums over time: our own may be without blockers, which costs less."""

    def picture(self, topic: str, partition: int) -> dict[str, Any] | None:
        """One partition's offset map and worst records; None where it is not."""

    def find(self, topic: str, partition: int, offset: int) -> dict[str, Any]:
        """Where one record is."""

    def find_key(self, key: bytes, topic: str | None) -> list[dict[str, Any]]:
        """Where the first records of one key are."""

    def live(self) -> tuple[bool, str]:
        """Whether it works at all, and if not why; the broker may be away."""

    def ready(self) -> tuple[bool, str]:
        """Whether it handles records, and if not why."""


#: what is asked -> fields that its answer has
ANSWERS = {"snapshot": ("state", "partitions", "handlers"), "why": ("sentences", "found")}


def is_answer(what: str, told: object) -> bool:
    """Whether it can be a run's answer; somebody else may listen there."""
    return isinstance(told, dict) and all(name in told for name in ANSWERS[what])


@dataclass(frozen=True, slots=True)
class Question:
    """What `weft why` asks about; nothing in particular when all is None."""

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    key: str | None = None


def question(where: str | None, key: str | None) -> Question:
    """`TOPIC[:PARTITION[:OFFSET]]` and a key; ConfigError for what is neither."""
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
    """A question as JSON or a query has it; ConfigError for what is none."""
    where = given.get("where")
    key = given.get("key")
    if not isinstance(where, str | None) or not isinstance(key, str | None):
        raise ConfigError("where and key are text")
    return question(where, key)


def answer(source: Source, asked: Question) -> dict[str, Any]:
    """`{"sentences": [{"text", "next", "about"}], "found": [rows of records]}`."""
    found = _found(source, asked)
    shot = _shot(source)
    member = shot.get("app", {}).get("member", "")
    if found is not None:
        told = [record_sentence(row, str(row.get("member", member))) for row in found]
        return {"sentences": [one.row() for one in told], "found": found}
    if asked.topic is not None:
        _add_frontiers(source, shot, asked)
    told = why(shot, asked.topic, asked.partition)
    return {"sentences": [one.row() for one in told], "found": []}


def _shot(source: Source) -> dict[str, Any]:
    """What the member says; of a group that is known, what all of them say."""
    shots = source.members()
    if len(shots) < 2:
        return shots[0] if shots else source.snapshot()
    states = sorted({str(shot["state"]) for shot in shots})
    return {**overview(shots), "state": ", ".join(states)}


def _found(source: Source, asked: Question) -> list[dict[str, Any]] | None:
    """Records that were asked for by offset or key; None where none were."""
    if asked.key is not None:
        rows = source.find_key(asked.key.encode(errors="surrogateescape"), asked.topic)
        return [row for row in rows if asked.partition in (None, row["partition"])]
    if asked.topic is None or asked.partition is None or asked.offset is None:
        return None
    return [source.find(asked.topic, asked.partition, asked.offset)]


def _add_frontiers(source: Source, shot: dict[str, Any], asked: Question) -> None:
    """The record at the frontier of each partition asked about, also where it is no bad one."""
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
        if "attempts" in row:  # else it has moved on since
            part["blocker"] = {**row, "done_beyond": part["done_beyond"]}
