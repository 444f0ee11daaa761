"""Replay by a button of the page: `perkey dlq replay` on a thread of the process that serves it.

One at a time, with separate clients under the group that keeps the progress; the engine takes no
part. Reads are limited, because handlers run in the same process; the command has no such limits.
If the process ends during a replay, the next replay continues it, by any member or command.

Only dead-letter topics of the app's handlers, and only letters of topics that the app reads: a
letter's headers name its target topic, and the app's login may write to other topics as well.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from perkey import guard
from perkey.account.shown import counted, shown_text
from perkey.dlq.plan import STALE, Plan, Rules, Stale, read_by
from perkey.dlq.replay import Limits, Outcome, Replay, Wanted, group_of
from perkey.errors import ConfigError, PerkeyError
from perkey.kafka.ports import KafkaUnavailable
from perkey.observe.exports import Connect, Note
from perkey.observe.orders import NAME_CHARS_MAX, Answer, Order, checked_reason
from perkey.where import Condition, Fields, parse, text_of

ACTIONS: Final = ("look", "go", "stop", "state")
FIELDS: Final = ("action", "topic", "where", "stale", "groups", "reason", "claimed_by", "job")
#: most offsets of the dead-letter topic (a letter takes about 2 kB), and of its sources, per scan
LIMITS: Final = Limits(letters=50_000, looked=1_000_000)
TYPES_SHOWN, KEYS_SHOWN, REASONS_SHOWN = 8, 5, 10
KEY_CHARS_MAX = 40
TYPE_CHARS_MAX = 60
#: most groups that a request may name: it limits the stored size
GROUPS_MAX = 1_000
CLOSE_S = 5.0
#: never a reason on the page, which has a field instead of the option
_NOT_MEANT = "not meant by --where"


class _Stopped(Exception):
    """The replay was stopped."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request for a dry run or a replay."""

    topic: str
    goes: bool
    condition: Condition | None = None
    stale: Stale | None = None
    #: other groups that read the target; the caller has confirmed them
    groups: frozenset[str] = frozenset()
    reason: str = ""
    claimed_by: str = ""


@dataclass(slots=True)
class _Job:
    """A dry run or a replay in progress. Its thread writes the fields, others read them."""

    id: int
    asked: _Asked
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    #: "running", "done", "stopped" or "failed"
    state: str = "running"
    progress: tuple[str, int, int] = ("connecting", 0, 0)
    going: int = 0
    stale: int = 0
    others: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    #: what would be done, or was done, as lines
    lines: list[str] = field(default_factory=list)
    error: str = ""
    outcome: Outcome = field(default_factory=Outcome)

    def row(self) -> dict[str, Any]:
        """JSON-able."""
        asked = self.asked
        what, done, total = self.progress
        return {
            "job": self.id, "topic": asked.topic, "goes": asked.goes, "reason": asked.reason,
            "where": "" if asked.condition is None else asked.condition.text,
            "state": self.state, "step": what, "done": done, "total": total,
            "going": self.going, "stale": self.stale, "other_groups": self.others,
            "lines": self.lines, "error": self.error, "sent": self.outcome.sent,
        }  # fmt: skip


class _Ours:
    """Matches letters of topics that the app reads, and that also meet a condition."""

    def __init__(self, reads: Callable[[str], bool], also: Condition | None) -> None:
        self._reads, self._also = reads, also

    def matches(self, fields: Fields) -> bool:
        """Whether this letter is selected."""
        topic = fields("topic")
        if not isinstance(topic, str):  # without headers: counted under a separate reason
            return self._also is None
        return self._reads(topic) and (self._also is None or self._also.matches(fields))


class Replays:
    """Answers the page's requests for replays. Thread-safe."""

    def __init__(
        self,
        connect: Connect,
        letters: Callable[[], Collection[str]],
        reads: Callable[[str], bool],
        member: Callable[[], str],
        note: Note,
    ) -> None:
        """`letters`: the dead-letter topics; `reads`: whether the app reads a topic."""
        self._connect, self._letters, self._reads = connect, letters, reads
        self._member, self._note = member, note
        self._lock = threading.Lock()
        self._job: _Job | None = None
        self._started = 0

    def answered(self, given: object) -> dict[str, Any]:
        """`{"member", "job"}`: the requested replay, or the one that already runs.

        Raises ConfigError for an invalid request.
        """
        if not isinstance(given, Mapping):
            raise ConfigError("a replay is a JSON object")
        unknown = sorted(map(str, set(given) - set(FIELDS)))
        if unknown:
            raise ConfigError(f"a replay has no field {unknown[0]!r:.60}")
        if given.get("action") not in ACTIONS:
            raise ConfigError(
                f"action {given.get('action')!r:.60} is not known: one of {', '.join(ACTIONS)}"
            )
        asked = given
        action = asked["action"]
        if action in ("look", "go"):
            topic, goes = asked.get("topic"), action == "go"
            known = sorted(self._letters())
            if topic not in known:
                names = ", ".join(known) or "none"
                raise ConfigError(
                    f"{topic!r:.80} is no dead-letter topic of this app's handlers: {names:.300}"
                )
            where, stale, groups = asked.get("where"), asked.get("stale"), asked.get("groups") or ()
            if stale not in (None, "", *STALE):
                raise ConfigError(f"stale {stale!r:.40} is not known: one of {', '.join(STALE)}")
            if not isinstance(where, str | None):
                raise ConfigError("where must be text")
            listed = isinstance(groups, list | tuple) and len(groups) <= GROUPS_MAX
            if not listed or not all(isinstance(one, str) for one in groups):
                raise ConfigError(f"groups is a list of at most {GROUPS_MAX:,} names")
            claimed_by = asked.get("claimed_by", "")
            if not isinstance(claimed_by, str) or len(claimed_by) > NAME_CHARS_MAX:
                raise ConfigError(f"claimed_by is text of at most {NAME_CHARS_MAX} characters")
            job = self._begun(
                _Asked(
                    str(topic),
                    goes,
                    parse(where) if where and where.strip() else None,
                    stale or None,
                    frozenset(groups),
                    checked_reason(asked.get("reason")) if goes else "",
                    claimed_by if claimed_by.isprintable() else "?",
                )
            )
        else:
            with self._lock:
                now = self._job
            if now is None or now.id != asked.get("job"):
                raise ConfigError("another dry run or replay has replaced it: repeat the dry run")
            job = now
            if action == "stop":
                job.stop.set()
        return {"member": self._member(), "job": job.row()}

    def _begun(self, asked: _Asked) -> _Job:
        with self._lock:
            now = self._job
            if now is not None and now.state == "running" and now.asked.goes:
                if asked.goes:
                    raise ConfigError(
                        f"a replay of {now.asked.topic} runs ({now.asked.reason}): stop it, or ask "
                        "again when it has ended"
                    )
                return now  # shown instead of a dry run
            if now is not None:
                now.stop.set()  # a dry run whose request has changed
            self._started += 1
            job = _Job(self._started, asked)
            before = None if now is None else now.thread
            job.thread = guard.thread("perkey-replay", self._run, guard.log_death, job, before)
            self._job = job
            job.thread.start()
            return job

    def _run(self, job: _Job, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        try:
            self._replay(job)
            state = "done"
        except _Stopped:
            state = "stopped"
        except (PerkeyError, KafkaUnavailable) as error:
            state, job.error = "failed", str(error)
        except BaseException as error:
            state, job.error = "failed", f"{type(error).__name__}: see the log of the process"
            raise
        finally:
            if job.asked.goes:
                targets = f" to {', '.join(job.targets)}" if job.targets else ""
                job.lines = [
                    f"{counted(job.outcome.sent, 'letter')} sent{targets}",
                    *_left_out(job.outcome.left_out),
                ]
                asked = job.asked
                where = None if asked.condition is None else asked.condition.text
                order = Order(
                    "replay", asked.reason, f"replay-{job.id}", asked.topic, where=where,
                    claimed_by=asked.claimed_by,
                )  # fmt: skip
                detail = "; ".join([job.error] * bool(job.error) + job.lines)
                outcome = {"failed": "refused"}.get(state, state)
                self._note(order, Answer(self._member(), outcome, detail))
            job.state = state

    def _replay(self, job: _Job) -> None:
        asked = job.asked

        def on_progress(what: str, done: int, total: int) -> None:
            if job.stop.is_set():
                raise _Stopped
            job.progress = what, done, total

        on_progress("connecting", 0, 0)
        ours = _Ours(self._reads, asked.condition)
        wanted = Wanted(asked.topic, where=ours, rules=Rules(asked.stale))
        group = group_of(asked.topic, None)
        run = Replay(self._connect(group), wanted, group, on_progress, LIMITS)
        with closing(run):
            if asked.goes:
                run.begin()
            run.look()
            plan = run.plan()
            job.targets = run.targets(plan)
            on_progress("asking who reads", 0, 0)
            readers = run.readers(job.targets)
            job.going, job.stale = len(plan.going), plan.stale
            job.others = run.other_groups(plan, readers)
            if not asked.goes:
                job.lines = _would(plan, readers, asked.stale)
                return
            if plan.stale and asked.stale is None:
                raise ConfigError(f"{plan.staleness()}: choose what becomes of those")
            if new := sorted(set(job.others) - asked.groups):
                raise ConfigError(
                    f"group {', '.join(new):.200} reads the topic, too, and would handle these "
                    "records again: look again, and tick it if that is meant"
                )
            run.check(plan)
            run.send(plan, job.outcome)

    def close(self) -> None:
        """Stop the running replay between two batches."""
        with self._lock:
            job = self._job
        if job is not None and job.thread is not None:
            job.stop.set()
            job.thread.join(CLOSE_S)


def _would(plan: Plan, readers: Mapping[str, Collection[str]], stale: Stale | None) -> list[str]:
    """What a replay would do, as lines."""
    lines = [f"{counted(len(plan.going), 'letter')} of {plan.letters:,} to send"]
    if plan.going:
        lines[0] += f": {_named(plan.types(), TYPES_SHOWN, 'types')}"
        keys = Counter(
            "no key" if one.key is None else shown_text(text_of(one.key), KEY_CHARS_MAX)
            for one in plan.going
        )
        lines.append(f"of {counted(len(keys), 'key')}: {_named(keys, KEYS_SHOWN, 'keys')}")
    for topic, names in readers.items():
        lines.append(read_by(topic, names))
    if plan.stale:
        done = {None: "choose", "replay": "sent all the same"}.get(stale, "left out")
        lines.append(f"{plan.staleness()}: {done}")
    if plan.brought:
        lines.append(f"{plan.brought:,} brought back already")
    return lines + _left_out(plan.left_out)


def _left_out(reasons: Mapping[str, int]) -> list[str]:
    meant = "not meant by the condition, or of topics that this app does not read"
    return [
        f"{count:,} left out: {meant if reason == _NOT_MEANT else reason}"
        for reason, count in list(reasons.items())[:REASONS_SHOWN]
    ]


def _named(counts: Counter[str], most: int, what: str) -> str:
    first = counts.most_common(most)
    named = ", ".join(f"{shown_text(name, TYPE_CHARS_MAX)} {count:,}" for name, count in first)
    more = len(counts) - most
    return named + (f" and {more:,} more {what}" if more > 0 else "")
