"""The errors that Perkey raises deliberately, and what the caller should do about each.

PerkeyError
├── ConfigError          bad input: fix the option it names (exit code 2)
├── FatalError           the run ended: a fatal Kafka error, or fenced by another member (exit 1)
├── OutOfOrder           a batch acknowledged a record before an earlier one of its lane
├── NotStarted           the app is not running: call run(), start() or serve() first
├── RemoteError          replaces an error of which only the text is available; never raised
└── HandlerSignal        raised by a handler to decide what happens to its record
    ├── Reject           final: no retry, `on_exhausted` decides
    └── Delayed          chooses when the handler is called again
        ├── RetryAfter   a failed attempt
        └── NotNow       no failure: it costs no attempt
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def did_you_mean(
    name: str, known: Iterable[str], otherwise: str = "", *, alike: float = 0.6
) -> str:
    """The known name that is most like this one, as a question; `otherwise` if none is."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), n=1, cutoff=alike)
    return f"did you mean {close[0]}?" if close else otherwise


class PerkeyError(Exception):
    """Base of all errors of Perkey; never raised itself."""


class ConfigError(PerkeyError):
    """Bad input. The message is one line: what is wrong, and what to write instead."""


class FatalError(PerkeyError):
    """The run cannot continue: a fatal Kafka error, fencing, or an exhausted `Stop` record."""


class OutOfOrder(PerkeyError):
    """`batch.ack(record)` came while an earlier record of its lane was not acknowledged."""


class NotStarted(PerkeyError):
    """The app is not running."""


class RemoteError(PerkeyError):
    """Passed to `App(on_error=...)` instead of an exception that was raised in a worker process.

    `type`, `message` and `traceback` are plain strings, as in `perkey.ErrorInfo`.
    """

    def __init__(self, type: str, message: str, traceback: str = "") -> None:  # noqa: A002  # as in ErrorInfo
        super().__init__(f"{type}: {message}" if message else type)
        self.type, self.message, self.traceback = type, message, traceback

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is created again from its `args`: here the one text of `str(error)`.
        return self.__class__, (self.type, self.message, self.traceback), self.__dict__


class HandlerSignal(PerkeyError):
    """Base of exceptions with which a handler decides about its own record."""


class Reject(HandlerSignal):
    """The record can never succeed: no further attempt is made.

    `reason` goes into the dead letter, the log and the result.
    """

    def __init__(self, reason: str = "rejected by the handler") -> None:
        super().__init__(reason)
        self.reason = reason


class Delayed(HandlerSignal):
    """Base of exceptions that choose when the handler is called again; never raised itself."""

    def __init__(self, delay_s: float) -> None:
        try:
            good = 0 <= delay_s < float("inf")
        except TypeError:  # the text of a header, such as Retry-After
            good = False
        if not good:
            kind = type(self).__name__
            raise ConfigError(f"{kind}(delay_s={delay_s!r:.80}): give a number of seconds >= 0")
        super().__init__(delay_s)  # its `args`, from which a pickle creates it again
        self.delay_s = float(delay_s)


class RetryAfter(Delayed):
    """This attempt failed; the next comes after `delay_s` seconds instead of the policy's delay."""

    def __str__(self) -> str:
        return f"retry after {self.args[0]} s"


class NotNow(Delayed):
    """The record cannot be handled yet: the handler is called again after `delay_s` seconds.

    Its lane waits. This is no failure and costs no attempt: `record.attempt` stays the same.
    """

    def __str__(self) -> str:
        return f"not now: in {self.args[0]} s"
