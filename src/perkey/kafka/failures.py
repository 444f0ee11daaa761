"""Client errors: as one line with the fix, and errors of a running client that must be reported.

librdkafka retries forever. Some brokers may refuse a password that was just changed; only refusals
for half a minute end the run (`Refusals`). A quota is only logged: a broker that throttles its
clients looks like a slow one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, ThrottleEvent

from perkey.errors import ConfigError
from perkey.kafka import clib
from perkey.kafka.clientlog import Sparse
from perkey.kafka.ports import KafkaUnavailable, LoginRefused
from perkey.kafka.secrets import scrub
from perkey.kafka.settings import ClientSettings
from perkey.kafka.verdicts import poll_verdict, reason, refuses_login

# ruff: noqa: SLF001  # public constants; the underscore means "from the client, not the broker"
_ALL_DOWN: int = KafkaError._ALL_BROKERS_DOWN
_TIMED_OUT: int = KafkaError._TIMED_OUT
_FATAL: int = KafkaError._FATAL
_NO_LEADERS: int = KafkaError._NOENT
_SSL: int = KafkaError._SSL
#: most messages that are looked at for an error
QUEUED_READ_MAX = 100


_OTHER_PROTOCOL = (
    "check security.protocol and ssl.*: they must fit the listener at this address (TLS, or plain)"
)


def raised_code(error: Exception) -> int:
    """The Kafka code of an exception; the code of a time-out if it has none."""
    inner = error.args[0] if error.args else None
    return int(inner.code()) if isinstance(inner, KafkaError) else _TIMED_OUT


def passes(code: int) -> bool:
    """Whether a request with this error may succeed a moment later."""
    return poll_verdict(code) == "retry" or code == _NO_LEADERS


def root_cause(client: Consumer | Producer, error: KafkaError) -> KafkaError:
    """The error itself, or its reason if it only reports that the client has failed.

    librdkafka reports a consumer's fatal error as a message with code `_FATAL`, whether another
    member has fenced it or the id will be free in a moment.
    """
    if error.code() != _FATAL or not clib.available():
        return error
    return clib.fatal_error(client) or error


class Failures:
    """Remembers a client's connection errors: a request's own error is mostly "timed out"."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._last: KafkaError | None = None

    def note(self, error: KafkaError) -> None:
        """The client's `error_cb`: keeps the error, unless it is only "no broker answers"."""
        tls = self._last is not None and self._last.code() == _SSL
        if error.code() != _ALL_DOWN and not (tls and passes(error.code())):
            self._last = error

    def note_queued(self, consumer: Consumer) -> None:
        """Note what a consumer has in its queue: there is the reason of a request's time-out."""
        for message in consumer.consume(QUEUED_READ_MAX, 0):
            if (error := message.error()) is not None:
                self.note(error)

    def forget(self) -> None:
        """Drop errors noted during an earlier request."""
        self._last = None

    def hopeless(self) -> bool:
        """Whether the connection error is permanent."""
        return self._last is not None and poll_verdict(self._last.code()) == "stop"

    def explained(self, what: str, error: Exception) -> ConfigError | KafkaUnavailable:
        """The exception for a failed request; `what` is the request's name ("list topics").

        The response is the reason if there is one, otherwise the latest connection error.
        """
        code, text = raised_code(error), _text(error)
        answered = not passes(code)
        if self._last is not None and not answered:
            code, text = self._last.code(), self._last.str()
        text = scrub(" ".join(text.split()), self._settings.admin)
        line = f"Kafka at {self._settings.bootstrap}: cannot {what}: {text}"
        if poll_verdict(code) == "stop":
            line = f"{line}: {reason(code)}"
        elif code == _SSL or "SSL" in text or "security.protocol" in text:
            line = f"{line}: {_OTHER_PROTOCOL}"
        elif not answered:
            line = f"{line}: is it running, and is bootstrap.servers right?"
        if refuses_login(code):
            return LoginRefused(line)
        refused = answered or poll_verdict(code) == "stop"
        return ConfigError(line) if refused else KafkaUnavailable(line)


def kafka_error_text(error: Exception) -> str | None:
    """An error of the client library in one line; None for any other error."""
    if not isinstance(error, KafkaException):
        return None
    return f"Kafka: {' '.join(_text(error).split())}"


def _text(error: Exception) -> str:
    inner = error.args[0] if error.args else None
    return inner.str() if isinstance(inner, KafkaError) else (str(error) or "no response in time")


_log = logging.getLogger("perkey.kafka")

#: how long a client may get nothing but refusals
GRACE_S = 30.0
#: interval of log lines about a quota
QUOTA_LOGGED_EVERY_S = 60.0


class Refusals:
    """Remembers the errors of a client's `error_cb`. Used by the thread that serves the client."""

    def __init__(
        self, config: Mapping[str, Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`config`: the client's properties; callbacks set there are still called."""
        self._config = config
        self._clock = clock
        self._users = config.get("error_cb")
        self._users_throttle = config.get("throttle_cb")
        self._quotas = Sparse(QUOTA_LOGGED_EVERY_S, clock)
        #: additions to the client's configuration
        self.callbacks = {"error_cb": self.note, "throttle_cb": self.throttled}
        self._first_at: float | None = None
        self._last_at = 0.0
        self._last: KafkaError | None = None
        #: the last failed connection to the group's coordinator, until the consumer takes it
        self.coordinator = ""
        #: the last failed or lost connection to any broker, until the consumer takes it
        self.connection = ""

    def note(self, error: KafkaError) -> None:
        """The client's `error_cb`."""
        text = error.str()
        if " failed: " in text or ": Disconnected" in text:
            self.connection = scrub(text.partition(" (after")[0], self._config)
            if text.startswith("GroupCoordinator: ") and " failed: " in text:
                self.coordinator = self.connection
        if poll_verdict(error.code()) == "stop":
            now = self._clock()
            if self._first_at is None or now - self._last_at > GRACE_S:
                self._first_at = now
            self._last_at, self._last = now, error
        if self._users is not None:
            self._users(error)

    def throttled(self, event: ThrottleEvent) -> None:
        """The client's `throttle_cb`: a broker delays its answers."""
        if event.throttle_time > 0 and self._quotas.left_out() is not None:
            _log.warning(
                "the broker throttles this client by a quota: broker=%s client.id=%s wait_s=%.1f",
                event.broker_name,
                self._config.get("client.id", "rdkafka"),
                event.throttle_time,
            )
        if self._users_throttle is not None:
            self._users_throttle(event)

    def served(self) -> None:
        """A broker has answered: earlier refusals have passed."""
        self._first_at = None

    def lasting(self) -> tuple[str, str] | None:
        """The error code's name and the reason, if there were only refusals for too long."""
        if self._first_at is None or self._last is None:
            return None
        if self._last_at - self._first_at < GRACE_S:
            return None
        text = scrub(" ".join(self._last.str().split()), self._config)
        return self._last.name(), f"{text}: {reason(self._last.code())}"
