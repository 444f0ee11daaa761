"""Why is it stuck? One sentence, and what to do next, for every place and every cause.

Made from a snapshot alone (and from what was found of one record), so it is the same on this
machine, over HTTP and from a group's reports.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from weft.types import ErrorInfo

Row = Mapping[str, Any]


class Sentence(NamedTuple):
    """What is so, and what to do about it."""

    text: str
    next: str
    #: the place or cause it speaks of
    about: str
    #: where the call is that it speaks of, the outermost line first
    stack: tuple[str, ...] = ()
    #: how far up it belongs: see RANKS
    rank: int = 8
    #: the record that it names as the cause: topic, partition, offset
    record: tuple[str, int, int] | None = None

    def __str__(self) -> str:
        return f"{self.text} Next: {self.next}" if self.next else self.text

    def row(self) -> dict[str, Any]:
        """As JSON."""
        row = {"text": self.text, "next": self.next, "about": self.about, "rank": self.rank}
        return {**row, "stack": list(self.stack)}


#: what is said first: a cause before what follows from it
BROKER, MEMBER, HANGING, MAP, RECORD, INTENT, FULL, LOAD, WELL = range(9)
#: of causes; of those not named here MEMBER
RANKS = {
    "refused": BROKER,
    "broker": BROKER,
    "outputs": HANGING,
    "results": HANGING,
    "stopping": INTENT,
    "revoking": INTENT,
    "buffers": FULL,
    "slots": LOAD,
    "rate_limit": LOAD,
    "map": LOAD,
}


# -- a record --------------------------------------------------------------------------------------


def _attempt(row: Row) -> str:
    most = row.get("attempts_max")
    return f"attempt {row['attempts'] + 1}" + (f" of {most}" if most is not None else "")


def _for(row: Row) -> str:
    return "" if row.get("for_s") is None else f" for {seconds(row['for_s'])}"


def _error(row: Row) -> str:
    error = row.get("last_error")
    return "" if not error else f": {ErrorInfo(error['type'], error['message']).line}"


def _runs(row: Row, member: str) -> tuple[str, str]:
    return f"runs{member}{_for(row)}, {_attempt(row)}{at_line(row)}", ends_by(row)


def at_line(row: Row) -> str:
    """The handler's own line that the call is at; what it calls is in the stack."""
    stack = row.get("stack")
    return f", at {stack[0]}" if stack else ""


def ends_by(row: Row) -> str:
    """What ends a call that runs: that depends on what calls it."""
    limit_s, kind = row.get("timeout_s"), row.get("executor")
    late = limit_s is not None and (row.get("for_s") or 0.0) > limit_s + 1.0
    if kind == "threads":
        cure = "give what it waits for a time-out of its own; to end it now, restart the member"
        why = "a thread cannot be ended from outside"
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
            f"timeout_s={limit_s:g} has cancelled it and it goes on: it catches CancelledError, or "
            "blocks the loop; see its stack"
        )
    return f"its timeout_s={limit_s:g} ends it"


def _behind(row: Row, member: str) -> tuple[str, str]:
    head = row.get("behind")
    if not head:
        return "is queued behind an earlier record of its lane", "look at its key: weft why --key"
    told, after = RECORD_IN[head["place"]](head, "")
    return f"is queued behind record {head['offset']:,}, which {told}", after


def _retrying(row: Row, member: str) -> tuple[str, str]:
    due = row.get("due_in_s")
    when = "soon" if due is None else f"in {seconds(due)}"
    text = f"failed {times(row['attempts'])}{_error(row)}; {_attempt(row)} comes {when}"
    return text, "fix what it says; weft.Reject in the handler would give it up at once"


def _parked(row: Row, member: str) -> tuple[str, str]:
    text = f"is parked{_for(row)}, given up after {attempts(row['attempts'])}{_error(row)}"
    return text, (
        "fix the cause and restart: a restart, and each rebalance, tries it again; or use "
        "DeadLetter or Skip"
    )


#: what to do where the member of a partition is not heard of
SILENT_NEXT = (
    "restart that member, or wait: the group gives its partitions to others once its "
    "session.timeout.ms is over"
)
#: place -> what a record there does, and what to do about it
RECORD_IN: dict[str, Callable[[Row, str], tuple[str, str]]] = {
    "running": _runs,
    "behind": _behind,
    "retrying": _retrying,
    "parked": _parked,
    "ready": lambda row, member: (
        "may start and waits for a free slot, or for what holds everything up",
        "see why nothing starts: weft status",
    ),
    "gathering": lambda row, member: (
        "is in a batch that fills up or lingers",
        "it is called after Batch.linger_s; a smaller one calls it earlier",
    ),
    "past_map": lambda row, member: (
        "is past the reach of the offset map: it starts once the gap before it closes",
        "look at the record at the frontier: weft why TOPIC:PARTITION",
    ),
    "held": lambda row, member: (
        "waits for a call of an earlier assignment that still runs in its lane",
        "that call must return; timeout_s or a restart ends it",
    ),
    "marking": lambda row, member: (
        f"waits{_for(row)} for its started-mark to be committed (at_most_once)",
        "is the broker up? a commit is acknowledged in milliseconds",
    ),
    "sending": lambda row, member: (
        f"is handled; its outputs are not acknowledged by the broker{_for(row)}",
        "is the output topic there, its leader up, and may we write to it?",
    ),
    "committing": lambda row, member: (
        f"is done and waits{_for(row)} for its commit (Commit(each=True))",
        "is the broker up? a commit is acknowledged in milliseconds",
    ),
    "pending": lambda row, member: (
        f"is handled and waits{_for(row)} for its transaction (exactly_once) or its table's file",
        "a table gets a file every interval_s; `transaction aborted` in the log: they fail",
    ),
    "unfetched": lambda row, member: (
        "is not done by the restored offset map, and not fetched again yet",
        "it comes with the next fetches of its partition",
    ),
    "done": lambda row, member: ("is done", ""),
    "elsewhere": lambda row, member: (
        f"is of a partition that member {row['member']} has"
        if "member" in row
        else "is of a partition that this member does not have",
        "ask the whole group: weft why --group G --bootstrap-servers B",
    ),
    "not_read": lambda row, member: (
        f"is in the log and not fetched yet: we stand at {row.get('position', 0):,}",
        "it comes when what is before it has room: see `buffers` in weft status",
    ),
    "not_there": lambda row, member: (
        f"is not there: the log ends at {row.get('end', 0):,}",
        "",
    ),
}


def record_sentence(row: Row, member: str = "") -> Sentence:
    """Of one record: a blocker, or what was looked up."""
    told, after = RECORD_IN[row["place"]](row, f" in member {member}" if member else "")
    where = f"{row['topic']}[{row['partition']}]"
    key = f" (key {row['key']})" if row.get("key") is not None else ""
    text = f"{where}: record {row['offset']:,}{key} {told}."
    return Sentence(text, after, row["place"], tuple(row.get("stack") or ()))


# -- a partition -----------------------------------------------------------------------------------


def partition_sentence(part: Row, blocker: Row | None, member: str = "") -> Sentence:
    """Of one partition: since when its commit stands, and what it waits for."""
    where = f"{part['topic']}[{part['partition']}]"
    if part.get("place") in UNREAD:
        return unread_sentence(part)
    if not part["remaining"]:
        return Sentence(f"{where} has nothing left to do: all is done and read.", "", "drained")
    if part["committed"] is None or part["committed"] < 0:
        text = f"{where} has no commit yet."
    else:
        at = time.strftime("%H:%M:%S", time.localtime(part["committed_since"]))
        stands = seconds(part["committed_for_s"] or 0.0)
        text = f"{where} is committed to {part['committed']:,} since {at} ({stands})."
    if blocker is None:
        text += f" {part['remaining']:,} records are left; none holds it up."
        return Sentence(text, "", "moving")
    told, after = RECORD_IN[blocker["place"]](blocker, f" in member {member}" if member else "")
    key = f" (key {blocker['key']})" if blocker.get("key") is not None else ""
    text += f" Record {blocker['offset']:,}{key} {told}."
    text += (
        f" {blocker['done_beyond']:,} records beyond it are done ({map_text(part)}), "
        f"{blocker['waiting_behind']:,} wait behind it."
    )
    if part.get("silent"):
        text += " Its member is silent: killed, or cut off."
        after = SILENT_NEXT
    return Sentence(text, after, blocker["place"], tuple(blocker.get("stack") or ()), RECORD)


def map_text(part: Row) -> str:
    """How full the offset map is, against the room in which records may start."""
    text = f"offset map {percent(part)} full"
    past = part.get("past_map", 0)
    return f"{text}: {past:,} wait for room in it" if past else text


def percent(part: Row) -> str:
    """How full the map is; of a report of another version by what it says of its size."""
    used = part.get("map_used")
    if used is None:
        used = min(1.0, part["map_chars"] / max(1, 0.75 * part["map_limit"]))
    return f"{100 * used:.0f} %"


#: place of a partition that is not read -> what is so, and what to do about it
UNREAD = {
    "start_unknown": (
        "is assigned, and its start is not known since {}: {}. What is left of it is unknown.",
        (
            "has it a leader? kafka-topics.sh --describe --unavailable-partitions; metadata is "
            "refreshed and asked again every half second"
        ),
    ),
    "not_fetched": (
        "is not fetched since {}, although its log grows: {}.",
        "it is fetched anew every 30 s; if that does not help, restart this member",
    ),
}


def unread_sentence(part: Row) -> Sentence:
    """Of a partition that is assigned and not read."""
    text, after = UNREAD[part["place"]]
    since = seconds(part["place_for_s"] or 0.0)
    where = f"{part.get('topic')}[{part.get('partition')}]"
    text = f"{where} {text.format(since, part['place_reason'])}"
    return Sentence(text, after, part["place"], rank=MEMBER)


# -- why nothing starts ----------------------------------------------------------------------------


def _of(halt: Row) -> str:
    if halt.get("handler"):
        return f" of {halt['handler']}"
    if halt.get("topic") and halt.get("partition") is not None:
        return f" of {halt['topic']}[{halt['partition']}]"
    return f" of {halt['topic']}" if halt.get("topic") else ""


def _open_transaction(halt: Row) -> tuple[str, str]:
    text = (
        f"{halt.get('topic')}[{halt.get('partition')}]: records from offset "
        f"{halt.get('stable_end', 0):,} on wait behind an open transaction of another producer "
        f"(last stable offset {halt.get('stable_end', 0):,}, end {halt.get('end', 0):,})."
    )
    after = (
        "it ends with its producer, or after its transaction.timeout.ms; "
        "`kafka-transactions.sh find-hanging` names one that does not, and `abort` ends it"
    )
    return text, after


BROKER_NEXT = (
    "bring a broker back, or the way to it; calls continue, and their records are committed when "
    "it answers"
)
REFUSED_NEXT = (
    "correct the user, the password or the certificate in kafka={...} and restart: after 30 s of "
    "refusals alone the run ends by itself"
)


def _unread(halt: Row) -> tuple[str, str]:
    about = {"place_for_s": halt.get("for_s", 0.0), "place_reason": halt.get("reason", "unknown")}
    told = unread_sentence({**halt, **about, "place": halt["cause"]})
    return told.text, told.next


#: cause -> what is so, and what to do about it
HALTED_BY: dict[str, Callable[[Row], tuple[str, str]]] = {
    "unassigned": lambda halt: (
        "Nothing starts: this member has no partition.",
        "more members than partitions? a killed one's session not over? the log says which",
    ),
    "paused": lambda halt: (
        f"Nothing{_of(halt)} starts: the application said app.pause().",
        f"app.resume({halt['topic']!r})" if halt.get("topic") else "app.resume()",
    ),
    "stopping": lambda halt: (
        f"Nothing starts: a stop was asked for ({halt.get('mode', 'in_flight')}).",
        "what runs is finished, up to drain_timeout_s; a second signal ends it at once",
    ),
    "revoking": lambda halt: (
        f"Nothing{_of(halt)} starts: the partition is being taken away.",
        "what runs is waited for, up to revoke_timeout_s",
    ),
    "outputs": lambda halt: (
        "Nothing starts: the producer is full of outputs the broker has not acknowledged.",
        "is the output topic's leader up? a larger producer queue: queue.buffering.max.kbytes",
    ),
    "results": lambda halt: (
        "Nothing starts: the reader of app.results() is slower than the handlers.",
        "read faster, or stop reading",
    ),
    "membership": lambda halt: (
        "Nothing starts: the polling thread stood still, so our membership is to be proven first.",
        "a commit proves it; was the process stopped, or the machine short of processors?",
    ),
    "broker": lambda halt: (
        f"No broker has answered{_for(halt)}: nothing is fetched or committed. Remaining: unknown.",
        BROKER_NEXT,
    ),
    "refused": lambda halt: (
        f"The brokers refuse our login: {halt.get('reason', 'no reason given').rstrip('.')}.",
        REFUSED_NEXT,
    ),
    "rate_limit": lambda halt: (
        f"Calls{_of(halt)} wait for its rate_limit_per_s.",
        "raise rate_limit_per_s on @app.consume if that was not meant",
    ),
    "slots": lambda halt: (
        f"All calls{_of(halt)} that its concurrency allows are taken; they end and others start.",
        "normal under load; if remaining grows, raise concurrency, or add members",
    ),
    "map": lambda halt: (
        f"The offset map{_of(halt)} is full: {halt.get('waiting', 0):,} keys wait for room in it.",
        "normal while the frontier moves; if not: weft why TOPIC:PARTITION names the record there",
    ),
    "buffers": lambda halt: (
        f"Nothing more{_of(halt)} is fetched: the buffers are full, and handlers empty them.",
        "normal under load; more calls at once (concurrency) or more members empty them faster",
    ),
    "open_transaction": _open_transaction,
    "start_unknown": _unread,
    "not_fetched": _unread,
}


def halt_sentence(halt: Row) -> Sentence:
    """Why nothing starts."""
    text, after = HALTED_BY[halt["cause"]](halt)
    return Sentence(text, after, halt["cause"], rank=RANKS.get(halt["cause"], MEMBER))


def shown(count: int | None) -> str:
    """A count, or that it is not known."""
    return "an unknown number of" if count is None else f"{count:,}"


def seconds(value: float) -> str:
    """A duration as a person says it."""
    return f"{value:.1f} s" if value < 10 else f"{value:,.0f} s"


def attempts(count: int) -> str:
    """How many."""
    return "one attempt" if count == 1 else f"{count} attempts"


def times(count: int) -> str:
    """How often."""
    return "once" if count == 1 else f"{count} times"
