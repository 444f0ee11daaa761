"""What must hold in every cell of the matrix, judged from what was seen outside of Perkey.

- nothing acknowledged is lost: each record of the topic has its effect;
- a record is begun again, and its effect is there twice, only where its way of delivery allows it;
- the records of a key are begun, and have their effects, in order;
- the run ends or goes on as the fault's line in the contract says;
- and what happened is said, in the reason of the run or in the log.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.support.handler_log import Entry
from tests.support.matrix.ways import CONCURRENCY, Way
from tests.support.verdict import FOREVER, Excuse, Verdict, judge

import perkey

Name = tuple[int, int]  # incarnation of the topic, number of the record
#: how long before a fault what was done may not have been committed: the interval, and its way
UNCOMMITTED_S = 2.5
SHOWN = 8


@dataclass
class Lived:
    """What one cell lived through."""

    way: Way
    #: acknowledged by the broker -> key
    produced: dict[Name, str]
    #: of these: those that may have no effect (deleted by the fault)
    spared: set[Name] = field(default_factory=set)
    #: of these: those that may be handled once more than their way allows, and out of order
    doubled: set[Name] = field(default_factory=set)
    entries: list[Entry] = field(default_factory=list)
    #: what is in the output topic for a read_committed reader, or in the database, in its order
    effects: list[Name] = field(default_factory=list)
    struck_at: float = 0.0
    #: how many records had been completed when it struck
    done_before: int = 0
    #: words of the reason with which the fault ends the run; "" when it goes on
    ends: str = ""
    #: when the struck run was over, and how
    over_at: float | None = None
    struck: perkey.RunReport | None = None
    last: perkey.RunReport | None = None
    #: words that must stand in the log
    says: str = ""
    log: str = ""

    @property
    def wanted(self) -> set[Name]:
        """What must have its effect."""
        return self.produced.keys() - self.spared


def problems(lived: Lived) -> list[str]:
    """Every promise that was broken, a line each."""
    return [
        *_vacuous(lived),
        *_lost(lived),
        *_repeated(lived),
        *_out_of_order(lived),
        *_ended(lived),
        *_unsaid(lived),
    ]


def _vacuous(lived: Lived) -> list[str]:
    if not 0 < lived.done_before < len(lived.produced):
        return [f"unknown: {lived.done_before} records were done when the fault struck"]
    return []


def _lost(lived: Lived) -> list[str]:
    missing = lived.wanted - set(lived.effects)
    found = []
    if lived.way.starts_once and lived.ends:
        # Marked before the end, it is never begun again: at most one a slot, and what had begun.
        begun = {entry.record for entry in lived.entries if entry.kind == "S"}
        missing, unbegun = missing - begun, missing - begun
        missing = unbegun if len(unbegun) > CONCURRENCY else set()
    if missing:
        found.append(_line("lost", missing))
    if invented := set(lived.effects) - lived.produced.keys():
        found.append(_line("effects of nothing", invented))
    return found


def _repeated(lived: Lived) -> list[str]:
    way, found = lived.way, []
    starts = Counter(entry.record for entry in lived.entries if entry.kind == "S")
    effects = Counter(lived.effects)
    for what, counts, once in (
        ("begun twice", starts, way.starts_once),
        ("effects twice", effects, way.effects_once),
    ):
        twice = {name for name, count in counts.items() if count > 1} - lived.doubled
        if once and twice:
            found.append(_line(what, twice))
    verdict = _judged(lived)
    if verdict.unexplained:
        found.append(f"repeated {len(verdict.unexplained)}: {verdict.unexplained[:SHOWN]}")
    again = sum(verdict.repeats.values())
    if lived.ends and way.repeats_max is not None and again > way.repeats_max:
        found.append(f"repeated {again} records, at most {way.repeats_max} are allowed")
    return found


def _judged(lived: Lived) -> Verdict:
    """The judge of the process tests; only an end, or doubt of the topic's id, explains a repeat."""
    excuses = []
    if lived.ends:
        excuses.append(Excuse("the end", 1, lived.struck_at - UNCOMMITTED_S, FOREVER))
    entries = [e for e in lived.entries if e.record not in lived.doubled]
    ended = {} if lived.over_at is None else {1: lived.over_at}
    return judge(entries, (), excuses, ended)


def _out_of_order(lived: Lived) -> list[str]:
    verdict = _judged(lived)
    found = [f"{what} {len(lines)}: {lines[:SHOWN]}" for what, lines in (
        ("began out of order", verdict.order), ("ran beside each other", verdict.overlaps)
    ) if lines]  # fmt: skip
    last: dict[tuple[int, str], int] = {}
    for incarnation, number in dict.fromkeys(lived.effects):  # each the first time it is there
        if (incarnation, number) in lived.doubled:
            continue
        lane = incarnation, lived.produced.get((incarnation, number), "")
        if last.get(lane, -1) > number:
            found.append(f"effects out of order: {lane} {number} after {last[lane]}")
        last[lane] = number
    return found[:SHOWN]


def _ended(lived: Lived) -> list[str]:
    found, struck, last = [], lived.struck, lived.last
    if lived.ends:
        if struck is None:
            found.append(f"it went on; it should end with {lived.ends!r}")
        elif struck.exit_code != 1 or lived.ends not in struck.reason.lower():
            found.append(f"it ended with {struck.exit_code} {struck.reason!r}, not {lived.ends!r}")
    elif struck is not None:
        found.append(f"it ended by itself: {struck.exit_code} {struck.reason!r}")
    if last is None or last.exit_code != 0:
        found.append(f"after the fault it did not end well: {last}")
    return found


def _unsaid(lived: Lived) -> list[str]:
    said = lived.log if lived.struck is None else f"{lived.log}\n{lived.struck.reason}"
    return [] if lived.says in said else [f"nothing said {lived.says!r}"]


def _line(what: str, names: set[Name]) -> str:
    return f"{what} {len(names)}: {sorted(names)[:SHOWN]}"
