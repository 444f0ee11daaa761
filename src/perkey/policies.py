"""The options of a handler as small frozen values, checked when they are created."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import InitVar, dataclass, field
from typing import Any, Literal

from perkey.errors import ConfigError
from perkey.numeric import is_between, is_positive, is_seconds, is_whole
from perkey.types import Record

PARKED_S_MAX = 365 * 86_400
#: the share of the offset map at which `Park(dead_letter=)` gives records up
AT_MAP = 0.7
BUDGET_NAME_CHARS_MAX = 100
BUDGET_PER_S_MAX = 1e9
BUDGET_IN_FLIGHT_MAX = 1_000_000

Delay = float | Callable[[int, BaseException], float]


# The checks take `object`: at run time a user's value may be of any type, whatever its annotation.
def _seconds(owner: str, name: str, value: object, *, zero: bool = True) -> None:
    if not (is_seconds(value) if zero else is_positive(value)):
        floor = ">= 0" if zero else "> 0"
        raise ConfigError(f"{owner}({name}={value!r}): give a number of seconds {floor}")


def _is_exception_type(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def is_topic(name: str) -> bool:
    """Whether Kafka allows a topic of this name."""
    return bool(re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name)) and name not in (".", "..")


def is_c_text(text: str) -> bool:
    """Whether librdkafka and PostgreSQL take it: the Kafka client aborts, or cuts it short."""
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _letters_topic(option: str, topic: str) -> None:
    """Refuse a name that Kafka does not allow."""
    if not is_topic(topic.replace("{topic}", "t")):
        raise ConfigError(
            f"{option} cannot be a topic: letters, digits, '.', '_' and '-', at most 249; "
            "{topic} is the only placeholder"
        )


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how soon a failing record is tried again.

    `attempts`: calls in total, with the first one; None: no limit.
    `delay_s`: before the second attempt; each further one is `multiplier` times longer, up to
    `delay_max_s`. Or a callable `(attempt, error) -> seconds`.
    `jitter`: the share by which a delay is spread, 0 to 1.
    `final`: exception types that end the record without a retry.
    `remember`: the number of attempts and the time of the next one are part of the commit and
    survive restarts and rebalances, as far as there is room.
    """

    attempts: int | None = 5
    delay_s: Delay = 0.1
    multiplier: float = 2.0
    delay_max_s: float = 30.0
    jitter: float = 0.1
    final: tuple[type[BaseException], ...] = ()
    remember: bool = True

    def __post_init__(self) -> None:
        if self.attempts is not None and not is_whole(self.attempts, 1):
            raise ConfigError(
                f"Retry(attempts={self.attempts!r}): give 1 or more, or None for no limit"
            )
        if not callable(self.delay_s):
            _seconds("Retry", "delay_s", self.delay_s)
        _seconds("Retry", "delay_max_s", self.delay_max_s)
        if not is_between(self.multiplier, 1, 1000):
            raise ConfigError(
                f"Retry(multiplier={self.multiplier!r}): give a number from 1 to 1000"
            )
        if not is_between(self.jitter, 0, 1):
            raise ConfigError(f"Retry(jitter={self.jitter!r}): give a share from 0 to 1")
        if not _is_bool(self.remember):
            raise ConfigError(f"Retry(remember={self.remember!r}): give True or False")
        given: object = self.final
        kinds = given if isinstance(given, tuple) else (given,)
        if not all(map(_is_exception_type, kinds)):
            raise ConfigError(f"Retry(final={self.final!r}): give a tuple of exception types")
        object.__setattr__(self, "final", kinds)


@dataclass(frozen=True, slots=True)
class Hold:
    """Wait while the service that the handler calls is unavailable: such failures are free.

    All records of the handler wait; one at a time probes, and at the first success all continue.

    `on`: exception types of an outage; one type or a tuple.
    `probe_s`: seconds between two probes.
    `by`: a quick function that gets the record as it was fetched, key and value as bytes, and
    returns the unavailable part, such as a tenant or a host: only records of that value wait.
    `max_s`: after this many seconds the retry policy takes over.
    """

    on: tuple[type[BaseException], ...]
    probe_s: float = 5.0
    by: Callable[[Any], Hashable] | None = None
    max_s: float = 3_600.0

    def __post_init__(self) -> None:
        given: object = self.on
        kinds = given if isinstance(given, tuple) else (given,)
        if not kinds or not all(map(_is_exception_type, kinds)):
            raise ConfigError(f"Hold(on={self.on!r:.80}): give exception types, one or a tuple")
        object.__setattr__(self, "on", kinds)
        for name in ("probe_s", "max_s"):
            _seconds("Hold", name, getattr(self, name), zero=False)
        if self.max_s < self.probe_s:
            raise ConfigError(
                f"Hold(max_s={self.max_s!r}): give at least probe_s={self.probe_s!r}, or nothing "
                "ever probes"
            )
        by: object = self.by
        if by is not None and not callable(by):
            raise ConfigError(
                f"Hold(by={by!r:.80}): give a function of a record, such as lambda r: r.key[:4]"
            )


@dataclass(frozen=True, slots=True)
class Brake:
    """Hold the handler when too many of its records use up their attempts.

    So a bad release does not empty the topic into the dead-letter topic. One record at a time
    probes; all continue at the first success, or by `perkey resume --handler`.

    `share`: of the records that ended in the last `over_s` seconds, above 0 to 1.
    `at_least`: the least number of records that must have ended in that time.
    `probe_s`: seconds between two probes.
    """

    share: float = 0.2
    over_s: float = 60.0
    at_least: int = 50
    probe_s: float = 5.0

    def __post_init__(self) -> None:
        if not is_positive(self.share) or self.share > 1:
            raise ConfigError(f"Brake(share={self.share!r}): give a share above 0, at most 1")
        if not is_whole(self.at_least, 1):
            raise ConfigError(f"Brake(at_least={self.at_least!r}): give a whole number from 1")
        for name in ("over_s", "probe_s"):
            _seconds("Brake", name, getattr(self, name), zero=False)


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit that several handlers share for a service that limits its callers.

    `per_s`: calls that start per second, or their cost; None: no limit.
    `in_flight`: calls that run at the same time; None: no limit.
    `by`: a quick function that gets the record as it was fetched, key and value as bytes, and
    returns its owner, such as a tenant (str or bytes): all values have equal shares.
    `cost`: a function like `by`; returns how much of `per_s` its call will use, from 0 on.
    `record.charge(n)` in the handler settles the actual cost.
    """

    name: str
    per_s: float | None = None
    in_flight: int | None = None
    by: Callable[[Any], str | bytes] | None = None
    cost: Callable[[Any], float] | None = None

    def __post_init__(self) -> None:
        given: object = self.name
        if not (isinstance(given, str) and given.strip() and len(given) <= BUDGET_NAME_CHARS_MAX):
            raise ConfigError(
                f"Budget({given!r:.80}): give its name, 1 to {BUDGET_NAME_CHARS_MAX} characters"
            )
        where = f"Budget({self.name!r}"
        if self.per_s is None and self.in_flight is None:
            raise ConfigError(f"{where}): give per_s=, in_flight= or both")
        per_s, count = self.per_s, self.in_flight
        if per_s is not None and (not is_positive(per_s) or per_s > BUDGET_PER_S_MAX):
            raise ConfigError(
                f"{where}, per_s={per_s!r}): give a number above 0, at most {BUDGET_PER_S_MAX:.0f}"
            )
        if count is not None and not is_whole(count, 1, BUDGET_IN_FLIGHT_MAX):
            raise ConfigError(
                f"{where}, in_flight={count!r}): give a whole number from 1 to "
                f"{BUDGET_IN_FLIGHT_MAX}"
            )
        for name in ("by", "cost"):
            function: object = getattr(self, name)
            if function is not None and not callable(function):
                raise ConfigError(f"{where}, {name}={function!r:.80}): give a function of a record")
        if self.cost is not None and self.per_s is None:
            raise ConfigError(f"{where}, cost=...): a cost is charged to per_s: give that, too")


@dataclass(frozen=True, slots=True)
class Park:
    """Keep the exhausted record not-done and its lane waiting, at no cost in workers.

    It stays parked also after a restart (with `Retry(remember=True)`).
    `release_after_s`: after this many seconds its attempts start over; None: only by a command.
    `dead_letter`: a topic ("{topic}.dlq" is allowed). The oldest parked record of a partition is
    given up as by `DeadLetter(dead_letter)` and its lane continues, one record at a time,
    `at_map`: while so much of the partition's offset map is taken, above 0 to 1, and
    `after_s`: when it has been parked for this many seconds.
    """

    release_after_s: float | None = None
    dead_letter: str | None = None
    at_map: float = AT_MAP
    after_s: float | None = None
    #: the former name of something else: refused
    export: InitVar[object] = field(default=None, kw_only=True)

    def __post_init__(self, export: object) -> None:
        if export is not None:
            raise ConfigError(
                f"Park(export={export!r:.80}): use Park(dead_letter={export!r:.80}), which gives "
                "up the oldest parked record of a partition, one at a time"
            )
        after = self.release_after_s
        if after is not None and not is_between(after, 0, PARKED_S_MAX):
            raise ConfigError(
                f"Park(release_after_s={after!r}): give 0 to {PARKED_S_MAX} seconds, or None"
            )
        if self.dead_letter is None:
            for name, unset in (("at_map", AT_MAP), ("after_s", None)):
                if (value := getattr(self, name)) != unset:
                    raise ConfigError(
                        f"Park({name}={value!r}) needs a dead-letter topic: add "
                        'dead_letter="{topic}.dlq"'
                    )
            return
        if not _is_name(self.dead_letter):
            raise ConfigError(f"Park(dead_letter={self.dead_letter!r}): give the name of a topic")
        _letters_topic(f"Park(dead_letter={self.dead_letter!r:.80})", self.dead_letter)
        if not is_positive(self.at_map) or self.at_map > 1:
            raise ConfigError(f"Park(at_map={self.at_map!r}): give a share above 0, at most 1")
        after = self.after_s
        if after is not None and not (is_positive(after) and after <= PARKED_S_MAX):
            raise ConfigError(
                f"Park(after_s={after!r}): give a number of seconds above 0, at most "
                f"{PARKED_S_MAX}, or None"
            )
        if after is not None and self.release_after_s is not None:
            raise ConfigError(
                "Park(release_after_s=, after_s=): give one of them: after its time a parked "
                "record is either tried again or goes to the dead-letter topic"
            )

    def topic_for(self, source: str) -> str:
        """The dead-letter topic of parked records from `source`; empty: none."""
        return (self.dead_letter or "").replace("{topic}", source)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Send the exhausted record to `topic` ("{topic}.dlq" is allowed), then continue.

    `on_missing`: "error" refuses to start if the topic does not exist; "create" creates it, with
    `partitions` partitions (None: as many as the source).
    `copy_value=False`: the letter has no value. `transform`: a quick function that gets the record,
    its value as bytes, and returns it with the value and headers that the letter may contain; if it
    raises, both are omitted. In either case `perkey dlq replay` reads the record from its source.
    """

    topic: str
    on_missing: Literal["error", "create"] = "error"
    transform: Callable[[Record[Any]], Record[Any]] | None = None
    copy_value: bool = True
    partitions: int | None = None

    def __post_init__(self) -> None:
        if not _is_name(self.topic):
            raise ConfigError(f"DeadLetter({self.topic!r}): give the name of a topic")
        _letters_topic(f"DeadLetter({self.topic!r:.80})", self.topic)
        if self.on_missing not in ("error", "create"):
            raise ConfigError(
                f'DeadLetter(on_missing={self.on_missing!r}): give "error" or "create"'
            )
        given: object = self.transform
        if given is not None and (not callable(given) or not self.copy_value):
            raise ConfigError(
                f"DeadLetter(transform={given!r:.80}): give a function of a record that returns "
                "one, without copy_value=False"
            )
        if not _is_bool(self.copy_value):
            raise ConfigError(f"DeadLetter(copy_value={self.copy_value!r}): give True or False")
        count = self.partitions
        if count is not None and (not is_whole(count, 1) or self.on_missing != "create"):
            raise ConfigError(
                f'DeadLetter(partitions={count!r}): give 1 or more, with on_missing="create"'
            )

    def topic_for(self, source: str) -> str:
        """The dead-letter topic of records from `source`."""
        return self.topic.replace("{topic}", source)


@dataclass(frozen=True, slots=True)
class Skip:
    """Count the exhausted record and continue."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Drain and exit 1 at the first exhausted record, which stays not-done."""


GivenUp = Park | DeadLetter | Skip | Stop


def letters_of(policy: object, source: str) -> str:
    """The topic to which records from `source` go by this policy, soon or later; empty: none."""
    return policy.topic_for(source) if isinstance(policy, DeadLetter | Park) else ""


#: `(record, error)` -> the outcome of this record; a `Retry`: retry it by that policy
Decide = Callable[[Record[Any], BaseException], GivenUp | Retry]
OnExhausted = GivenUp | Decide
#: a record for which such a function returns `Retry` more often is parked
DECIDED_RETRIES_MAX = 3


class _NotGiven(float):
    """A default that equals its number, and is still a default after copying and pickling."""

    __slots__ = ()

    def __reduce__(self) -> str:
        return "_INTERVAL_S"


_INTERVAL_S = _NotGiven(1.0)


@dataclass(frozen=True, slots=True)
class Commit:
    """When offsets are committed: every `interval_s` seconds, and after `max_records` if given.

    With neither given: after 1 s, or when 1,000 records are done but not within 50 ms of the last
    commit. `interval_s=1.0` given is the interval alone.

    `each=True`: a record keeps its slot and its lane until its own completion is committed.
    """

    interval_s: float = _INTERVAL_S
    max_records: int | None = None
    each: bool = False

    def __post_init__(self) -> None:
        _seconds("Commit", "interval_s", self.interval_s, zero=False)
        limit = self.max_records
        if limit is not None and not is_whole(limit, 1):
            raise ConfigError(f"Commit(max_records={limit!r}): give 1 or more, or None")
        if not _is_bool(self.each):
            raise ConfigError(f"Commit(each={self.each!r}): give True or False")

    @property
    def by_default(self) -> bool:
        """Whether neither `interval_s` nor `max_records` was given."""
        return isinstance(self.interval_s, _NotGiven) and self.max_records is None


BATCH_RECORDS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Batch:
    """Gather records into one call: at `max_records`, or `linger_s` after the first was ready.

    `ack="all"`: returning finishes all, raising is a failed attempt for all, retried in halves.
    `ack="explicit"`: the handler calls `batch.ack(record)` and `batch.nack(record)` itself.
    `by="partition"` or `"key"`: all records of a batch are of one partition or key.
    """

    max_records: int = 100
    linger_s: float = 0.05
    ack: Literal["all", "explicit"] = "all"
    by: Literal["partition", "key"] | None = None

    def __post_init__(self) -> None:
        count = self.max_records
        if not is_whole(count, 1, BATCH_RECORDS_MAX):
            raise ConfigError(
                f"Batch(max_records={count!r}): give a whole number from 1 to {BATCH_RECORDS_MAX}"
            )
        _seconds("Batch", "linger_s", self.linger_s)
        if self.ack not in ("all", "explicit"):
            raise ConfigError(f'Batch(ack={self.ack!r}): give "all" or "explicit"')
        if self.by not in (None, "partition", "key"):
            raise ConfigError(f'Batch(by={self.by!r}): give "partition", "key" or None')
