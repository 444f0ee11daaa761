"""The states of a record, a partition epoch and a commit, and how each may change.

A change that is not in these tables is a bug of Perkey. In the simulator records, epochs and
commits check every change (simulators.core.watched) and raise InternalError. The diagrams in
docs/architecture.md are generated from the tables (`docs/generate.py`).

The states are plain ints, not an Enum: an Enum member costs a dictionary look-up per use, and
one is stored three times for every record.
"""

from __future__ import annotations

from typing import Final

# -- a record ----------------------------------------------------------------------------------
QUEUED: Final = 0  # in its lane: waits for its turn, or is at the head and may start
MARKING: Final = 1  # at_most_once: its started-mark is on the way to the broker
RUNNING: Final = 2  # passed to the handler and not returned yet
SENDING: Final = 3  # handled; waits for the broker to acknowledge its outputs or dead letter
COMMITTING: Final = 4  # Commit(each=True): done, holds slot and lane until its commit is acked
PENDING: Final = 5  # exactly_once: handled, its outputs wait for a transaction or ride in one

# The head of a lane waits, for one of these reasons. The owner of the reason has a queue, and
# lifts it (`Partition.wait`, `Partition.lift`); an entry whose record has another state is stale.
RETRYING: Final = 6  # failed; waits for the time of its next attempt (retries.py)
PARKED: Final = 7  # attempts used up, policy Park: holds its lane, costs no worker
HELD: Final = 8  # by a command, until its time or another command
ASKED: Final = 9  # attempts used up; waits for the result of `on_exhausted`
ROOM: Final = 10  # the offset map has no room for it (offsets.py)
OUTAGE: Final = 11  # what it would call fails, and another record probes (retries.py)
BUDGET: Final = 12  # its budget lets others start first (budgets.py)
EPOCH: Final = 13  # an attempt of an earlier epoch still runs in its lane
BYTES: Final = 14  # it was kept as an offset, and is read again (memory.py)

DONE: Final = 15  # finished: counted behind the frontier or in the offset map
SUPERSEDED: Final = 16  # its epoch ended first: later results are counted and dropped

#: states of records that are handled, and are not done yet
HANDLED: Final = (SENDING, COMMITTING, PENDING)
#: reasons for which the head of a lane waits
STALLED: Final = (RETRYING, PARKED, HELD, ASKED, ROOM, OUTAGE, BUDGET, EPOCH, BYTES)
#: of these, those that last: nothing of the lane moves, and it keeps offsets only (memory.py)
PUT_OFF: Final = (PARKED, HELD)
#: those for which its lane counts as failing (`Lanes.block`)
BLOCKING: Final = (RETRYING, PARKED, HELD, ASKED, OUTAGE)
#: of these, those that commits remember
REMEMBERED: Final = (RETRYING, PARKED, HELD, ASKED)
#: states of records that have not started and are shown as queued, with their place
UNSTARTED: Final = (QUEUED, ROOM, OUTAGE, BUDGET, EPOCH, BYTES)
#: states of records without a call that has started, or whose call has to start again
WAITING: Final = (QUEUED, *STALLED)
RECORD_NAMES: Final = (
    "queued", "marking", "running", "sending", "committing", "pending", "retrying", "parked",
    "held", "asked", "room", "outage", "budget", "epoch", "bytes", "done", "superseded",
)  # fmt: skip
#: the words for users: a record whose lane does not fail is queued
SHOWN_NAMES: Final = (
    *RECORD_NAMES[:ASKED], "retrying", *["queued"] * (DONE - ROOM), *RECORD_NAMES[DONE:],
)  # fmt: skip

RECORD_TABLE: Final[dict[tuple[int, int], str]] = {
    (QUEUED, RUNNING): "a slot is free",
    (QUEUED, MARKING): "a slot is free (at_most_once)",
    (MARKING, RUNNING): "mark acknowledged",
    (MARKING, QUEUED): "mark withdrawn: no room in the map, or the epoch ends",
    (QUEUED, RETRYING): "its delay began before its turn came",
    (QUEUED, PARKED): "parked before it came here",
    (QUEUED, HELD): "its turn comes, and a command holds it or its lane",
    (QUEUED, ASKED): "exhausted before its turn came; `on_exhausted` is a function",
    (QUEUED, ROOM): "its turn comes, and the map is full",
    (QUEUED, OUTAGE): "its turn comes in an outage",
    (QUEUED, BUDGET): "its turn comes, and it has a budget",
    (QUEUED, EPOCH): "it is the first of a lane in which an old attempt runs",
    (QUEUED, BYTES): "released, and only its offset was kept",
    (QUEUED, SENDING): "exhausted before its turn came, or parked, and dead-lettered",
    (QUEUED, DONE): "exhausted before its turn came, Skip; or skipped by a command",
    (QUEUED, COMMITTING): "the same (Commit each)",
    (QUEUED, PENDING): "exhausted before its turn came (exactly_once)",
    (RUNNING, DONE): "returned, nothing to send",
    (RUNNING, SENDING): "returned outputs; or exhausted, DeadLetter",
    (RUNNING, COMMITTING): "returned (Commit each)",
    (RUNNING, PENDING): "returned (exactly_once)",
    (RUNNING, RETRYING): "failed, attempts left; or NotNow",
    (RUNNING, PARKED): "exhausted, Park",
    (RUNNING, ASKED): "exhausted, `on_exhausted` is a function",
    (RUNNING, QUEUED): "returned unhandled",
    (SENDING, DONE): "acknowledged",
    (SENDING, COMMITTING): "acknowledged (Commit each)",
    (SENDING, RETRYING): "refused, attempts left",
    (SENDING, QUEUED): "refused, behind another of its lane and batch",
    (SENDING, PARKED): "dead letter refused",
    (SENDING, ASKED): "refused and exhausted, `on_exhausted` is a function",
    (SENDING, SENDING): "outputs refused and exhausted, DeadLetter",
    (COMMITTING, DONE): "commit acknowledged",
    (PENDING, DONE): "transaction committed",
    (PENDING, RETRYING): "output refused, attempts left",
    (PENDING, PENDING): "output refused and exhausted, DeadLetter",
    (PENDING, PARKED): "output refused and exhausted, Park",
    (PENDING, ASKED): "output refused and exhausted, `on_exhausted` is a function",
    (RETRYING, QUEUED): "due",
    (PARKED, QUEUED): "released",
    (HELD, QUEUED): "the hold is over",
    (ASKED, QUEUED): "answered",
    (ROOM, QUEUED): "the map has room",
    (OUTAGE, QUEUED): "it probes, or the outage is over",
    (BUDGET, QUEUED): "the budget lets it start",
    (EPOCH, QUEUED): "the old attempt has ended",
    (BYTES, QUEUED): "read again",
    **dict.fromkeys(
        ((state, SUPERSEDED) for state in (*WAITING, RUNNING, SENDING, COMMITTING, PENDING)),
        "epoch ended",
    ),
}

# -- a partition epoch ---------------------------------------------------------------------------
OPEN: Final = 0  # owned: records arrive and start
REVOKING: Final = 1  # being revoked: nothing starts, running calls are awaited
CLOSED: Final = 2  # ended: its commits are refused, its late completions dropped

EPOCH_NAMES: Final = ("open", "revoking", "closed")
EPOCH_TABLE: Final[dict[tuple[int, int], str]] = {
    (OPEN, REVOKING): "revoke began",
    (REVOKING, CLOSED): "revoke ended",
    (OPEN, CLOSED): "lost",
}

# -- the commit of a partition ---------------------------------------------------------------------
IDLE: Final = 0  # nothing in flight
SENT: Final = 1  # one request is in flight; the next waits for its answer
IN_DOUBT: Final = 2  # no answer in time: the stored value is being read back

COMMIT_NAMES: Final = ("idle", "sent", "in doubt")
COMMIT_TABLE: Final[dict[tuple[int, int], str]] = {
    (IDLE, SENT): "due and something is new",
    (SENT, SENT): "last of its epoch, behind the one on the way",
    (SENT, IDLE): "acknowledged or refused",
    (SENT, IN_DOUBT): "no answer in time",
    (IN_DOUBT, IDLE): "value read back, or a late answer",
    (IN_DOUBT, SENT): "could not be read: asked again later; or last of its epoch",
}


class InternalError(AssertionError):
    """A bug of Perkey, never of the user: please report it with the history in its message."""
