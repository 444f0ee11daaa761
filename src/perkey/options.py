"""The options of `@app.consume`, all checked at decoration."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perkey.decoding import check_kind, is_async, takes_bytes
from perkey.errors import ConfigError, did_you_mean
from perkey.ledger.policy import SqlLedger
from perkey.numeric import is_positive, is_whole
from perkey.policies import (
    Batch,
    Brake,
    Budget,
    Commit,
    DeadLetter,
    GivenUp,
    Hold,
    OnExhausted,
    Park,
    Retry,
    Skip,
    is_topic,
    letters_of,
)
from perkey.signatures import Returns, check_call, check_signature
from perkey.types import DeliveryName, Ordering

CONCURRENCY_MAX = 10_000
THREADS_MAX = 1_000
PROCESSES_MAX = 64
ORDERINGS = ("key", "partition", "unordered")
EXECUTORS = ("auto", "async", "threads", "processes")
DELIVERIES = ("at_least_once", "at_most_once", "exactly_once")


class _Default(int):
    """A number that means "not given"."""


CONCURRENCY = _Default(100)
#: mean "not given": at_most_once has other defaults
RETRY = Retry()
PARK = Park()
COMMIT = Commit()


@dataclass(frozen=True, slots=True)
class HandlerOptions:
    """One `@app.consume` with its function. Names and defaults are the contract's."""

    function: Callable[..., Any]
    topics: tuple[str, ...]
    ordering: Ordering = "key"
    concurrency: int = CONCURRENCY
    executor: str = "auto"
    retry: Retry = RETRY
    timeout_s: float | None = None
    on_exhausted: OnExhausted = PARK
    hold: Hold | None = None
    brake: Brake | None = None
    budget: Budget | None = None
    output: str | None = None
    key: Any = "bytes"
    value: Any = "bytes"
    delivery: DeliveryName = "at_least_once"
    commit: Commit = COMMIT
    ledger: SqlLedger | None = None
    batch: Batch | None = None
    prefetch: Callable[..., Any] | None = None
    rate_limit_per_s: float | None = None

    @property
    def name(self) -> str:
        """The function's name, used in logs, snapshots and errors."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    @property
    def kind(self) -> str:
        """The executor that calls it: "async", "threads" or "processes"."""
        if self.executor != "auto":
            return self.executor
        return "async" if is_async(self.function) else "threads"

    @property
    def patterns(self) -> tuple[str, ...]:
        """Its topics that are patterns."""
        return tuple(topic for topic in self.topics if topic.startswith("^"))


def check_names(function: str, given: Iterable[str], options: Any) -> None:
    """TypeError, like Python's, for an argument that is none of these options."""
    for name in given:
        if name not in options.__annotations__:
            hint = did_you_mean(name, options.__annotations__)
            if not hint and "kafka" in options.__annotations__:
                hint = 'a property of Kafka belongs into kafka={"bootstrap.servers": ...}'
            what = f"{function}() got an unexpected keyword argument {name!r}"
            raise TypeError(f"{what}: {hint}" if hint else what)


def default_concurrency(executor: object) -> int:
    """The default of concurrent calls; for worker processes one per core."""
    if executor != "processes":
        return int(CONCURRENCY)
    allowed = getattr(os, "sched_getaffinity", None)  # only on Linux
    cores = os.cpu_count() or 1 if allowed is None else len(allowed(0))
    return min(cores, PROCESSES_MAX)


def checked(options: HandlerOptions) -> HandlerOptions:
    """The same options, or a ConfigError that names the wrong one and the fix."""
    where = f"@app.consume on {options.name}"
    if options.concurrency is CONCURRENCY:
        options = replace(options, concurrency=default_concurrency(options.executor))
    _check_function(where, options)
    _check_topics(where, options.topics)
    _one_of(where, "ordering", options.ordering, ORDERINGS)
    _one_of(where, "executor", options.executor, EXECUTORS)
    _one_of(where, "delivery", options.delivery, DELIVERIES)
    if options.executor == "async" and not is_async(options.function):
        raise ConfigError(f'{where}: executor="async" needs an `async def` handler')
    if options.executor == "threads" and is_async(options.function):
        raise ConfigError(
            f'{where}: executor="threads" needs a plain `def` handler: an `async def` one runs on '
            'the loop, executor="auto"'
        )
    limits = {"threads": THREADS_MAX, "processes": PROCESSES_MAX}
    limit = limits.get(options.kind, CONCURRENCY_MAX)
    count = options.concurrency
    if not is_whole(count, 1, limit):
        why = ": it is the number of worker processes" if options.kind == "processes" else ""
        raise ConfigError(
            f"{where}: concurrency={count!r}: give a whole number from 1 to {limit} for "
            f"{options.kind}{why}"
        )
    _positive(where, "timeout_s", options.timeout_s)
    _positive(where, "rate_limit_per_s", options.rate_limit_per_s)
    _check_policies(where, options)
    options = _checked_delivery(where, options)
    for name, kind in (("key", options.key), ("value", options.value)):
        check_kind(where, name, kind)
        if takes_bytes(kind):
            check_call(f"{where}: {name}=", "decode", kind, ("data",))
    output = options.output
    if output is not None:
        if not isinstance(output, str) or not output:  # type: ignore[redundant-expr]  # what users pass
            raise ConfigError(f"{where}: output={output!r}: give the name of a topic, or None")
        if not is_topic(output):
            raise ConfigError(
                f"{where}: output={output!r:.80} cannot be a topic: letters, digits, '.', '_' "
                "and '-', at most 249"
            )
        if output in options.topics:
            raise ConfigError(
                f"{where}: output={output!r} is a topic it reads, which would be an endless loop"
            )
    batch = options.batch
    if batch is not None and not isinstance(batch, Batch):
        raise ConfigError(f"{where}: batch={batch!r}: give perkey.Batch(...), or None")
    if batch is not None and batch.ack == "explicit" and options.delivery != "at_least_once":
        raise ConfigError(
            f'{where}: Batch(ack="explicit") requires delivery="at_least_once": with '
            f'{options.delivery} use Batch(ack="all")'
        )
    if options.prefetch is not None and not callable(options.prefetch):
        raise ConfigError(
            f"{where}: prefetch={options.prefetch!r} is not callable: give a function that takes a "
            "list of records"
        )
    if options.prefetch is not None:
        check_call(f"{where}: prefetch=", "load", options.prefetch, ("records",))
    _check_hold(where, options)
    _check_budget(where, options)
    _check_ledger(where, options)
    return options


def _check_function(where: str, options: HandlerOptions) -> None:
    function = options.function
    if not callable(function):
        raise ConfigError(f"{where}: the handler is not callable: decorate a function")
    call = getattr(function, "__call__", None)  # noqa: B004  # the method itself is looked at
    if inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(call):
        raise ConfigError(
            f"{where}: an async generator cannot be a handler: return a list of perkey.Produce, or "
            "use a plain generator"
        )
    wanted: tuple[str, ...] = ("batch",) if options.batch is not None else ("record",)
    if options.ledger is not None:
        wanted = (*wanted, "tx")
    explicit = isinstance(options.batch, Batch) and options.batch.ack == "explicit"
    if explicit or options.ledger is not None:
        returns: Returns = "nothing"
    else:
        returns = "outputs" if options.output is None else "values"
    check_signature(where, function, wanted, returns, options.value)


def _check_topics(where: str, topics: Sequence[str]) -> None:
    if not topics:
        raise ConfigError(
            f"{where}: give a topic, a list of topics, or a pattern that starts with ^"
        )
    for topic in topics:
        if not isinstance(topic, str) or not topic:  # type: ignore[redundant-expr]  # users pass other types
            raise ConfigError(f"{where}: topic {topic!r} is not a name")
        if topic.startswith("^"):
            try:
                re.compile(topic)
            except re.error as error:
                raise ConfigError(f"{where}: pattern {topic!r} is not valid: {error}") from None
            if re.search(r"\\[dD]|\(\?", topic):
                # librdkafka matches it, too: there \d is the letter d, and nothing would match.
                raise ConfigError(
                    f"{where}: pattern {topic!r} is not for librdkafka: write [0-9] for \\d and "
                    "plain groups instead of (?...)"
                )
        elif not is_topic(topic):
            raise ConfigError(
                f"{where}: {topic!r} cannot be a topic: Kafka allows letters, digits, '.', '_' and "
                "'-', at most 249; patterns start with ^"
            )


def _one_of(where: str, name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        choices = ", ".join(f'"{choice}"' for choice in allowed)
        raise ConfigError(f"{where}: {name}={value!r} is not known: choose one of {choices}")


def _positive(where: str, name: str, value: object) -> None:
    if value is not None and not is_positive(value):
        raise ConfigError(f"{where}: {name}={value!r}: give a number above 0, or None")


def _check_policies(where: str, options: HandlerOptions) -> None:
    if not isinstance(options.retry, Retry):
        raise ConfigError(f"{where}: retry={options.retry!r}: give perkey.Retry(...)")
    if callable(options.retry.delay_s):
        does, wanted = " that returns the seconds", ("attempt", "error")
        check_plain(f"{where}: Retry(delay_s=...)", "delay_s", options.retry.delay_s, wanted, does)
    if not isinstance(options.commit, Commit):
        raise ConfigError(f"{where}: commit={options.commit!r}: give perkey.Commit(...)")
    policy: Any = options.on_exhausted
    if not isinstance(policy, GivenUp):
        # A function as `on_exhausted`: the checks that are possible before a record fails
        if not callable(policy) or isinstance(policy, type):
            raise ConfigError(
                f"{where}: on_exhausted={policy!r}: give perkey.Park(), perkey.DeadLetter(TOPIC), "
                "perkey.Skip(), perkey.Stop(), or a function (record, error) that returns one of "
                "these"
            )
        does = " that decides from the record and the error, and does no I/O"
        check_plain(f"{where}: on_exhausted=", "decide", policy, ("record", "error"), does)
        if options.delivery == "at_most_once":
            raise ConfigError(
                f'{where}: on_exhausted= cannot be a function with delivery="at_most_once", which '
                "neither parks nor retries: give perkey.Skip(), perkey.DeadLetter(TOPIC) or "
                "perkey.Stop()"
            )
    if isinstance(policy, DeadLetter) and policy.transform is not None:
        check_quick(f"{where}: DeadLetter(transform=...)", policy.transform, "redact")
    for topic in options.topics:
        if letters_of(policy, topic) == topic:
            like = 'DeadLetter("{topic}.dlq")'
            if isinstance(policy, Park):
                like = 'Park(dead_letter="{topic}.dlq")'
            raise ConfigError(
                f"{where}: the dead-letter topic {topic!r} is the topic it reads: name another, "
                f"such as perkey.{like}"
            )


def _checked_delivery(where: str, options: HandlerOptions) -> HandlerOptions:
    """Check the table of design.md 3.2 of valid combinations; sets the delivery's defaults."""
    if options.commit.each and options.delivery != "at_least_once":
        raise ConfigError(
            f'{where}: Commit(each=True) requires delivery="at_least_once": '
            f"{options.delivery} already commits each record's progress in its own way"
        )
    if options.delivery != "at_most_once":
        return options
    if options.retry is RETRY:
        options = replace(options, retry=Retry(attempts=1))
    if options.retry.attempts != 1:
        raise ConfigError(
            f'{where}: delivery="at_most_once" never handles a record twice: omit retry=, or give '
            "perkey.Retry(attempts=1)"
        )
    if options.on_exhausted is PARK:
        options = replace(options, on_exhausted=Skip())
    if isinstance(options.on_exhausted, Park):
        raise ConfigError(
            f'{where}: Park() would try again after a restart, which delivery="at_most_once" '
            "excludes: give perkey.Skip(), perkey.DeadLetter(TOPIC) or perkey.Stop()"
        )
    return options


def _check_hold(where: str, options: HandlerOptions) -> None:
    hold, brake = options.hold, options.brake
    if brake is not None and not isinstance(brake, Brake):
        raise ConfigError(f"{where}: brake={brake!r:.80}: give perkey.Brake(...), or None")
    if hold is None:
        return
    if not isinstance(hold, Hold):
        raise ConfigError(f"{where}: hold={hold!r:.80}: give perkey.Hold(on=...), or None")
    if options.delivery == "at_most_once":
        raise ConfigError(
            f'{where}: hold= tries records again, which delivery="at_most_once" excludes: omit it'
        )
    if hold.by is None:
        return
    check_quick(f"{where}: Hold(by=...)", hold.by)
    if options.batch is not None:
        raise ConfigError(
            f"{where}: Hold(by=...) cannot be combined with batch=: a batch fails as one, and its "
            "records may have several values; omit by="
        )


def check_plain(
    what: str, name: str, function: Callable[..., Any], wanted: tuple[str, ...], does: str
) -> None:
    """ConfigError if a callback, whose result nothing awaits, cannot be called with these.

    `name`, `does`: of the plain function that the message proposes.
    """
    if is_async(function):
        raise ConfigError(f"{what} is an async function: make it a plain `def`{does}")
    check_call(what, name, function, wanted)


def check_quick(what: str, function: Any, name: str = "by") -> None:
    """A function of one record that is called for many; `name`: of the one in the example."""
    check_plain(what, name, function, ("record",), " that does no I/O")


def _check_budget(where: str, options: HandlerOptions) -> None:
    budget = options.budget
    if budget is None:
        return
    if not isinstance(budget, Budget):
        raise ConfigError(
            f'{where}: budget={budget!r:.80}: give perkey.Budget("NAME", per_s=...), or None'
        )
    if options.delivery == "at_most_once":
        raise ConfigError(
            f'{where}: budget= cannot be combined with delivery="at_most_once": records start when '
            "their marks are committed, many in one moment; use rate_limit_per_s"
        )
    if options.batch is not None:
        raise ConfigError(
            f"{where}: budget= cannot be combined with batch=: what a call costs is known only "
            "when its batch is full, and its records may be of several values; use rate_limit_per_s"
        )
    for name in ("by", "cost"):
        function = getattr(budget, name)
        if function is not None:
            check_quick(f"{where}: Budget({name}=...)", function)


def check_budgets(handlers: Sequence[HandlerOptions]) -> None:
    """ConfigError if two handlers name one budget with different numbers."""
    first: dict[str, HandlerOptions] = {}
    for handler in handlers:
        if handler.budget is None:
            continue
        other = first.setdefault(handler.budget.name, handler)
        assert other.budget is not None
        mine, its = (
            f"per_s={budget.per_s}, in_flight={budget.in_flight}"
            for budget in (handler.budget, other.budget)
        )
        if mine != its:
            raise ConfigError(
                f"@app.consume on {handler.name}: budget {handler.budget.name!r} has {mine}, and "
                f"{its} on {other.name}: give both the same perkey.Budget, or two names"
            )


def _check_ledger(where: str, options: HandlerOptions) -> None:
    ledger = options.ledger
    if ledger is None:
        return
    if not isinstance(ledger, SqlLedger):
        raise ConfigError(f"{where}: ledger={ledger!r}: give perkey.SqlLedger(URL), or None")
    if options.delivery != "at_least_once":
        raise ConfigError(
            f'{where}: a ledger requires delivery="at_least_once": it makes the handler\'s writes '
            f"happen once, {options.delivery} has a different guarantee"
        )
    if options.output is not None:
        raise ConfigError(
            f"{where}: output= cannot be combined with a ledger: outputs could be lost between the "
            "database's commit and Kafka's"
        )
    if options.batch is not None and options.batch.ack == "explicit":
        raise ConfigError(
            f'{where}: Batch(ack="explicit") cannot be combined with a ledger: the batch is one '
            'transaction; use Batch(ack="all")'
        )
    if ledger.id is not None:
        does = " that returns the id"
        check_plain(f"{where}: SqlLedger(id=...)", "id", ledger.id, ("record",), does)
    ledger.url_for(use_async=is_async(options.function))
    if importlib.util.find_spec("sqlalchemy") is None:
        raise ConfigError(f"{where}: a ledger needs SQLAlchemy: pip install 'perkey[sql]'")


def topics_of(where: str, topics: Any) -> tuple[str, ...]:
    """A topic, or several, as a tuple."""
    if isinstance(topics, str):
        return (topics,)
    if isinstance(topics, list | tuple | set | frozenset):
        return tuple(topics)
    if callable(topics):
        name = getattr(topics, "__name__", "the function")
        raise ConfigError(f'{where} needs a topic: write {where}("TOPIC") above {name}')
    raise ConfigError(
        f"{where}: {topics!r} is not a topic: write @app.consume(TOPIC) with a name, a list of "
        "names, or a pattern that starts with ^"
    )
