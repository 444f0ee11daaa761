"""Why a record is where it is, and why nothing starts: one table, from the core to the page.

A row is one reason. The places of the account, the causes in `halts`, the state of the core that a
place shows, the sentences of `perkey why`, the order in which they are shown, the words that a
report may contain, the labels of the metrics and the tables of docs/snapshot.md are made from it.

`sentence` and `cure` are templates over the row of a snapshot; an empty one is computed, by the
function of the same name in `observe/sentences.py` (records) or `observe/halts.py` (all others).
"""

from __future__ import annotations

from typing import Final, NamedTuple

#: the order of sentences: a cause before its consequences
BROKER, MEMBER, HANGING, MAP, RECORD, INTENT, FULL, LOAD, WELL = range(9)


class Reason(NamedTuple):
    """One reason."""

    name: str
    meaning: str
    #: position of its sentence in the answer of `perkey why`
    rank: int = WELL
    #: the names of the states of `core/states.py` that it shows; empty: found by other means
    states: tuple[str, ...] = ()
    #: what is wrong, and what to do next
    sentence: str = ""
    cure: str = ""


#: Every place of a record that was received and is not done; each is in exactly one.
PLACES: Final = (
    Reason(
        "ready", "ready: waits for a free slot, or for a cause in `halts`",
        sentence="is ready and waits for a free slot, or for what blocks all records",
        cure="see what blocks all records: `perkey status`",
    ),
    Reason(
        "gathering", "in a batch that is filling or lingering",
        sentence="is in a batch that is filling or lingering",
        cure="it starts after Batch.linger_s at the latest; lower it to start earlier",
    ),
    Reason("behind", "queued behind an earlier record of its lane"),
    Reason(
        "past_map", "the offset map has no room for it: starts when earlier records are done",
        states=("room",),
        sentence="is beyond the reach of the offset map: it starts when the gap before it closes",
        cure="find the record at the frontier: perkey why TOPIC:PARTITION",
    ),
    Reason(
        "fetching",
        "released or given up; being read from the log again (parked records keep no bytes)",
        states=("bytes",),
        sentence="is being read from the log again: it was released, or goes to the dead-letter "
        "topic",
        cure="it continues when it is here: perkey why names the broker if that does not answer",
    ),
    Reason(
        "outage",
        "`hold=`: the service that its handler calls is unavailable; a probe must succeed first",
        states=("outage",),
        sentence="waits because the service that its handler calls is unavailable",
        cure="restore that service: perkey why names the error; all continue when a probe succeeds",
    ),
    Reason(
        "budget", "`budget=`: waits in the queue of a budget",
        states=("budget",),
        sentence="waits in the queue of its handler's budget",
        cure="expected under load; perkey why names the budget, and what it waits for",
    ),
    Reason(
        "held", "its lane waits for a call of an earlier epoch that still runs",
        states=("epoch",),
        sentence="waits for a call of an earlier assignment that still runs in its lane",
        cure="wait for that call; a restart of this member ends it",
    ),
    Reason(
        "marking", "at_most_once: its started-mark is being committed",
        states=("marking",),
        sentence="waits{lasting} for its started-mark to be committed (at_most_once)",
        cure="check that the broker is up: a commit normally takes milliseconds",
    ),
    Reason("not_begun", "its call has not started: worker processes open, or prefetch runs"),
    Reason("running", "in the handler", states=("running",)),
    Reason(
        "sending", "handled; the broker has not acknowledged its outputs or dead letter",
        states=("sending",),
        sentence="is handled; its outputs wait{lasting} for the broker's acknowledgement",
        cure="check that the output topic exists, has a leader, and this user may write to it",
    ),
    Reason(
        "committing", "Commit(each=True): done, its commit is not acknowledged",
        states=("committing",),
        sentence="is done and waits{lasting} for its commit (Commit(each=True))",
        cure="check that the broker is up: a commit normally takes milliseconds",
    ),
    Reason(
        "pending", "exactly_once: handled, waits for its transaction to end",
        states=("pending",),
        sentence="is handled and waits{lasting} for its transaction (exactly_once) or its table's "
        "file",
        cure="a table gets a file every interval_s; `transaction aborted` in the log means a "
        "failure",
    ),
    Reason(
        "retrying", "failed or postponed; waits for its next attempt", states=("retrying", "asked")
    ),
    Reason(
        "on_hold", "held by a command, until it is released or the hold expires", states=("held",)
    ),
    Reason(
        "parked", "attempts used up: stays not-done until it is released", states=("parked",)
    ),
)  # fmt: skip

#: Where a record is that was looked up and is in none of these places.
LOOKED_UP: Final = (
    Reason(
        "unfetched", "not done in the restored offset map, and not fetched again yet",
        sentence="is not done in the restored offset map, and not fetched again yet",
        cure="it arrives with the next fetches of its partition",
    ),
    Reason("done", "done", sentence="is done"),
    Reason("elsewhere", "in a partition of another member"),
    Reason(
        "not_read", "in the log, and not fetched yet",
        sentence="is in the log but not fetched yet: the consumer is at {position:,}",
        cure="it is fetched when the buffers have room: see `buffers` in perkey status",
    ),
    Reason(
        "not_there", "past the end of the log",
        sentence="does not exist: the log ends at {end:,}",
    ),
)  # fmt: skip

#: Why no record starts: in the whole app, a handler, a topic or a partition.
HALTS: Final = (
    Reason("starting", "the start waits for brokers, a ledger's database, or the lifespan", BROKER),
    Reason("unassigned", "this member has no partitions", MEMBER),
    Reason("paused", "the application called app.pause()", MEMBER),
    Reason("command", "a command paused it: `perkey control log`", INTENT),
    Reason(
        "stopping", "a stop was requested: running calls are finished (`buffered`: all held)",
        INTENT,
    ),
    Reason(
        "revoking", "the partition is being revoked", INTENT,
        sentence="Nothing{of} starts: the partition is being revoked.",
        cure="running calls are awaited, up to revoke_timeout_s",
    ),
    Reason(
        "outputs", "the producer queue is full of outputs without acknowledgement", HANGING,
        sentence="Nothing starts: the producer queue is full of outputs without acknowledgement.",
        cure="check that the output topic has a leader, or raise queue.buffering.max.kbytes",
    ),
    Reason(
        "results", "the reader of app.results() is slow", HANGING,
        sentence="Nothing starts: the reader of app.results() is slower than the handlers.",
        cure="read faster, or stop reading",
    ),
    Reason(
        "membership", "the polling thread was blocked: group membership is not confirmed", MEMBER
    ),
    Reason("broker", "the broker does not answer", BROKER),
    Reason("refused", "the broker refuses the login", BROKER),
    Reason("loop", "the handlers' loop is blocked: no async call starts or continues", HANGING),
    Reason(
        "not_begun", "no call of the handler starts: worker processes open, or prefetch runs",
        HANGING,
    ),
    Reason("rate_limit", "the handler's rate_limit_per_s is used up", LOAD),
    Reason("budget", "`budget=`: it is used up, or the service asked its callers to wait", LOAD),
    Reason("failing", "no attempt of the handler succeeds; records wait to be retried", HANGING),
    Reason("outage", "`hold=`: the service is unavailable; one record at a time probes", HANGING),
    Reason(
        "brake", "`brake=`: too many records used up their attempts; one at a time probes", HANGING
    ),
    Reason("slots", "all concurrency slots of the handler are taken", LOAD),
    Reason(
        "map", "the offset map is full: records further out start when the frontier moves", LOAD,
        sentence="The offset map{of} is full: {waiting:,} keys wait for room in it.",
        cure="normal while the frontier moves; else perkey why TOPIC:PARTITION names the blocked "
        "record",
    ),
    Reason(
        "buffers", "the partition is not fetched: its buffers are full", FULL,
        sentence="Fetching{of} is paused: the buffers are full until handlers finish records.",
        cure="normal under load; raise concurrency or add members to go faster",
    ),
    Reason(
        "open_transaction", "the next records are behind another producer's open transaction",
        MEMBER,
    ),
    Reason(
        "start_unknown", "the partition is assigned, but its start offset is unknown", MEMBER
    ),
    Reason(
        "not_fetched", "the partition's log grows and no record arrives, or its leader is silent",
        MEMBER,
    ),
)  # fmt: skip

#: the rank of each cause in `halts`
RANKS: Final = {cause.name: cause.rank for cause in HALTS}
#: the place of a record in each state of the core; queued ones are found by other means
PLACE_OF: Final = {state: place.name for place in PLACES for state in place.states}
