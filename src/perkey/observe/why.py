"""The answer of `perkey why`: causes before consequences, so the first line is the one to act on.

It is made from a snapshot of one member or a group, with the texts of `sentences`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from perkey.account.blockers import BLOCKERS_MAX
from perkey.account.snapshot import total
from perkey.observe.halts import halt_sentence
from perkey.observe.sentences import (
    BRIEF_S,
    SILENT_NEXT,
    TAKES_TIME,
    UNREAD,
    Row,
    Sentence,
    all_parked,
    at_line,
    ends_by,
    lane_sentence,
    partition_sentence,
    record_sentence,
    seconds,
    shown,
    state_of,
)
from perkey.reasons import FULL, HANGING, INTENT, LOAD, MAP, MEMBER, RANKS, RECORD, WELL

WORST = 3
#: causes that a person has asked for, and ends
PAUSES = ("command", "paused")
#: place -> what records there do, for their count
DO = {
    "parked": "are parked",
    "retrying": "wait to be retried",
    "on_hold": "are held",
    "running": "run",
}
TOPICS_MAX = 10
#: a call hangs if it runs longer than this and than three times the p99
HANGS_S = 10.0
HANGS_P99 = 3.0
#: an ack, a commit or a transaction that takes longer is reported; a table's file takes 10 s
UNANSWERED_S = 30.0
#: a frontier that has not moved for this long is stuck, not slow
STUCK_S = 10.0
#: a call that takes longer, and longer than the p99, is named if records wait behind it
SLOW_S = 1.0


def why(shot: Row, topic: str | None = None, partition: int | None = None) -> list[Sentence]:
    """Without a topic: what blocks all, and the three worst kinds of records; else its partitions.

    Causes come before consequences, so the first sentence is the one to act on.
    """
    member = shot.get("app", {}).get("member", "")
    shot = _with_blocked_loops(shot)
    if topic is None:
        halts = _silent(shot) + _bundled(shot) + _unfollowed(shot)
        # Causes first; possible consequences of the first one are not reported as normal
        found = halts + _worst(shot, member, halts)
        found = sorted(found, key=partial(_order, stops_all=_pause_stops_all(shot)))
        if found and found[0].rank <= MAP and found[0].about != "open_transaction":
            after = "a consequence of the first line, or temporary"
            found = [one._replace(next=after) if FULL <= one.rank < WELL else one for one in found]
        if not found:
            left = shown(total(shot.get("partitions", ()), "remaining"))
            text = f"Nothing is stuck: state {shot['state']}, {left} records remaining."
            found = [Sentence(text, "", "healthy", rank=WELL)]
        return found
    rows = [
        row
        for row in shot.get("partitions", ())
        if row["topic"] == topic and partition in (None, row["partition"])
    ]
    if not rows:
        where = topic if partition is None else f"{topic}[{partition}]"
        here = sorted({row["topic"] for row in shot.get("partitions", ())})
        text = f"{where} is not assigned to this member now"
        if topic in here or not here:
            text = f"{text}."
        else:
            more = f" and {len(here) - TOPICS_MAX:,} more" if len(here) > TOPICS_MAX else ""
            text = f"{text}; it has {', '.join(here[:TOPICS_MAX])}{more}."
        of_all = [] if shot.get("partitions") else [o for o in _bundled(shot) if o.rank < FULL]
        return [*of_all, Sentence(text, "", "elsewhere")]
    numbers = {None, *(row["partition"] for row in rows)}
    handlers = {None, *(row["handler"] for row in rows)}
    # The causes that concern the whole app, one of these partitions, or their handlers. A partition
    # that is not read is reported by `unread_sentence` alone.
    halts = [
        _of_member(shot, halt)
        for halt in shot.get("halts", ())
        if halt.get("topic") in (None, topic)
        and halt.get("partition") in numbers
        and halt.get("handler") in handlers
        and halt["cause"] not in UNREAD
    ]
    causes = _causes_of(shot)
    found = [
        _after_its_cause(
            causes, row, partition_sentence(row, _holds_up(shot, row), _member_of(row, member))
        )
        for row in rows
    ]
    held = any(one.about == "open_transaction" for one in halts)
    if held:  # the remaining records are blocked after all
        found = [one for one in found if one.about != "moving"]
    order = partial(_order, stops_all=_pause_stops_all({**shot, "partitions": rows}))
    return sorted(found + halts, key=lambda one: (order(one), one.about == "ready"))


def _pause_stops_all(shot: Row) -> bool:
    """Whether pauses stop each of these partitions."""
    paused = [one for one in shot.get("halts", ()) if one["cause"] in PAUSES]
    rows = shot.get("partitions", ())
    return bool(rows) and all(
        any(
            one.get("topic") in (None, row["topic"])
            and one.get("handler") in (None, row.get("handler"))
            for one in paused
        )
        for row in rows
    )


def _order(one: Sentence, *, stops_all: bool) -> float:
    """Its rank; a pause that stops all is the cause of a record that waits."""
    return RECORD - 0.5 if stops_all and one.about in PAUSES else one.rank


def _with_blocked_loops(shot: Row) -> Row:
    """The same; each async call of a member whose loop is blocked is marked."""
    blocked = {one.get("member") for one in shot.get("halts", ()) if one["cause"] == "loop"}
    if not blocked:
        return shot

    def waits(row: Row) -> bool:
        return row.get("member") in blocked and row.get("executor") == "async"

    # Calls that take all slots are a consequence
    halts = [
        one
        for one in shot["halts"]
        if one["cause"] == "loop" or not waits({**one.get("oldest", {}), **one})
    ]
    rows = [{**row, "loop_blocked": waits(row)} for row in shot.get("blockers", ())]
    return {**shot, "halts": halts, "blockers": rows}


def _worst(shot: Row, member: str, halts: Sequence[Sentence]) -> list[Sentence]:
    """The records that block most, one of each kind, except those that a cause already names."""
    named = {one.record for one in halts}
    # Hanging calls of one handler are already reported in one text.
    counted = {halt.get("handler") for halt in shot.get("halts", ()) if _none_ends(shot, halt)}
    # Records in a budget's queue are reported with that cause.
    causes = {
        (one["cause"], one.get("handler"), one.get("topic"), one.get("partition"))
        for one in shot.get("halts", ())
    }
    silent = {(p["topic"], p["partition"]) for p in shot.get("partitions", ()) if p.get("silent")}
    rows = [
        row
        for row in shot.get("blockers", ())
        if record_of(row) not in named
        and (row["topic"], row["partition"]) not in silent  # its calls ended with its member
        and _queue_of(row) not in causes
        and not row.get("loop_blocked")
        and (not _moves(shot, row) or _is_slow(shot, row))
        and (
            weighs(row)
            or (row["place"] == "running" and row["handler"] not in counted and _hangs(shot, row))
        )
    ]
    long_lanes = [row for row in shot.get("blockers", ()) if _lane_is_long(shot, row)][:1]
    rows += [row for row in long_lanes if row not in rows and record_of(row) not in named]
    kinds: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        hangs = row["place"] == "running" and _hangs(shot, row)
        error = row.get("last_error") or {}
        kinds.setdefault(
            (row["topic"], row.get("handler"), row["place"], hangs, error.get("type")), []
        ).append(row)
    is_cut = len(shot.get("blockers", ())) >= BLOCKERS_MAX
    ranked, found = _causes_of(shot), []
    for first, *alike in list(kinds.values())[:WORST]:
        one = _after_its_cause(ranked, first, _of_blocker(shot, first, member))
        if alike and first["place"] == "parked":
            one = one._replace(next=all_parked(first))
        more = f"{len(alike):,} more of this topic"
        if is_cut:  # the list of blockers is cut, the counts of each partition are not
            count = _count_alike(shot, first)
            all_of_it = f"; in all {count:,} of its records {DO[first['place']]}" if count else ""
            more = f"at least {more}{all_of_it}"
        found.append(one._replace(text=f"{one.text} The same applies to {more}.") if alike else one)
    return found


def _count_alike(shot: Row, row: Row) -> int:
    """How many records of its topic and handler are in the same place; 0: unknown."""
    if row["place"] not in DO:
        return 0
    return sum(
        part.get("places", {}).get(row["place"], 0)
        for part in shot.get("partitions", ())
        if part["topic"] == row["topic"] and part.get("handler") == row.get("handler")
    )


def _causes_of(shot: Row) -> dict[tuple[Any, ...], int]:
    """The lowest rank of the causes of each topic, partition and handler; None: of all."""
    found: dict[tuple[Any, ...], int] = {}
    for halt in shot.get("halts", ()):
        of = (halt.get("topic"), halt.get("partition"), halt.get("handler"))
        rank = RANKS.get(halt["cause"], MEMBER)
        if halt["cause"] not in (*UNREAD, "failing"):  # those stop no record
            found[of] = min(rank, found.get(of, rank))
    return found


def _after_its_cause(causes: Mapping[tuple[Any, ...], int], row: Row, one: Sentence) -> Sentence:
    """A record that could start is named after what stops its handler, topic or member."""
    if one.about != "ready":
        return one
    of = product(*((None, row.get(name)) for name in ("topic", "partition", "handler")))
    ranks = [causes[key] for key in of if key in causes]
    if not ranks:
        return one
    return one._replace(
        rank=max(one.rank, min(ranks)), next="it starts when the cause above is over"
    )


def _queue_of(row: Row) -> tuple[Any, ...]:
    """The cause whose text already counts this record."""
    return row["place"], row.get("handler"), None, None


def record_of(row: Row) -> tuple[str, int, int]:
    """The record's topic, partition and offset."""
    return row["topic"], row["partition"], row["offset"]


def _silent(shot: Row) -> list[Sentence]:
    """Silent members with partitions that no other member owns."""
    return [
        silent_sentence(
            one["member"],
            one["silent_s"],
            [row for row in shot["partitions"] if row["silent"] and row["member"] == one["member"]],
        )
        for one in shot.get("members", ())
        if one.get("silent_s")
        and any(row["silent"] and row["member"] == one["member"] for row in shot["partitions"])
    ]


def silent_sentence(member: str, silent_s: float, rows: Sequence[Row]) -> Sentence:
    """The text for a silent member whose partitions no other member owns."""
    left = total(rows, "remaining")
    text = (
        f"Member {member} has not reported for {seconds(silent_s)}: killed, suspended or "
        f"disconnected. No other member owns its partitions ({len(rows):,}); {shown(left)} records "
        "remained there."
    )
    return Sentence(text, SILENT_NEXT, "silent", rank=MEMBER)


def _unfollowed(shot: Row) -> list[Sentence]:
    """The control topic is not read: commands in force stay, new ones do not arrive."""
    control = shot.get("control") or {}
    if not control.get("unread_s"):
        return []
    text = (
        f"Nothing has come from control topic {control['topic']} for "
        f"{seconds(control['unread_s'])}: {control['reason'].rstrip('.')}. What is in force by it "
        "stays until it expires; new commands do not arrive."
    )
    after = (
        "restore the topic, and READ, WRITE and DESCRIBE on it; by the local socket commands still "
        "work"
    )
    return [Sentence(text, after, "control", rank=INTENT)]


def _bundled(shot: Row) -> list[Sentence]:
    """What blocks all records; partitions with the same cause share one text."""
    alike: dict[tuple[Any, ...], list[Row]] = {}
    causes = {halt["cause"] for halt in shot.get("halts", ())}
    for number, halt in enumerate(shot.get("halts", ())):
        if halt["cause"] in ("unassigned", "membership") and causes & {"broker", "refused"}:
            continue  # a consequence
        one = number if "partition" not in halt else (halt.get("member"), halt["topic"])
        if _blocks(halt):
            one = number
        alike.setdefault((halt["cause"], one), []).append(halt)
    found = []
    for halts in alike.values():
        first, more = _of_member(shot, halts[0]), len(halts) - 1
        also = f" The same applies to {more:,} more of this topic." if more else ""
        found.append(first._replace(text=first.text + also))
    return found


def _hangs(shot: Row, row: Row) -> bool:
    """The call has run, or ended, so long ago that it counts as hanging, not as slow."""
    p99_s = _latency_s(shot, row, "p99") or 0.0
    return bool((row.get("for_s") or 0.0) >= max(HANGS_S, HANGS_P99 * p99_s))


def _moves(shot: Row, row: Row) -> bool:
    """It has been in its place no longer than records usually are: it blocks nothing yet.

    Not one that has failed before: each attempt is short, and the record is where it was.
    """
    if row["place"] == "running" and row.get("attempts"):
        return False
    usual_s = _latency_s(shot, row, "p99") or 0.0 if row["place"] == "running" else 0.0
    return row["place"] in TAKES_TIME and (row.get("for_s") or 0.0) < max(BRIEF_S, usual_s)


def _is_slow(shot: Row, row: Row) -> bool:
    """The call takes longer than others, and records wait behind it."""
    usual_s = max(SLOW_S, _latency_s(shot, row, "p99") or 0.0)
    return bool(
        row["place"] == "running" and row["waiting_behind"] and (row.get("for_s") or 0.0) > usual_s
    )


def _lane_is_long(shot: Row, row: Row) -> bool:
    """Its lane moves, one call at a time, and what waits there takes a while."""
    if row["place"] != "running" or not _moves(shot, row) or _is_slow(shot, row):
        return False
    return bool(row["waiting_behind"] * (_latency_s(shot, row, "p50") or 0.0) >= STUCK_S)


def _latency_s(shot: Row, row: Row, quantile: str) -> float | None:
    """How long the calls of this row's handler take."""
    latency = _handler_of(shot, row).get("latency_ms") or {}
    return None if latency.get(quantile) is None else latency[quantile] / 1e3


def _handler_of(shot: Row, row: Row) -> Row:
    """The row of this row's handler; empty if it is unknown."""
    handlers = shot.get("handlers", ())
    if not isinstance(handlers, Mapping):
        handlers = {one["name"]: one for one in handlers}
    handler: Row = handlers.get(row.get("handler"), {})
    return handler


def _none_ends(shot: Row, halt: Row) -> bool:
    """All slots of a handler are taken by calls that hang."""
    return halt["cause"] == "slots" and "oldest" in halt and _hangs(shot, halt)


def _blocks(halt: Row) -> bool:
    """The map is full and its frontier does not move."""
    known = halt["cause"] == "map" and "frontier" in halt and halt.get("partition") is not None
    return bool(known and halt.get("for_s", 0.0) >= STUCK_S)


def _full_map(shot: Row, halt: Row) -> Sentence:
    """The text for a full map: how much waits for the frontier, and what blocks the frontier."""
    where = f"{halt['topic']}[{halt['partition']}]"
    row = _holds_up(shot, halt) or {}
    text = (
        f"{where} is blocked: its offset map is full. {halt.get('waiting', 0):,} keys wait, and "
        f"{halt.get('behind', 0):,} records are queued behind others, until record "
        f"{halt['frontier']:,}"
    )
    record, cause = (halt["topic"], halt["partition"], halt["frontier"]), "map"
    if row.get("offset") != halt["frontier"]:
        text += " is done."
        after = f"`perkey why {halt['topic']}:{halt['partition']}:{halt['frontier']}`"
        return Sentence(text, after, cause, (), MAP, record)
    key = f" (key {row['key']})" if row.get("key") is not None else ""
    state, after = state_of(row)
    text += f"{key} is done, which {state}."
    return Sentence(text, after, cause, tuple(row.get("stack") or ()), MAP, record)


def _of_member(shot: Row, halt: Row) -> Sentence:
    """The text for a cause; it names the member if there are several."""
    if _none_ends(shot, halt):
        oldest = halt["oldest"]
        at = time.strftime("%H:%M:%S", time.localtime(halt.get("since", 0.0)))
        key = f" (key {oldest['key']})" if oldest.get("key") is not None else ""
        calls, slots = halt.get("calls", 0), halt.get("concurrency", 0)
        text = (
            f"No call of {halt['handler']} has ended for {seconds(halt['for_s'])}: {calls:,} of "
            f"{slots:,} calls have been running since {at} or longer; the oldest is "
            f"{oldest['topic']}[{oldest['partition']}] record {oldest['offset']:,}{key}, "
            f"{seconds(oldest.get('for_s') or 0.0)}{at_line(oldest)}."
        )
        stack = tuple(oldest.get("stack") or ())
        one = Sentence(text, ends_by(oldest), "hangs", stack, HANGING, record_of(oldest))
    else:
        with_median = {**halt, "median_s": _latency_s(shot, halt, "p50")}
        one = _full_map(shot, halt) if _blocks(halt) else halt_sentence(with_median)
    if halt["cause"] == "unassigned" and shot.get("partitions"):
        one = one._replace(rank=LOAD)  # other members work
    if len(shot.get("members", ())) < 2:
        return one
    return one._replace(text=f"Member {halt['member']}: {one.text}")


def weighs(row: Row) -> bool:
    """It blocks other records, its attempts fail, or the broker has not answered it for long."""
    late = row["place"] in TAKES_TIME and row["place"] != "running" and row["at_frontier"]
    return bool(
        row["waiting_behind"]
        or row["done_beyond"]
        or row["place"] in ("parked", "retrying", "on_hold")
        or (late and (row.get("for_s") or 0.0) >= UNANSWERED_S)
    )


def _holds_up(shot: Row, part: Row) -> Row | None:
    """The record that the commit of this partition cannot pass."""
    for row in shot.get("blockers", ()):
        if row["at_frontier"] and _same(row, part):
            return dict(row)
    return part.get("blocker")


def _of_blocker(shot: Row, row: Row, member: str) -> Sentence:
    """The text for a blocking record; at the frontier it includes the stuck commit."""
    if _lane_is_long(shot, row):
        ordering = _handler_of(shot, row).get("ordering")
        return lane_sentence(row, _latency_s(shot, row, "p50"), ordering)
    rank = HANGING if row["place"] == "running" and _hangs(shot, row) else RECORD
    if _moves(shot, row):
        rank = LOAD
    for part in shot.get("partitions", ()):
        if row["at_frontier"] and _same(row, part):
            return partition_sentence(part, row, _member_of(part, member))._replace(rank=rank)
    one = record_sentence(row, _member_of(row, member))
    behind = f" {row['waiting_behind']:,} wait behind it." if row["waiting_behind"] else ""
    return one._replace(text=one.text + behind, rank=rank)


def _same(row: Row, part: Row) -> bool:
    """Both rows are of one partition."""
    return bool(row["topic"] == part["topic"] and row["partition"] == part["partition"])


def _member_of(row: Row, member: str) -> str:
    return str(row.get("member", member))
