"""Events of a running client that must not be missed: a refused login, a quota.

librdkafka tries for ever. A password that was changed a moment ago may be refused by some brokers
for a moment; only refusals for half a minute end the run. A quota is only logged: a broker that
makes its clients wait looks like a slow one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, ThrottleEvent

from weft.kafka.secrets import scrub
from weft.kafka.verdicts import poll_verdict, reason

_log = logging.getLogger("weft.kafka")

#: so long nothing but refusals may come
GRACE_S = 30.0
#: interval of log lines about a quota
QUOTA_LOGGED_EVERY_S = 60.0


class Refusals:
    """Remembers the errors of a client's `error_cb`. Used by the thread that serves the client."""

    def __init__(
        self, config: Mapping[str, Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`config`: the client's properties; callbacks of the user's are still called."""
        self._config = config
        self._clock = clock
        self._users = config.get("error_cb")
        self._users_throttle = config.get("throttle_cb")
        self._quota_logged_at = -QUOTA_LOGGED_EVERY_S
        #: for the client's configuration
        self.callbacks = {"error_cb": self.note, "throttle_cb": self.throttled}
        self._first_at: float | None = None
        self._last_at = 0.0
        self._last: KafkaError | None = None

    def note(self, error: KafkaError) -> None:
        """The client's `error_cb`."""
        if poll_verdict(error.code()) == "stop":
            now = self._clock()
            if self._first_at is None or now - self._last_at > GRACE_S:
                self._first_at = now
            self._last_at, self._last = now, error
        if self._users is not None:
            self._users(error)

    def throttled(self, event: ThrottleEvent) -> None:
        """The client's `throttle_cb`: a broker holds its answers back."""
        now = self._clock()
        if event.throttle_time > 0 and now - self._quota_logged_at >= QUOTA_LOGGED_EVERY_S:
            self._quota_logged_at = now
            _log.warning(
                "the broker throttles this client by a quota: broker=%s client.id=%s wait_s=%.1f",
                event.broker_name,
                self._config.get("client.id", "rdkafka"),
                event.throttle_time,
            )
        if self._users_throttle is not None:
            self._users_throttle(event)

    def served(self) -> None:
        """A broker has answered: what was refused before has passed."""
        self._first_at = None

    def lasting(self) -> tuple[str, str] | None:
        """The name of the code and the reason, when nothing but refusals came for too long."""
        if self._first_at is None or self._last is None:
            return None
        if self._last_at - self._first_at < GRACE_S:
            return None
        text = scrub(" ".join(self._last.str().split()), self._config)
        return self._last.name(), f"{text}: {reason(self._last.code())}"
