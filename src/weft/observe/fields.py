"""What each field of a snapshot means: the table behind docs/snapshot.md.

A test compares it with real snapshots: no field without a line here, and none here that is not.
"""

from __future__ import annotations

from weft.account.account import HALTS, PLACES

#: field -> meaning. `partitions[].x` is a field of every row, `handlers{}.x` of every value.
FIELDS: dict[str, str] = {
    "state": "`starting`, `waiting` (no partition), `running`, `paused`, `stopping`, `leaving`, "
    "`ended`, `failed`",
    "at": "UNIX seconds of this snapshot",
    "app": "which run this is",
    "app.group": "the consumer group",
    "app.member": "this member: its `group.instance.id`, else host and process id",
    "app.pid": "process id",
    "app.host": "host name",
    "app.started_at": "UNIX seconds",
    "app.version": "of Weft",
    "partitions[]": "one for each partition of this member",
    "partitions[].topic": "which",
    "partitions[].partition": "which",
    "partitions[].handler": "who handles it",
    "partitions[].epoch": "which assignment of this member: counted up with each",
    "partitions[].state": "`open`, `revoking` while it is taken away, or `assigned`: its start is "
    "not known yet; then what is not known of it is null",
    "partitions[].frontier": "the lowest offset that is not done: why is my commit stuck? "
    "because of the record there",
    "partitions[].committed": "the frontier as the broker holds it; -1: nothing committed yet",
    "partitions[].committed_since": "UNIX seconds: since when it has been that",
    "partitions[].committed_for_s": "the same as a duration",
    "partitions[].commit": "`idle`, `sent`, or `in doubt` (no answer: being read back)",
    "partitions[].highest_seen": "all up to this offset was received, or is known to be a gap",
    "partitions[].end": "end of the log as last heard of, looked at each second",
    "partitions[].done_beyond": "offsets past the frontier that need nothing more: done, or gaps",
    "partitions[].remaining": "what is really left: end - frontier - done_beyond; null: unknown",
    "partitions[].remaining_is_bound": "part of that was not fetched yet and may have gaps "
    "(compaction, transactions): not more than `remaining` is left, perhaps less",
    "partitions[].oldest_not_done": "the frontier, while something is left; else null",
    "partitions[].oldest_age_s": "age of that record by its own timestamp; null without one, and "
    "while it is not fetched",
    "partitions[].buffered": "records held that are not done",
    "partitions[].in_flight": "of these, with the handler",
    "partitions[].retrying": "of these, waiting for their next attempt",
    "partitions[].parked": "of these, given up and parked",
    "partitions[].places": "how many records are in each place, see below; their sum is all that "
    "is held",
    "partitions[].unfetched": "known from the restored offset map as not done, not fetched again "
    "yet",
    "partitions[].lag": "end of the log less the frontier, as other tools count it",
    "partitions[].map_chars": "size of the offset map; near `map_limit` records further out wait",
    "partitions[].map_used": "how full the map is, 0 to 1, of the 75 % of `map_limit` past which "
    "nothing further out starts; 1 while records wait for room in it",
    "partitions[].past_map": "keys whose next record waits for room in the map",
    "partitions[].map_limit": "what the broker stores of it, in characters",
    "partitions[].paused": "by you, or because its buffers are full",
    "partitions[].paused_by": "`user`, `buffers`",
    "partitions[].place": "null; or why it is not read: `start_unknown` (assigned, where to start "
    "is not known yet), `not_fetched` (its log grows, nothing pauses it, no record arrives)",
    "partitions[].place_for_s": "for how long",
    "partitions[].place_reason": "what was tried, and what it answered",
    "handlers{}": "by the function's name",
    "handlers{}.rate_per_s": "records done a second, of late",
    "handlers{}.latency_ms": "p50 and p99 of the calls, of late, sampled",
    "handlers{}.latency_buckets": "the same since the start as a histogram: `le` upper bounds in "
    "seconds, `counts` of each (the last: above), `sum`",
    "handlers{}.wait_buckets": "from when records came to when their first calls began: waiting in "
    "their lanes, and for a slot; sampled, as a histogram",
    "handlers{}.age_buckets": "ages of records when their calls end, sampled, as a histogram",
    "handlers{}.done": "records, since the start",
    "handlers{}.failures": "failed attempts, since the start",
    "handlers{}.retries": "attempts put off for a retry, since the start",
    "handlers{}.dead_lettered": "records, since the start",
    "handlers{}.skipped": "records, since the start",
    "handlers{}.parked": "records, since the start",
    "handlers{}.superseded": "calls whose partition went away first, since the start",
    "handlers{}.in_flight": "slots taken: calls that run (a batch is one); also what waits in the "
    "pipe of a worker process, and with `Commit(each=True)` records whose commit is on the way",
    "handlers{}.concurrency": "calls allowed at a time",
    "handlers{}.overdue": "calls past their `timeout_s` that cannot be ended",
    "handlers{}.repeats": "with a ledger: records it recognised",
    "blockers[]": "the records that hold up most, the worst first, at most 20: by how many wait "
    "behind them in their lane and how many done beyond them wait for the commit",
    "blockers[].topic": "where it is",
    "blockers[].partition": "where it is",
    "blockers[].offset": "where it is",
    "blockers[].handler": "who handles it",
    "blockers[].key": "its key as text: cut at 64 characters, what does not print escaped; null "
    "for a null key",
    "blockers[].place": "see below; `unfetched`: not fetched again since the restart",
    "blockers[].at_frontier": "it is the one that the commit cannot pass",
    "blockers[].since": "UNIX seconds: since when it is there (of what waits for a commit: since "
    "its call began); null for what never started",
    "blockers[].for_s": "the same as a duration",
    "blockers[].attempts": "calls that have failed so far",
    "blockers[].attempts_max": "what `Retry` allows; null: no end",
    "blockers[].timeout_s": "of one attempt",
    "blockers[].executor": "what calls it: `async`, `threads`, `processes`",
    "blockers[].stack": "of the three calls that run longest, from 5 s on: where they are, the "
    "outermost line first",
    "blockers[].due_in_s": "of one that waits for a retry",
    "blockers[].last_error": "`type` and `message`, cut",
    "blockers[].waiting_behind": "records queued behind it in its lane",
    "blockers[].done_beyond": "records past it that are done",
    "blockers[].story": "its failures with their times, at most 32",
    "halts[]": "why nothing starts: `cause`, see below, and the `handler`, `topic` or `partition` "
    "that it is about; of everything where none is named",
    "holds": "of `halts`, the words `outputs`, `results`, `membership` where they hold",
    "counts": "what is counted but belongs to no handler: `late_completions`, "
    "`late_acknowledgements` and `late_commit_answers` (their partition had gone, or they were "
    "given up), `records_of_closed_epochs`, `commits_refused`, `commits_in_doubt`, "
    "`partitions_revoked`, `partitions_lost`, `partitions_refetched` (not fetched for 30 s while "
    "their log grew); only those that happened",
    "failures[]": "what failed, by handler and type of error, the latest first; at most 50 kinds",
    "failures[].handler": "whose",
    "failures[].type": "of the error; `(other types)` beyond 50",
    "failures[].attempts": "failed attempts, since the start",
    "failures[].parked": "records given up so, since the start",
    "failures[].dead_lettered": "records given up so, since the start",
    "failures[].skipped": "records given up so, since the start",
    "failures[].first_at": "UNIX seconds",
    "failures[].last_at": "UNIX seconds",
    "failures[].example": "the last of them: `topic`, `partition`, `offset`, `key`, `attempt`, "
    "`message`, `traceback`, all cut and escaped",
    "commit_buckets": "seconds from a commit, or the beginning of a transaction, to its answer, "
    "as a histogram",
    "callback_errors": "raised by your callbacks",
    "dead_letters_cut": "values, headers and ends of keys that were too large for their topic",
    "poll_gap_max_s": "the longest time between two polls",
    "poll_gap_recent_s": "the same of the last 3 to 5 minutes, with the one that lasts",
}


def table() -> str:
    """The fields as a Markdown table."""
    rows = [f"| `{name}` | {meaning} |" for name, meaning in FIELDS.items()]
    return "\n".join(["| field | meaning |", "|---|---|", *rows])


def places() -> str:
    """The places of a record, as a Markdown table."""
    rows = [f"| `{place.name}` | {place.meaning} |" for place in PLACES]
    return "\n".join(["| place | a record there |", "|---|---|", *rows])


def causes() -> str:
    """The causes of `halts`, as a Markdown table."""
    rows = [f"| `{cause.name}` | {cause.meaning} |" for cause in HALTS]
    return "\n".join(["| cause | nothing starts because |", "|---|---|", *rows])
