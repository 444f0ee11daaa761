"""Judges what handlers did, from their log alone: never from the library's own counters.

The rules are those of docs/guarantees.md, across processes:

- lost (S1): a produced record that no handler completed;
- order (S3): a record started before an earlier one of its lane was completed by somebody;
- overlap (S3): two calls of one lane at once, where no fault explains it;
- zombie (S7): a start under an assignment after another process had the partition;
- repeats (S4, S5, S6): a completed record started again, where no fault explains it. A fault
  explains only what was completed in its window: the last commit interval and a commit's way.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.support.handler_log import Entry

FOREVER = float("inf")
Record = tuple[int, int]  # partition, offset


@dataclass(frozen=True)
class Excuse:
    """A fault, and for what it answers: completions of one process (None: of all) in a window."""

    why: str
    pid: int | None
    since: float
    until: float
    #: its calls may run beside those of the next owner (stopped, cut off, or longer than a revoke)
    overlap: bool = False

    def covers(self, pid: int, at: float) -> bool:
        """Whether what this process did at this time is explained."""
        return self.pid in (None, pid) and self.since <= at <= self.until


@dataclass
class Verdict:
    """What was found; `problems` is empty when every promise was kept."""

    records: int = 0
    starts: int = 0
    completions: int = 0
    #: started again though another attempt had begun and not ended: it was in flight at a fault
    restarts: int = 0
    lost: list[Record] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)
    zombies: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    #: repeats and their bound (what was completed in its window), by fault
    repeats: dict[Excuse, int] = field(default_factory=dict)
    bounds: dict[Excuse, int] = field(default_factory=dict)

    @property
    def repeated(self) -> int:
        """Completed records that were started again, explained or not."""
        return sum(self.repeats.values()) + len(self.unexplained)

    @property
    def worst_ratio(self) -> float:
        """Repeats over their bound, at the worst fault."""
        ratios = [n / max(1, self.bounds.get(why, 0)) for why, n in self.repeats.items()]
        return max(ratios, default=0.0)

    def problems(self) -> list[str]:
        """Every broken promise, a line each, the first few of a kind."""
        found = []
        if not self.starts:
            found.append("unknown: the log is empty, nothing was checked")
        if self.lost:
            found.append(f"lost {len(self.lost)}: {sorted(self.lost)[:10]}")
        for name in ("order", "overlaps", "zombies", "unexplained"):
            lines = getattr(self, name)
            if lines:
                found.append(f"{name} {len(lines)}: " + "; ".join(lines[:5]))
        return found

    def summary(self) -> str:
        """One line for people."""
        return (
            f"records={self.records} starts={self.starts} completions={self.completions} "
            f"restarts={self.restarts} repeats={self.repeated} faults={len(self.bounds)} "
            f"worst repeats/bound={self.worst_ratio:.2f}"
        )


def judge(
    entries: Sequence[Entry],
    produced: Iterable[Record],
    excuses: Sequence[Excuse] = (),
    ended: Mapping[int, float] | None = None,
    *,
    ordered: bool = True,
) -> Verdict:
    """Look at the whole log. `ended` says when each process was gone: calls end there too.

    `ordered` False: the records were unordered on purpose, order and overlap do not matter.
    """
    log = sorted(entries, key=lambda entry: entry.at)
    wanted = set(produced)
    verdict = Verdict(records=len(wanted))
    verdict.starts = sum(entry.kind == "S" for entry in log)
    done = {entry.record for entry in log if entry.kind == "E"}
    verdict.completions = sum(entry.kind == "E" for entry in log)
    verdict.lost = sorted(wanted - done)
    verdict.bounds = {why: _in_window(log, why) for why in excuses}
    _count_repeats(log, excuses, verdict)
    _find_zombies(log, verdict)
    if ordered:
        _check_order(log, verdict)
        _check_overlaps(log, excuses, ended or {}, verdict)
    return verdict


def _in_window(log: Sequence[Entry], why: Excuse) -> int:
    return sum(entry.kind == "E" and why.covers(entry.pid, entry.at) for entry in log)


def _count_repeats(log: Sequence[Entry], excuses: Sequence[Excuse], verdict: Verdict) -> None:
    """Each start of a completed record must be explained by a fault of who completed it last."""
    completed: dict[Record, Entry] = {}
    begun: Counter[Record] = Counter()
    repeats: Counter[Excuse] = Counter()
    for entry in log:
        if entry.kind == "E":
            completed[entry.record] = entry
        if entry.kind != "S":
            begun[entry.record] -= 1
            continue
        before = completed.get(entry.record)
        if before is not None:
            why = next((e for e in excuses if e.covers(before.pid, before.at)), None)
            if why is None:
                verdict.unexplained.append(f"{_shown(before)} again in {entry.pid} {_at(entry)}")
            else:
                repeats[why] += 1
        elif begun[entry.record] > 0:
            verdict.restarts += 1
        begun[entry.record] += 1
    verdict.repeats = dict(repeats)


def _find_zombies(log: Sequence[Entry], verdict: Verdict) -> None:
    """Starts of one partition come in blocks, one an assignment; an old one never comes back."""
    present: dict[int, tuple[int, int]] = {}
    past: defaultdict[int, set[tuple[int, int]]] = defaultdict(set)
    for entry in log:
        if entry.kind != "S":
            continue
        holder = (entry.pid, entry.epoch)
        now = present.get(entry.partition)
        if now != holder:
            if holder in past[entry.partition]:
                verdict.zombies.append(f"{_shown(entry)} {_at(entry)}, after {now} had it")
            if now is not None:
                past[entry.partition].add(now)
            present[entry.partition] = holder


def _check_order(log: Sequence[Entry], verdict: Verdict) -> None:
    """When a record starts, every earlier one of its lane that was ever started is completed.

    A record of a lane that nobody ever started is a loss, and reported as one.
    """
    open_: defaultdict[tuple[int, str], set[int]] = defaultdict(set)
    for entry in log:
        if entry.kind == "S":
            open_[entry.lane].add(entry.offset)
    waiting = {lane: sorted(offsets, reverse=True) for lane, offsets in open_.items()}
    completed: defaultdict[tuple[int, str], set[int]] = defaultdict(set)
    for entry in log:
        lane, left = entry.lane, waiting[entry.lane]
        if entry.kind == "E":
            completed[lane].add(entry.offset)
            while left and left[-1] in completed[lane]:
                left.pop()
        elif entry.kind == "S" and left and left[-1] < entry.offset:
            verdict.order.append(f"{_shown(entry)} started before {left[-1]} of its key was done")


def _check_overlaps(
    log: Sequence[Entry], excuses: Sequence[Excuse], ended: Mapping[int, float], verdict: Verdict
) -> None:
    running: defaultdict[tuple[int, str], list[Entry]] = defaultdict(list)
    for entry in log:
        calls = running[entry.lane]
        if entry.kind != "S":
            _end_call(calls, entry)
            continue
        calls[:] = [call for call in calls if ended.get(call.pid, FOREVER) > entry.at]
        for call in calls:
            if call.pid == entry.pid or not _may_overlap(call, entry, excuses):
                verdict.overlaps.append(f"{_shown(entry)} while {_shown(call)} ran")
        calls.append(entry)


def _end_call(calls: list[Entry], entry: Entry) -> None:
    for place, call in enumerate(calls):
        if call.pid == entry.pid and call.offset == entry.offset:
            del calls[place]
            return


def _may_overlap(call: Entry, start: Entry, excuses: Sequence[Excuse]) -> bool:
    """A fault of the earlier call's process lets it run on beside the next owner."""
    return any(
        why.overlap
        and why.pid in (None, call.pid)
        and call.at <= why.until
        and why.since <= start.at
        for why in excuses
    )


def _shown(entry: Entry) -> str:
    return f"{entry.partition}:{entry.offset} key={entry.key or None} by {entry.pid}/{entry.epoch}"


def _at(entry: Entry) -> str:
    return f"at {entry.at:.3f}"
