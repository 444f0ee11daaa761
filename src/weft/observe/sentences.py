"""Why is it stuck? One sentence, and what to do next, for every place and every cause.

Made from a snapshot alone (and from what was found of one record), so it is the same on this
machine, over HTTP and from a group's reports.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from weft.types import ErrorInfo

Row = Mapping[str, Any]

WORST = 3


class Sentence(NamedTuple):
    """What is so, and what to do about it."""

    text: str
    next: str
    #: the place or cause it speaks of
    about: str

    def __str__(self) -> str:
        return f"{self.text} Next: {self.next}" if self.next else self.text

    def row(self) -> dict[str, str]:
        """As JSON."""
        return {"text": self.text, "next": self.next, "about": self.about}


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
    end = "timeout_s on @app.consume would end it; none is set"
    if row.get("timeout_s") is not None:
        end = f"its timeout_s={row['timeout_s']:g} ends it, or marks it overdue where it cannot"
    return f"runs{member}{_for(row)}, {_attempt(row)}", end


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
    return text, "fix the cause and restart: a restart tries it again; or use DeadLetter or Skip"


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
        f"is handled and waits{_for(row)} for its transaction (exactly_once)",
        "transactions that fail again and again are in the log: look for `transaction aborted`",
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
    return Sentence(f"{where}: record {row['offset']:,}{key} {told}.", after, row["place"])


# -- a partition -----------------------------------------------------------------------------------


def partition_sentence(part: Row, blocker: Row | None, member: str = "") -> Sentence:
    """Of one partition: since when its commit stands, and what it waits for."""
    where = f"{part['topic']}[{part['partition']}]"
    if not part["remaining"]:
        return Sentence(f"{where} has nothing left to do: all is done and read.", "", "drained")
    if part["committed"] < 0:
        text = f"{where} has no commit yet."
    else:
        at = time.strftime("%H:%M:%S", time.localtime(part["committed_since"]))
        stands = seconds(part["committed_for_s"])
        text = f"{where} is committed to {part['committed']:,} since {at} ({stands})."
    if blocker is None:
        text += f" {part['remaining']:,} records are left; none holds it up."
        return Sentence(text, "", "moving")
    told, after = RECORD_IN[blocker["place"]](blocker, f" in member {member}" if member else "")
    key = f" (key {blocker['key']})" if blocker.get("key") is not None else ""
    text += f" Record {blocker['offset']:,}{key} {told}."
    text += (
        f" {blocker['done_beyond']:,} records beyond it are done (map {part['map_chars']:,} of "
        f"{part['map_limit']:,} characters), {blocker['waiting_behind']:,} wait behind it."
    )
    if part.get("silent"):
        text += " Its member is silent: killed, or cut off."
        after = SILENT_NEXT
    return Sentence(text, after, blocker["place"])


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
        f"The broker does not answer{_for(halt)}: nothing is fetched or committed.",
        "what runs goes on, and all is committed when it is back; weft broker status, the log",
    ),
    "rate_limit": lambda halt: (
        f"Calls{_of(halt)} wait for its rate_limit_per_s.",
        "raise rate_limit_per_s on @app.consume if that was not meant",
    ),
    "slots": lambda halt: (
        f"All calls{_of(halt)} that its concurrency allows are taken.",
        "normal under load; if remaining grows, raise concurrency, or add members",
    ),
    "buffers": lambda halt: (
        f"Nothing more{_of(halt)} is fetched: the buffers are full.",
        "normal under load; buffer_records and buffer_bytes say how full",
    ),
    "open_transaction": _open_transaction,
}


def halt_sentence(halt: Row) -> Sentence:
    """Why nothing starts."""
    text, after = HALTED_BY[halt["cause"]](halt)
    return Sentence(text, after, halt["cause"])


# -- the answer to `weft why` ----------------------------------------------------------------------


def why(shot: Row, topic: str | None = None, partition: int | None = None) -> list[Sentence]:
    """For nothing in particular: why nothing starts and the three worst; else the partitions."""
    member = shot.get("app", {}).get("member", "")
    if topic is None:
        worst = [_of_blocker(shot, row, member) for row in shot.get("blockers", ()) if weighs(row)][
            :WORST
        ]
        return _bundled(shot) + worst or [_healthy(shot)]
    rows = [
        row
        for row in shot.get("partitions", ())
        if row["topic"] == topic and partition in (None, row["partition"])
    ]
    if not rows:
        where = topic if partition is None else f"{topic}[{partition}]"
        return [Sentence(f"{where} is not with this member now.", "", "elsewhere")]
    halts = _concerning(shot.get("halts", ()), topic, rows)
    told = [partition_sentence(row, _holds_up(shot, row), _member_of(row, member)) for row in rows]
    held = any(halt["cause"] == "open_transaction" for halt in halts)
    if held:  # what is left is held up after all
        told = [one for one in told if one.about != "moving"]
    return told + [_of_member(shot, halt) for halt in halts]


def _bundled(shot: Row) -> list[Sentence]:
    """Why nothing starts: of many partitions with the same cause one, and how many more."""
    alike: dict[tuple[Any, ...], list[Row]] = {}
    for number, halt in enumerate(shot.get("halts", ())):
        one = number if "partition" not in halt else (halt.get("member"), halt["topic"])
        alike.setdefault((halt["cause"], one), []).append(halt)
    found = []
    for halts in alike.values():
        told, more = _of_member(shot, halts[0]), len(halts) - 1
        so = f" So it is with {more:,} more of this topic." if more else ""
        found.append(told._replace(text=told.text + so))
    return found


def _of_member(shot: Row, halt: Row) -> Sentence:
    """Where several members are told of, it is said who halts."""
    told = halt_sentence(halt)
    if len(shot.get("members", ())) < 2:
        return told
    return told._replace(text=f"Member {halt['member']}: {told.text}")


def weighs(row: Row) -> bool:
    """It holds up others, or is not simply on its way."""
    return bool(row["waiting_behind"] or row["done_beyond"]) or row["place"] in (
        "parked",
        "retrying",
    )


def _concerning(halts: Iterable[Row], topic: str, rows: Sequence[Row]) -> list[Row]:
    """Those about all, or about one of these partitions of a topic, or their handlers."""
    numbers = {None, *(row["partition"] for row in rows)}
    handlers = {None, *(row["handler"] for row in rows)}
    return [
        halt
        for halt in halts
        if halt.get("topic") in (None, topic)
        and halt.get("partition") in numbers
        and halt.get("handler") in handlers
    ]


def _holds_up(shot: Row, part: Row) -> Row | None:
    """The record that the commit of this partition cannot pass."""
    for row in shot.get("blockers", ()):
        if row["at_frontier"] and _same(row, part):
            return dict(row)
    return part.get("blocker")


def _of_blocker(shot: Row, row: Row, member: str) -> Sentence:
    """A blocker at its partition's frontier is told with the commit that stands there."""
    for part in shot.get("partitions", ()):
        if row["at_frontier"] and _same(row, part):
            return partition_sentence(part, row, _member_of(part, member))
    told = record_sentence(row, _member_of(row, member))
    behind = f" {row['waiting_behind']:,} wait behind it." if row["waiting_behind"] else ""
    return told._replace(text=told.text + behind)


def _same(row: Row, part: Row) -> bool:
    """They are of one partition."""
    return bool(row["topic"] == part["topic"] and row["partition"] == part["partition"])


def _member_of(row: Row, member: str) -> str:
    return str(row.get("member", member))


def _healthy(shot: Row) -> Sentence:
    left = sum(row["remaining"] for row in shot.get("partitions", ()))
    text = f"Nothing is stuck: state {shot['state']}, {left:,} records left."
    return Sentence(text, "", "healthy")


def seconds(value: float) -> str:
    """A duration as a person says it."""
    return f"{value:.1f} s" if value < 10 else f"{value:,.0f} s"


def attempts(count: int) -> str:
    """How many."""
    return "one attempt" if count == 1 else f"{count} attempts"


def times(count: int) -> str:
    """How often."""
    return "once" if count == 1 else f"{count} times"
