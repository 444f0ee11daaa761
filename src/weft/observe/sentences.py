"""The texts of `weft why`: for every place and cause, what is wrong and what to do next.

They are made from a snapshot alone (and the lookup of one record), so they are the same on this
machine, over HTTP and from a group's reports.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from weft.types import LETTER_REFUSED, ErrorInfo

Row = Mapping[str, Any]


class Sentence(NamedTuple):
    """A finding, and what to do about it."""

    text: str
    next: str
    #: the place or cause it is about
    about: str
    #: the stack of the call, the outermost line first
    stack: tuple[str, ...] = ()
    #: its position in the answer: see RANKS
    rank: int = 8
    #: the record named as the cause: topic, partition, offset
    record: tuple[str, int, int] | None = None

    def __str__(self) -> str:
        return f"{self.text} Next: {self.next}" if self.next else self.text

    def row(self) -> dict[str, Any]:
        """As JSON."""
        row = {"text": self.text, "next": self.next, "about": self.about, "rank": self.rank}
        return {**row, "stack": list(self.stack)}


#: the order of sentences: a cause before its consequences
BROKER, MEMBER, HANGING, MAP, RECORD, INTENT, FULL, LOAD, WELL = range(9)
#: ranks of causes; default MEMBER
RANKS = {
    "refused": BROKER,
    "broker": BROKER,
    "outputs": HANGING,
    "results": HANGING,
    "not_begun": HANGING,
    "budget": LOAD,
    "outage": HANGING,
    "brake": HANGING,
    "stopping": INTENT,
    "command": INTENT,
    "revoking": INTENT,
    "buffers": FULL,
    "slots": LOAD,
    "rate_limit": LOAD,
    "map": LOAD,
    "valve": INTENT,
}


# -- a record --------------------------------------------------------------------------------------


def _attempt(row: Row) -> str:
    most = row.get("attempts_max")
    return f"attempt {row['attempts'] + 1}" + (f" of {most}" if most is not None else "")


def _for(row: Row) -> str:
    return "" if row.get("for_s") is None else f" for {seconds(row['for_s'])}"


def _error(row: Row, field: str = "last_error") -> str:
    error = row.get(field)
    return "" if not error else f": {ErrorInfo(error['type'], error['message']).line}"


def at_line(row: Row) -> str:
    """The handler's line that the call is at; deeper frames are in the stack."""
    stack = row.get("stack")
    return f", at {stack[0]}" if stack else ""


def ends_by(row: Row) -> str:
    """What ends a running call; this depends on the executor."""
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


#: calls that take longer than this are named as the reason of full slots
SLOW_S = 1.0


def _slots(halt: Row) -> tuple[str, str]:
    text = f"All concurrency slots{_of(halt)} are taken"
    if acknowledged := halt.get("acknowledged"):
        whose = "batch calls that have acknowledged all their records and have not returned"
        after = "return after the last acknowledgement, or set timeout_s"
        return (
            f"{text}, {acknowledged:,} of them by {whose}.",
            f"if it stays so, such a call hangs: {after}",
        )
    if (median_s := halt.get("median_s") or 0.0) >= SLOW_S:
        text += f" by calls of {seconds(median_s)} (median)"
    return (
        f"{text}; calls end and others start.",
        "normal under load; if remaining grows, raise concurrency or add members",
    )


def _not_begun(row: Row, member: str) -> tuple[str, str]:
    opens = "worker processes open (imports, the lifespan), " * (row.get("executor") == "processes")
    after = f"{opens}its prefetch has not returned, or calls before it run"
    return f"waits{member}{_for(row)} for its call to begin{at_line(row)}", after


def _behind(row: Row, member: str) -> tuple[str, str]:
    head = row.get("behind")
    if not head:
        return "is queued behind an earlier record of its lane", "find that record: weft why --key"
    text, after = RECORD_IN[head["place"]](head, "")
    return f"is queued behind record {head['offset']:,}, which {text}", after


def _retrying(row: Row, member: str) -> tuple[str, str]:
    due = row.get("due_in_s")
    text = f"failed {times(row['attempts'])}{_error(row)}; "
    if due is None:
        cure = "the app's callbacks run one after another: give what they call a time-out"
        return f"{text}it waits{_for(row)} for on_exhausted= to return", cure
    text += f"{_attempt(row)} starts in {seconds(due)}"
    return text, "fix the error; raise weft.Reject in the handler to give up immediately"


def _parked(row: Row, member: str) -> tuple[str, str]:
    ended = f"given up after {attempts(row['attempts'])}{_error(row)}"
    text = f"is parked{_for(row)}, {ended}"
    if not row.get("last_error"):  # a commit remembers that it is parked, not why and since when
        text = f"was parked before this member had its partition, {ended}; see the log of that time"
    command = ""
    if row.get("reason"):  # a command to the record alone would be refused
        topic = row.get("topic", "TOPIC")
        return f"{text}; its key is held by a command ({row['reason']})", (
            f"weft key release --topic {topic} --key KEY --reason TEXT ends the hold and gives it "
            "new attempts"
        )
    if "topic" in row:
        place = f"{row['topic']}:{row['partition']}:{row['offset']}"
        command = f": `weft record retry {place} --reason TEXT`"
    error = row.get("last_error") or {}
    if error.get("message", "").startswith(LETTER_REFUSED) and "UNKNOWN_TOPIC" in error["type"]:
        return text, f"create the dead-letter topic and release it{command}"
    return text, f"fix the cause and release it{command}"


def _on_hold(row: Row, member: str) -> tuple[str, str]:
    due = row.get("due_in_s")
    when = "" if due is None else f" for {seconds(due)} more"
    who = f" of {row['by']}" if row.get("by") else ""
    why = f" ({row['reason']})" if row.get("reason") else ""
    return f"is held by a command{who}{when}{why}", "release it to let its lane continue now"


#: what to do when the member of a partition is silent
SILENT_NEXT = (
    "restart that member, or wait: the group assigns its partitions to others after its "
    "session.timeout.ms"
)
#: place -> the state of a record there, and what to do about it
RECORD_IN: dict[str, Callable[[Row, str], tuple[str, str]]] = {
    "running": lambda row, member: (
        f"runs{member}{_for(row)}, {_attempt(row)}{at_line(row)}",
        ends_by(row),
    ),
    "not_begun": _not_begun,
    "behind": _behind,
    "retrying": _retrying,
    "on_hold": _on_hold,
    "parked": _parked,
    "ready": lambda row, member: (
        "is ready and waits for a free slot, or for what blocks all records",
        "see what blocks all records: weft status",
    ),
    "gathering": lambda row, member: (
        "is in a batch that is filling or lingering",
        "it starts after Batch.linger_s at the latest; lower it to start earlier",
    ),
    "past_map": lambda row, member: (
        "is beyond the reach of the offset map: it starts when the gap before it closes",
        "find the record at the frontier: weft why TOPIC:PARTITION",
    ),
    "fetching": lambda row, member: (
        "is being read from the log again: it was released, or is exported with its key",
        "it continues when it is here: weft why names the broker if that does not answer",
    ),
    "outage": lambda row, member: (
        "waits because the service that its handler calls is unavailable",
        "restore that service: weft why names the error; all continue when a probe succeeds",
    ),
    "budget": lambda row, member: (
        "waits in the queue of its handler's budget",
        "expected under load; weft why names the budget, and what it waits for",
    ),
    "held": lambda row, member: (
        "waits for a call of an earlier assignment that still runs in its lane",
        "wait for that call; a restart of this member ends it",
    ),
    "marking": lambda row, member: (
        f"waits{_for(row)} for its started-mark to be committed (at_most_once)",
        "check that the broker is up: a commit normally takes milliseconds",
    ),
    "sending": lambda row, member: (
        f"is handled; its outputs wait{_for(row)} for the broker's acknowledgement",
        "check that the output topic exists, has a leader, and this user may write to it",
    ),
    "committing": lambda row, member: (
        f"is done and waits{_for(row)} for its commit (Commit(each=True))",
        "check that the broker is up: a commit normally takes milliseconds",
    ),
    "pending": lambda row, member: (
        f"is handled and waits{_for(row)} for its transaction (exactly_once) or its table's file",
        "a table gets a file every interval_s; `transaction aborted` in the log means a failure",
    ),
    "unfetched": lambda row, member: (
        "is not done in the restored offset map, and not fetched again yet",
        "it arrives with the next fetches of its partition",
    ),
    "done": lambda row, member: ("is done", ""),
    "elsewhere": lambda row, member: (
        f"is in a partition of member {row['member']}"
        if "member" in row
        else "is in a partition that this member does not own",
        "ask the whole group: weft why --group G --bootstrap-servers B",
    ),
    "not_read": lambda row, member: (
        f"is in the log but not fetched yet: the consumer is at {row.get('position', 0):,}",
        "it is fetched when the buffers have room: see `buffers` in weft status",
    ),
    "not_there": lambda row, member: (
        f"does not exist: the log ends at {row.get('end', 0):,}",
        "",
    ),
}


def record_sentence(row: Row, member: str = "") -> Sentence:
    """The text for one record: a blocking one, or one that was looked up."""
    state, after = RECORD_IN[row["place"]](row, f" in member {member}" if member else "")
    where = f"{row['topic']}[{row['partition']}]"
    key = f" (key {row['key']})" if row.get("key") is not None else ""
    text = f"{where}: record {row['offset']:,}{key} {state}."
    return Sentence(text, after, row["place"], tuple(row.get("stack") or ()))


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
    state, after = RECORD_IN[blocker["place"]](blocker, f" in member {member}" if member else "")
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
        "has not been fetched for {}, although its log grows: {}.",
        "the fetch is restarted every 30 s; if that does not help, restart this member",
    ),
}


def unread_sentence(part: Row) -> Sentence:
    """The text for a partition that is assigned but not read."""
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


def _flag(halt: Row) -> str:
    """The target of a command, as command-line options."""
    given = ((name, halt.get(name)) for name in ("topic", "handler"))
    return "".join(f" --{name} {value}" for name, value in given if value)


def _open_transaction(halt: Row) -> tuple[str, str]:
    text = (
        f"{halt.get('topic')}[{halt.get('partition')}]: the records from offset "
        f"{halt.get('stable_end', 0):,} wait behind an open transaction of another producer "
        f"(last stable offset {halt.get('stable_end', 0):,}, end {halt.get('end', 0):,})."
    )
    after = (
        "it ends with its producer, or after its transaction.timeout.ms; `kafka-transactions.sh "
        f"--bootstrap-server HOST:9092 describe-producers --topic {halt.get('topic')} --partition "
        f"{halt.get('partition')}` names the producer, `abort` ends the transaction"
    )
    return text, after


BROKER_NEXT = (
    "restore a broker or the network; calls continue, and their records are committed when a "
    "broker answers"
)
REFUSED_NEXT = (
    "correct the user, password or certificate in kafka={...} and restart: after 30 s of "
    "refusals the run ends"
)


def _unread(halt: Row) -> tuple[str, str]:
    about = {"place_for_s": halt.get("for_s", 0.0), "place_reason": halt.get("reason", "unknown")}
    one = unread_sentence({**halt, **about, "place": halt["cause"]})
    return one.text, one.next


def _none_begins(halt: Row) -> tuple[str, str]:
    oldest = halt.get("oldest") or {}
    text = (
        f"No call{_of(halt)} has begun for {seconds(halt.get('for_s', 0.0))}: "
        f"{halt.get('calls', 0):,} wait{at_line(oldest)}."
    )
    if oldest.get("executor") == "processes":
        return text, (
            "its worker processes still open (imports, the lifespan), or its prefetch has not "
            "returned"
        )
    return text, "its prefetch has not returned: give what it calls a time-out (see the stack)"


def _outage(halt: Row) -> tuple[str, str]:
    value = "" if halt.get("value") is None else f" of {halt['value']}"
    text = (
        f"The service that {halt.get('handler')} calls has been unavailable{_for(halt)}"
        f"{_error(halt, 'error')}. "
        f"Records{value} wait ({halt.get('waiting', 0):,} could start); one probes every "
        f"{seconds(halt.get('probe_s', 0.0))}, and attempts cost nothing."
    )
    return text, "restore that service: all records continue at the first success"


def _brake(halt: Row) -> tuple[str, str]:
    text = (
        f"The brake holds {halt.get('handler')}{_for(halt)}: {halt.get('exhausted', 0):,} of its "
        f"last {halt.get('ended', 0):,} records used up their attempts, the latest one with"
        f"{_error(halt, 'error').removeprefix(':')}. {halt.get('waiting', 0):,} could start; one "
        f"probes every {seconds(halt.get('probe_s', 0.0))}."
    )
    return text, (
        "fix the cause: all continue when a probe succeeds, or by `weft resume --handler "
        f"{halt.get('handler')} --reason TEXT`"
    )


def _valve(halt: Row) -> tuple[str, str]:
    topic = halt.get("value", "its topic")
    text = (
        f"The pressure valve{_of(halt)} exports parked keys to {topic} ({halt.get('waiting', 0):,} "
        f"now, records to send: {halt.get('behind', 0):,}): {halt.get('reason', '')}."
    )
    return text, f"fix why they fail; then weft dlq replay {topic} brings them back in key order"


def _budget(halt: Row) -> tuple[str, str]:
    waiting, name = halt.get("waiting", 0), halt.get("budget")
    keys = "1 key{} waits" if waiting == 1 else f"{waiting:,} keys{{}} wait"
    per_s, most = halt.get("per_s"), halt.get("in_flight")
    found = [] if per_s is None else [f"{per_s:g} per second"]
    limits = ", ".join(found if most is None else [*found, f"{most:,} in flight"])
    text = f"{keys.format(_of(halt))} for budget {name} ({limits})"
    share, why = halt.get("share", 1.0), halt.get("why")
    if share < 1.0:
        text += f", of which this member has {100 * share:.0f} %"
    if why == "asked":
        until = clock(halt.get("until") or 0.0)
        text += f": the service asked to wait until {until}{_error(halt, 'error')}"
        return f"{text}.", "expected after a 429; lower per_s= if it happens often"
    if why == "in_flight":
        calls = halt.get("calls", 0)
        text += f": {calls:,} {'call is' if calls == 1 else 'calls are'} in flight"
        return f"{text}.", "they start as calls end; if none ends: weft why, or a timeout_s"
    if why == "share":
        return (
            f"{text}: how many partitions its topics have is not known yet.",
            "it is asked for again: are the topics and a broker there?",
        )
    if why == "link":
        text += f": the fleet's driver has not answered for {seconds(halt.get('for_s') or 0.0)}"
        return (
            f"{text}, so its lease has run out.",
            "it starts when the driver answers; without one this member finishes and leaves",
        )
    if why == "lent":
        return (
            f"{text}: all that the fleet's driver lends to this member is used.",
            "expected; it gets what others leave. To go faster, raise the numbers of the budget",
        )
    due = halt.get("due_in_s")
    text += "" if due is None else f": the next one starts in {seconds(max(0.1, due))}"
    return f"{text}.", "expected; to go faster, raise per_s= of the budget"


#: cause -> the finding, and what to do about it
HALTED_BY: dict[str, Callable[[Row], tuple[str, str]]] = {
    "unassigned": lambda halt: (
        "Nothing starts: this member has no partition.",
        "more members than partitions? a killed member's session still open? see the log",
    ),
    "paused": lambda halt: (
        f"Nothing{_of(halt)} starts: the application called app.pause().",
        f"app.resume({halt['topic']!r})" if halt.get("topic") else "app.resume()",
    ),
    "command": lambda halt: (
        (
            f"Nothing{_of(halt)} starts: paused by a command until "
            f"{clock(halt.get('until', 0.0))} ({halt.get('reason', '')})."
        ),
        f"weft resume{_flag(halt)} --reason TEXT",
    ),
    "stopping": lambda halt: (
        f"Nothing starts: a stop was requested ({halt.get('mode', 'in_flight')}).",
        "running calls are finished, up to drain_timeout_s; a second signal ends it immediately",
    ),
    "revoking": lambda halt: (
        f"Nothing{_of(halt)} starts: the partition is being revoked.",
        "running calls are awaited, up to revoke_timeout_s",
    ),
    "outputs": lambda halt: (
        "Nothing starts: the producer queue is full of outputs without acknowledgement.",
        "check that the output topic has a leader, or raise queue.buffering.max.kbytes",
    ),
    "results": lambda halt: (
        "Nothing starts: the reader of app.results() is slower than the handlers.",
        "read faster, or stop reading",
    ),
    "membership": lambda halt: (
        "Nothing starts: the polling thread was blocked, so membership must be confirmed first.",
        "a commit confirms it; was the process suspended, or the machine overloaded?",
    ),
    "broker": lambda halt: (
        f"No broker has answered{_for(halt)}: nothing is fetched or committed. Remaining: unknown.",
        BROKER_NEXT,
    ),
    "refused": lambda halt: (
        f"The brokers refuse the login: {halt.get('reason', 'no reason given').rstrip('.')}.",
        REFUSED_NEXT,
    ),
    "not_begun": _none_begins,
    "budget": _budget,
    "outage": _outage,
    "brake": _brake,
    "rate_limit": lambda halt: (
        f"Calls{_of(halt)} wait for its rate_limit_per_s.",
        "expected; to go faster, raise rate_limit_per_s on @app.consume",
    ),
    "slots": _slots,
    "map": lambda halt: (
        f"The offset map{_of(halt)} is full: {halt.get('waiting', 0):,} keys wait for room in it.",
        "normal while the frontier moves; else weft why TOPIC:PARTITION names the blocking record",
    ),
    "valve": _valve,
    "buffers": lambda halt: (
        f"Fetching{_of(halt)} is paused: the buffers are full until handlers finish records.",
        "normal under load; raise concurrency or add members to go faster",
    ),
    "open_transaction": _open_transaction,
    "start_unknown": _unread,
    "not_fetched": _unread,
}


def halt_sentence(halt: Row) -> Sentence:
    """The text for a cause that blocks all records."""
    text, after = HALTED_BY[halt["cause"]](halt)
    return Sentence(text, after, halt["cause"], rank=RANKS.get(halt["cause"], MEMBER))


def shown(count: int | None) -> str:
    """A count, or "an unknown number of"."""
    return "an unknown number of" if count is None else f"{count:,}"


def seconds(value: float) -> str:
    """A duration as text."""
    return f"{value:.1f} s" if value < 10 else f"{value:,.0f} s"


def clock(at: float) -> str:
    """A time of day in UTC as text."""
    return time.strftime("%H:%M:%SZ", time.gmtime(min(max(at, 0.0), 253e9)))


def attempts(count: int) -> str:
    """The number of attempts in words."""
    return "one attempt" if count == 1 else f"{count} attempts"


def times(count: int) -> str:
    """The number of times in words."""
    return "once" if count == 1 else f"{count} times"
