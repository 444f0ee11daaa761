"""The meaning of each field of a snapshot: the table in docs/snapshot.md.

A test compares it with real snapshots: every field has a line here, and every line a field.
"""

from __future__ import annotations

from perkey.reasons import HALTS, PLACES

#: field -> meaning. `partitions[].x` is a field of every row, `handlers{}.x` of every value.
FIELDS: dict[str, str] = {
    "state": "`starting`, `waiting` (no partition), `running`, `paused`, `stopping`, `leaving`, "
    "`ended`, `failed`",
    "at": "UNIX seconds of this snapshot",
    "app": "identity of this run",
    "app.group": "the consumer group",
    "app.member": "this member: its `group.instance.id`, else host and process id",
    "app.pid": "process id",
    "app.host": "host name",
    "app.started_at": "UNIX seconds",
    "app.version": "version of Perkey",
    "partitions[]": "one row per partition of this member",
    "partitions[].topic": "topic",
    "partitions[].partition": "partition number",
    "partitions[].handler": "name of its handler",
    "partitions[].epoch": "number of the assignment; each assignment increments it",
    "partitions[].state": "`open`, `revoking`, or `assigned` while its start offset is unknown; "
    "unknown fields are then null",
    "partitions[].frontier": "the lowest offset that is not done: the record there blocks the "
    "commit",
    "partitions[].committed": "the committed offset at the broker; -1: nothing committed yet",
    "partitions[].committed_since": "UNIX seconds of its last change",
    "partitions[].committed_for_s": "the same as a duration",
    "partitions[].commit": "`idle`, `sent`, or `in doubt` (no response: being read back)",
    "partitions[].highest_seen": "every offset up to this one was received or is a known gap",
    "partitions[].end": "last known end of the log, refreshed every second",
    "partitions[].done_beyond": "offsets beyond the frontier that are done or gaps",
    "partitions[].remaining": "true lag: end - frontier - done_beyond; null: unknown",
    "partitions[].remaining_is_bound": "`remaining` is an upper bound: part of it is not fetched "
    "yet and may have gaps (compaction, transactions)",
    "partitions[].oldest_not_done": "the frontier while records remain; else null",
    "partitions[].oldest_age_s": "age of that record by its timestamp; null without one, and "
    "while it is not fetched",
    "partitions[].buffered": "records held that are not done",
    "partitions[].in_flight": "of these, running in the handler; calls that have not begun are in "
    "`places.not_begun`",
    "partitions[].retrying": "of these, waiting for their next attempt",
    "partitions[].parked": "of these, given up and parked",
    "partitions[].places": "number of records in each place, see below; the sum is all held "
    "records",
    "partitions[].unfetched": "not done and not in memory: restored from the offset map, or behind "
    "a parked record of their key",
    "partitions[].lag": "end of the log minus the frontier, as other tools report it",
    "partitions[].map_chars": "size of the offset map; near `map_limit`, records further out wait",
    "partitions[].map_used": "size of the map, 0 to 1, relative to 75 % of `map_limit`, beyond "
    "which no record starts; 1 while records wait for room in it",
    "partitions[].past_map": "keys whose next record waits for room in the map",
    "partitions[].not_remembered": "failing, parked and held records that the last commit had "
    "no room for: after a restart their attempts start over",
    "partitions[].map_limit": "what the broker stores, in characters",
    "partitions[].paused": "paused by `app.pause()`, by a command, or because buffers are full",
    "partitions[].paused_by": "`user`, `command`, `buffers`",
    "partitions[].place": "null, or why it is not read: `start_unknown` (assigned, start offset "
    "unknown), `not_fetched` (its log grows and no record arrives, or its leader does not answer)",
    "partitions[].place_for_s": "for how long",
    "partitions[].place_reason": "what was tried, and the response",
    "handlers{}": "one per handler, by function name",
    "handlers{}.rate_per_s": "records done per second, recently",
    "handlers{}.latency_ms": "recent p50 and p99 of the calls, sampled",
    "handlers{}.latency_buckets": "the same since the start as a histogram: `le` upper bounds in "
    "seconds, `counts` of each (the last: above), `sum`",
    "handlers{}.wait_buckets": "time from arrival to the first call: waiting in the lane and for a "
    "slot; sampled, as a histogram",
    "handlers{}.age_buckets": "age of records when their calls end, sampled, as a histogram",
    "handlers{}.done": "records, since the start",
    "handlers{}.failures": "failed attempts, since the start",
    "handlers{}.retries": "retries scheduled, since the start",
    "handlers{}.dead_lettered": "records, since the start",
    "handlers{}.skipped": "records, since the start",
    "handlers{}.parked": "records, since the start",
    "handlers{}.superseded": "calls whose partition was revoked first, since the start",
    "handlers{}.in_flight": "slots taken: running calls (a batch is one); also records in the "
    "pipe of a worker process, and with `Commit(each=True)` records whose commit is in flight",
    "handlers{}.concurrency": "maximum concurrent calls",
    "handlers{}.ordering": "`key`, `partition` or `unordered`, as declared",
    "handlers{}.overdue": "calls past their `timeout_s` that cannot be cancelled",
    "handlers{}.repeats": "with a ledger: records it recognised",
    "blockers[]": "the records that block most, the worst first, at most 20: by how many wait "
    "behind them in their lane and how many finished ones wait for the commit",
    "blockers[].topic": "topic",
    "blockers[].partition": "partition number",
    "blockers[].offset": "offset",
    "blockers[].handler": "name of its handler",
    "blockers[].key": "its key as text: cut at 64 characters, unprintable ones escaped; null "
    "for a null key",
    "blockers[].place": "see below; `unfetched`: not fetched again since the restart",
    "blockers[].at_frontier": "true if it blocks the commit",
    "blockers[].since": "UNIX seconds when it entered the place (if it waits for a commit: when "
    "its call started); null if it never started",
    "blockers[].for_s": "the same as a duration",
    "blockers[].attempts": "failed calls so far",
    "blockers[].attempts_max": "the limit of `Retry`; null: none",
    "blockers[].timeout_s": "limit of one attempt",
    "blockers[].executor": "executor: `async`, `threads`, `processes`",
    "blockers[].stack": "stack of the three calls that run longest, from 5 s on, the "
    "outermost line first",
    "blockers[].due_in_s": "time until the next attempt; null while a function as `on_exhausted` "
    "decides",
    "blockers[].last_error": "`type` and `message`, cut",
    "blockers[].waiting_behind": "records queued behind it in its lane",
    "blockers[].done_beyond": "records beyond it that are done",
    "blockers[].story": "its failures with their times, at most 32",
    "blockers[].until": "UNIX seconds at which its hold ends, or `Park` releases it or gives it "
    "up; null: neither parked nor held, or until it is released",
    "blockers[].by": "of a parked record how it was given up, as in `perkey parked ls`; of a held "
    "one who held it, by their own account; null: unknown",
    "blockers[].reason": "of the command that holds it, or the key of a parked one; null: unknown, "
    "as after a restart",
    "blockers[].error_hash": "in place of `last_error` where only a commit remembers it",
    "parked[]": "parked records, those that have been parked for longest first, at most 50; rows "
    "as in `blockers[]`, without `done_beyond`, `at_frontier`, `timeout_s`, `executor`, `stack`, "
    "`story`",
    "parked_left_out": "how many more are parked",
    "on_hold[]": "the same of records that are held by a command",
    "on_hold_left_out": "how many more are held",
    "halts[]": "what blocks all records: `cause`, see below, and the `handler`, `topic` or "
    "`partition` concerned; everything if none is given",
    "holds": "those of `outputs`, `results`, `membership` in `halts`",
    "counts": "counters that belong to no handler: `late_completions`, "
    "`late_acknowledgements` and `late_commit_answers` (the partition was revoked, or they "
    "timed out), `records_of_closed_epochs`, `commits_refused`, `commits_in_doubt`, "
    "`on_exhausted_failed` (records parked since that function raised or returned no outcome), "
    "`not_now` (records that their handler postponed), "
    "`outages` and `brakes` (times that `hold=` and `brake=` made records wait), "
    "`budget_waits` (times that a service asked a budget to wait), `late_charges` (by "
    "`record.charge`, after the partition was revoked), "
    "`partitions_revoked`, `partitions_lost`, `partitions_refetched` (not fetched for 30 s while "
    "their log grew), `parked_records_gone` (released, and deleted from the log meanwhile), "
    "`late_refetches`; only non-zero ones",
    "failures[]": "failures by handler and error type, the latest first; at most 50 types",
    "failures[].handler": "name of the handler",
    "failures[].type": "type of the error; `(other types)` beyond 50",
    "failures[].attempts": "failed attempts, since the start",
    "failures[].parked": "records with this final outcome, since the start",
    "failures[].dead_lettered": "records with this final outcome, since the start",
    "failures[].skipped": "records with this final outcome, since the start",
    "failures[].first_at": "UNIX seconds",
    "failures[].last_at": "UNIX seconds",
    "failures[].example": "the latest: `topic`, `partition`, `offset`, `key`, `attempt`, "
    "`message`, `traceback`, all cut and escaped",
    "control": "null without `App(control=)`, else how that topic is followed: `topic`, `unread_s` "
    "(for how long nothing has come back from it, from 35 s on; else 0), `reason`, `refused` "
    "(records that are no command)",
    "commit_buckets": "seconds from a commit, or the start of a transaction, to its response, "
    "as a histogram",
    "callback_errors": "exceptions raised by callbacks",
    "dead_letters_cut": "values, headers and ends of keys that were cut to fit into their topic",
    "poll_gap_max_s": "the longest time between two polls",
    "poll_gap_recent_s": "the same for the last 3 to 5 minutes, including the current one",
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
    return "\n".join(["| cause | why no record starts |", "|---|---|", *rows])
