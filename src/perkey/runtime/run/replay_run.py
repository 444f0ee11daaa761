"""`perkey replay` in one process: the ordinary run over a range of one topic, without a group."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perkey.app_options import AppOptions, Hosted
from perkey.errors import ConfigError
from perkey.kafka.connect import Connection
from perkey.kafka.ports import AdminPort, KafkaUnavailable
from perkey.kafka.range_consumer import RangeConnection
from perkey.options import HandlerOptions
from perkey.routing import Routes
from perkey.runtime.run.drain import ANSWER_S, Drain
from perkey.runtime.run.preflight import connection_of, unanswered
from perkey.runtime.run.run import Run
from perkey.types import Result

#: of the group alone, which a replay does not join
_OF_GROUP = ("group.instance.id", "group.protocol", "group.remote.assignor")
FAILURES_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of records: from (included) and to (excluded) in milliseconds; one key or all."""

    topic: str
    from_ms: int
    to_ms: int
    key: bytes | None = None
    #: where outputs go in place of the handler's `output=`
    output: str | None = None


class ReplayRun(Run):
    """Handles the range with the app's handler; commits nothing."""

    def __init__(self, app: Hosted, stretch: Stretch) -> None:
        self._stretch = stretch
        #: records by outcome, outputs, and the first failures as lines
        self.outcomes: Counter[str] = Counter()
        self.outputs = 0
        self.failures: list[str] = []
        super().__init__(app, until="drained", stream=None)

    def _declared(self, app: Hosted) -> tuple[AppOptions, Sequence[HandlerOptions]]:
        stretch, routes = self._stretch, Routes(app.handlers)
        if routes.reads(stretch.topic) is None:
            known = ", ".join(routes.topics)
            raise ConfigError(f"no handler of the app consumes {stretch.topic}: there are {known}")
        handler = app.handlers[routes.handler_of(stretch.topic)]
        if handler.ledger is not None:
            raise ConfigError(
                f"{handler.name} has a ledger, which would skip what it knows: a replay has none"
            )
        if stretch.output == stretch.topic:
            raise ConfigError(f"--output {stretch.output} is the topic it reads: name another")
        delivery = "at_least_once" if handler.delivery == "exactly_once" else handler.delivery
        output = stretch.output or handler.output
        handler = replace(handler, topics=(stretch.topic,), delivery=delivery, output=output)
        options = app.options
        self._user_result = options.on_result
        options = replace(
            options,
            group=f"perkey-replay-{secrets.token_hex(6)}",
            kafka={name: value for name, value in options.kafka.items() if name not in _OF_GROUP},
            on_result=self._ended, on_commit=None, http=None, reports=None, control=None,
            allow_control=False,
        )  # fmt: skip
        return options, (handler,)

    def _connect(self) -> Connection:
        settings = connection_of(self._options, self._handlers).settings
        return RangeConnection(settings, self._stretch.topic, self._stretch.key)

    def _drain_of(self, admin: AdminPort, topics: list[str]) -> Drain:
        stretch, connection = self._stretch, self._connection
        assert isinstance(connection, RangeConnection)
        try:
            facts = admin.describe([stretch.topic], ANSWER_S)[stretch.topic]
            connection.look(facts.partitions, stretch.from_ms, stretch.to_ms)
        except KafkaUnavailable as error:
            raise unanswered(connection, error) from error
        starts = {where: start for where, (start, _) in connection.ranges.items()}
        ends = {where: end for where, (_, end) in connection.ranges.items()}
        return Drain(admin, self._options.group, starts, ends)

    def _ended(self, result: Result) -> None:
        self.outcomes[result.outcome] += 1
        self.outputs += len(result.outputs)
        if result.outcome != "done" and len(self.failures) < FAILURES_SHOWN:
            at, error = result.record, result.error
            text = "" if error is None else f": {error.line}"
            where = f"{at.topic}[{at.partition}]@{at.offset}"
            self.failures.append(f"{where} {result.outcome} ({result.attempts} attempts){text}")
        if self._user_result is not None:
            self._user_result(result)
