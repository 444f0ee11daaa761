"""The texts of `perkey why`: for every place and cause, what is wrong and what to do next.

They are made from a snapshot alone (and the lookup of one record), so they are the same on this
machine, over HTTP and from a group's reports.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from perkey.reasons import LOAD, LOOKED_UP, MEMBER, PLACES, RECORD, WELL
from perkey.types import LETTER_REFUSED, OUTPUT_CURES, TOPIC_GONE, ErrorInfo

Row = Mapping[str, Any]


class Sentence(NamedTuple):
    """A finding, and what to do about it."""

    text: str
    next: str
    #: the place or cause it is about
    about: str
    #: the stack of the call, the outermost line first
    stack: tuple[str, ...] = ()
    #: its position in the answer: see perkey/reasons.py
    rank: int = WELL
    #: the record named as the cause: topic, partition, offset
    record: tuple[str, int, int] | None = None

    def __str__(self) -> str:
        return f"{self.text} Next: {self.next}" if self.next else self.text

    def row(self) -> dict[str, Any]:
        """As JSON."""
        row = {"text": self.text, "next": self.next, "about": self.about, "rank": self.rank}
        return {**row, "stack": list(self.stack)}


# -- a record --------------------------------------------------------------------------------------


def _attempt(row: Row) -> str:
    most = row.get("attempts_max")
    return f"attempt {row['attempts'] + 1}" + (f" of {most}" if most is not None else "")


def lasting(row: Row) -> str:
    """For how long, if that is known."""
    return "" if row.get("for_s") is None else f" for {seconds(row['for_s'])}"


def error_text(row: Row, field: str = "last_error") -> str:
    """Its error in one line, after a colon."""
    error = row.get(field)
    return "" if not error else f": {ErrorInfo(error['type'], error['message']).line}"


def at_line(row: Row) -> str:
    """The handler's line that the call is at; deeper frames are in the stack."""
    stack = row.get("stack")
    return f", at {stack[0]}" if stack else ""


#: a call, an output or a commit that takes less is not worth an advice
BRIEF_S = 5.0
#: places that every record passes, and how long that takes decides whether it is stuck
TAKES_TIME = ("running", "sending", "committing", "pending", "marking")


#: the handler has not been called: its call waits to begin the transaction, or to commit it
LEDGER_WAITS = (
    "the ledger's database is away or a transaction locks it: `fuser -v FILE` (SQLite) or `SELECT "
    "pid, state, query FROM pg_stat_activity` (PostgreSQL) names the process"
)


def ends_by(row: Row) -> str:
    """What ends a running call; this depends on the executor."""
    if (row.get("for_s") or 0.0) < BRIEF_S:
        return ""
    if row.get("loop_blocked"):
        return "it continues when the handlers' loop does; timeout_s ends no call until then"
    if any(line.startswith("ledger/ledger_run.py:") for line in list(row.get("stack") or ())[:1]):
        return LEDGER_WAITS
    limit_s, kind = row.get("timeout_s"), row.get("executor")
    late = limit_s is not None and (row.get("for_s") or 0.0) > limit_s + 1.0
    if kind == "threads":
        cure = "set a time-out on what it waits for; to end it now, restart the member"
        why = "a thread cannot be cancelled"
        return (
            f"{why}, so timeout_s={limit_s:g} only counts it as overdue: {cure}"
            if late
            else (
                f"{why}: {cure}"
                if limit_s is None
                else f"{why}; past timeout_s={limit_s:g} it counts "
                f"as overdue and fails when it returns: {cure}"
            )
        )
    if limit_s is None:
        what = "the worker process" if kind == "processes" else "it"
        return f"timeout_s on @app.consume would end {what}; none is set"
    if late and kind == "async":
        return (
            f"timeout_s={limit_s:g} cancelled it but it continues: it catches CancelledError or "
            "blocks the loop: see its stack"
        )
    return f"its timeout_s={limit_s:g} ends it"


def _not_begun(row: Row, member: str) -> tuple[str, str]:
    opens = "worker processes open (imports, the lifespan), " * (row.get("executor") == "processes")
    after = f"{opens}its prefetch has not returned, or calls before it run"
    return f"waits{member}{lasting(row)} for its call to begin{at_line(row)}", after


def _behind(row: Row, member: str) -> tuple[str, str]:
    head = row.get("behind")
    if not head:
        return (
            "is queued behind an earlier record of its lane",
            "find that record: perkey why --key",
        )
    text, after = state_of(head)
    return f"is queued behind record {head['offset']:,}, which {text}", after


FIX = "fix the error; raise perkey.Reject in the handler to give up immediately"


def _retrying(row: Row, member: str) -> tuple[str, str]:
    due = row.get("due_in_s")
    text = f"failed {times(row['attempts'])}{error_text(row)}; "
    if due is None:
        cure = "the app's callbacks run one after another: give what they call a time-out"
        return f"{text}it waits{lasting(row)} for on_exhausted= to return", cure
    text += f"{_attempt(row)} starts in {seconds(due)}"
    if not row["attempts"]:  # also after a restart: of a failed batch only the time is remembered
        text = f"waits without a failed attempt; {_attempt(row)} starts in {seconds(due)}"
        return text, "wait: its handler raised NotNow, or its batch failed as one"
    kind = (row.get("last_error") or {}).get("type", "")
    if kind == "RetryAfter":
        return text, "wait: the handler, or the service that it calls, asked for this delay"
    return text, OUTPUT_CURES.get(kind, FIX)


#: given up because another attempt of the same code would fail, too
FINAL = ("rejected", "undecodable")


def _parked(row: Row, member: str) -> tuple[str, str]:
    ended = f"given up after {attempts(row['attempts'])}{error_text(row)}"
    text = f"is parked{lasting(row)}, {ended}"
    if not row.get("last_error"):  # a commit remembers that it is parked, not why and since when
        text = f"was parked before this member had its partition, {ended}; see the log of that time"
    command = ""
    if row.get("reason"):  # a command to the record alone would be refused
        return f"{text}; its key is held by a command ({row['reason']})", (
            f"`perkey key release {key_options(row)} --reason TEXT` ends the hold and gives it new "
            "attempts"
        )
    if "topic" in row:
        place = f"{row['topic']}:{row['partition']}:{row['offset']}"
        command = f": `perkey record retry {place} --reason TEXT`"
    error = row.get("last_error") or {}
    if error.get("message", "").startswith(LETTER_REFUSED) and "UNKNOWN_TOPIC" in error["type"]:
        return text, f"create the dead-letter topic and release it{command}"
    if command and row.get("by") in FINAL:
        skip = f"`perkey record skip {place} --reason TEXT` gives it up"
        return text, f"{skip}; or deploy a handler that accepts it and release it{command}"
    return text, f"fix the cause and release it{command}"


def all_parked(row: Row) -> str:
    """What to do about many records of a topic that are parked after the same error."""
    kind = (row.get("last_error") or {}).get("type")
    where = "" if kind is None else f' and error.type == "{kind}"'
    return (
        f"fix the cause and release all of them: `perkey key release --topic {row['topic']} "
        f"--where 'state == \"parked\"{where}' --reason TEXT`"
    )


def key_options(row: Row) -> str:
    """The options of `perkey key` that select the key of this record, to be copied."""
    key, topic = row.get("key"), f"--topic {row.get('topic', 'TOPIC')}"
    # A key is shown cut at 64 characters and escaped: such a one would select nothing
    if key is not None and KEY_AS_IT_IS.fullmatch(key):
        return f"{topic} --key {shlex.quote(key)}"
    places = ((name, row.get(name)) for name in ("partition", "offset"))
    where = " and ".join(f"{name} == {value}" for name, value in places)
    return f"{topic} --where '{where}'"


#: a key that is shown as it is
KEY_AS_IT_IS = re.compile(r"[A-Za-z0-9_.:@/+=-]{1,63}")


def _on_hold(row: Row, member: str) -> tuple[str, str]:
    due = row.get("due_in_s")
    when = "" if due is None else f" for {seconds(due)} more"
    who = f" of {row['by']}" if row.get("by") else ""
    why = f" ({row['reason']})" if row.get("reason") else ""
    after = f"to let its lane continue now: `perkey key release {key_options(row)} --reason TEXT`"
    return f"is held by a command{who}{when}{why}", after


#: what to do when the member of a partition is silent
SILENT_NEXT = (
    "restart that member, or wait: the group assigns its partitions to others after its "
    "session.timeout.ms"
)


def _running(row: Row, member: str) -> tuple[str, str]:
    text = f"runs{member}{lasting(row)}, {_attempt(row)}{at_line(row)}"
    if row["attempts"]:
        text += f"; it failed {times(row['attempts'])}{error_text(row)}"
    return text, ends_by(row) or (FIX if row["attempts"] else "")


def _elsewhere(row: Row, member: str) -> tuple[str, str]:
    text = "is in a partition that this member does not own"
    if "member" in row:
        text = f"is in a partition of member {row['member']}"
    return text, "ask the whole group: perkey why --group G --bootstrap-servers B"


#: the sentences that are computed, by place
COMPUTED: dict[str, Callable[[Row, str], tuple[str, str]]] = {
    "running": _running,
    "not_begun": _not_begun,
    "behind": _behind,
    "retrying": _retrying,
    "on_hold": _on_hold,
    "parked": _parked,
    "elsewhere": _elsewhere,
}
_TEMPLATES = {place.name: place for place in (*PLACES, *LOOKED_UP) if place.sentence}


def state_of(row: Row, member: str = "") -> tuple[str, str]:
    """The state of a record in its place, and what to do about it."""
    place = _TEMPLATES.get(row["place"])
    if place is None:
        return COMPUTED[row["place"]](row, member)
    words = {"position": 0, "end": 0, **row, "lasting": lasting(row)}
    return place.sentence.format_map(words), place.cure


def record_sentence(row: Row, member: str = "") -> Sentence:
    """The text for one record: a blocking one, or one that was looked up."""
    state, after = state_of(row, f" in member {member}" if member else "")
    where = f"{row['topic']}[{row['partition']}]"
    key = f" (key {row['key']})" if row.get("key") is not None else ""
    text = f"{where}: record {row['offset']:,}{key} {state}."
    return Sentence(text, after, row["place"], tuple(row.get("stack") or ()))


#: ordering -> what helps a lane that is long
LANE_CURES = {
    "key": 'make its calls faster, or spread its records over more keys; ordering="unordered" '
    "gives up their order",
    "partition": 'make its calls faster, or use ordering="key", or add partitions',
}


def lane_sentence(row: Row, median_s: float | None, ordering: str | None) -> Sentence:
    """The text for a lane that moves and is long: its records run one at a time."""
    key = f" (key {row['key']})" if row.get("key") is not None else ""
    text = (
        f"{row['topic']}[{row['partition']}]: {row['waiting_behind']:,} records wait in one lane "
        f"behind record {row['offset']:,}{key}, which runs{lasting(row)}. They run one at a time"
    )
    usual = (
        "" if median_s is None else f" (calls of {row.get('handler')}: median {brief(median_s)})"
    )
    cure = LANE_CURES.get(ordering or "", "make its calls faster")
    after = f"nothing is stuck; more concurrency does not help one lane: {cure}"
    return Sentence(f"{text}{usual}.", after, "lane", rank=LOAD)


# -- a partition -----------------------------------------------------------------------------------


def partition_sentence(part: Row, blocker: Row | None, member: str = "") -> Sentence:
    """The text for one partition: how long its commit has not moved, and what it waits for."""
    where = f"{part['topic']}[{part['partition']}]"
    if part.get("place") in UNREAD:
        return unread_sentence(part)
    if not part["remaining"]:
        return Sentence(f"{where} is drained: all records are fetched and done.", "", "drained")
    if part["committed"] is None or part["committed"] < 0:
        text = f"{where} has no commit yet."
    else:
        at = time.strftime("%H:%M:%S", time.localtime(part["committed_since"]))
        lasts = seconds(part["committed_for_s"] or 0.0)
        text = f"{where} is committed to {part['committed']:,} since {at} ({lasts})."
    if blocker is None:
        text += f" {part['remaining']:,} records remain; none blocks the commit."
        return Sentence(text, "", "moving")
    state, after = state_of(blocker, f" in member {member}" if member else "")
    key = f" (key {blocker['key']})" if blocker.get("key") is not None else ""
    text += f" Record {blocker['offset']:,}{key} {state}."
    text += (
        f" {blocker['done_beyond']:,} records beyond it are done ({map_text(part)}), "
        f"{blocker['waiting_behind']:,} wait behind it."
    )
    if part.get("not_remembered"):
        text += (
            f" The commit has no room for {part['not_remembered']:,} failing or parked records: "
            "after a restart their attempts start over."
        )
    if part.get("silent"):
        text += " Its member is silent: killed, suspended or disconnected."
        after = SILENT_NEXT
    return Sentence(text, after, blocker["place"], tuple(blocker.get("stack") or ()), RECORD)


def map_text(part: Row) -> str:
    """How full the offset map is, relative to the part in which records may start."""
    text = f"offset map {percent(part)} full"
    past = part.get("past_map", 0)
    return f"{text}: {past:,} wait for room in it" if past else text


def percent(part: Row) -> str:
    """How full the map is; estimated from its size for reports of older versions."""
    used = part.get("map_used")
    if used is None:
        used = min(1.0, part["map_chars"] / max(1, 0.75 * part["map_limit"]))
    return f"{100 * used:.0f} %"


#: place of a partition that is not read -> its state, and what to do about it
UNREAD = {
    "start_unknown": (
        "is assigned, but its start offset has been unknown for {}: {}. Remaining: unknown.",
        (
            "check that it exists and has a leader: `kafka-topics.sh --bootstrap-server HOST:9092 "
            "--describe --topic TOPIC`; the client asks again every 0.5 s. One that a recreated "
            "topic no longer has is given up after topic.metadata.refresh.interval.ms (5 min)"
        ),
    ),
    "not_fetched": (
        "has not been fetched for {}: {}.",
        (
            "is its leader up? `kafka-topics.sh --bootstrap-server HOST:9092 --describe --topic "
            "TOPIC`; the fetch is restarted every 30 s; if that does not help, restart this member"
        ),
    ),
}


def unread_sentence(part: Row) -> Sentence:
    """The text for a partition that is assigned but not read."""
    text, after = UNREAD[part["place"]]
    since = seconds(part["place_for_s"] or 0.0)
    where = f"{part.get('topic')}[{part.get('partition')}]"
    text = f"{where} {text.format(since, part['place_reason'])}"
    topic = str(part.get("topic"))
    after = after.replace("--topic TOPIC", f"--topic {topic}")
    if part["place_reason"] == TOPIC_GONE:
        after = (
            f"recreate it: `perkey topics create {topic} --bootstrap-servers HOST:9092`; it is "
            "then read within seconds. Or stop consuming it"
        )
    return Sentence(text, after, part["place"], rank=MEMBER)


def shown(count: int | None) -> str:
    """A count, or "an unknown number of"."""
    return "an unknown number of" if count is None else f"{count:,}"


def seconds(value: float) -> str:
    """A duration as text."""
    return f"{value:.1f} s" if value < 10 else f"{value:,.0f} s"


def brief(value: float) -> str:
    """A short duration as text."""
    return seconds(value) if value >= 1 else f"{1000 * value:,.0f} ms"


def clock(at: float) -> str:
    """A time of day in UTC as text."""
    return time.strftime("%H:%M:%SZ", time.gmtime(min(max(at, 0.0), 253e9)))


def attempts(count: int) -> str:
    """The number of attempts in words."""
    return "one attempt" if count == 1 else f"{count} attempts"


def times(count: int) -> str:
    """The number of times in words."""
    return "once" if count == 1 else f"{count} times"
