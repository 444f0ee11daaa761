"""Gates: why a member, a handler or a partition starts no calls.

Each has one `Gate`. A record starts if and only if no reason is in the gates of its member, its
handler and its partition. What closes a gate with a reason opens it with the same one, by an event;
nothing polls:

    gate of     reason       opened by
    member      OUTPUTS      the producer has room for outputs again
                RESULTS      results are read again
                MEMBERSHIP   the broker has confirmed that the member is in its group
                STOPPING     nothing: the run ends
    handler     OUTAGE       a probe that is due, or succeeds; `Hold.max_s`; a command
                BRAKE        a probe that is due, or succeeds; a command
                TRANSACTION  transactions have stored enough of the outputs that wait
    partition   PAUSED       a resume by the app
                COMMAND      a resume by command
                REVOKING     nothing: the epoch ends
"""

from __future__ import annotations

from typing import Final

OUTPUTS: Final = "outputs"
RESULTS: Final = "results"
MEMBERSHIP: Final = "membership"
#: a stop that starts nothing more
STOPPING: Final = "stopping"
#: what the whole handler calls fails, and no probe is due
OUTAGE: Final = "outage"
#: too many records of the handler used up their attempts, and no probe is due
BRAKE: Final = "brake"
#: exactly_once: outputs of a quarter of the buffers wait for a transaction
TRANSACTION: Final = "transaction"
#: by the app
PAUSED: Final = "paused"
#: paused by command
COMMAND: Final = "command"
#: the epoch is being revoked, or has ended
REVOKING: Final = "revoking"

_NONE: Final[frozenset[str]] = frozenset()


class Gate:
    """The reasons why its member, handler or partition starts no calls; none: it starts them."""

    __slots__ = ("reasons",)

    def __init__(self) -> None:
        #: replaced with each change, so that other threads may read it
        self.reasons = _NONE

    def close(self, why: str) -> None:
        """Start nothing, for this reason; the same again changes nothing."""
        self.reasons |= {why}

    def open(self, why: str) -> None:
        """This reason is over."""
        self.reasons -= {why}

    def put(self, why: str, *, on: bool) -> None:
        """Close it with this reason, or open it."""
        (self.close if on else self.open)(why)
