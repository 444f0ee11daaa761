"""The options of `perkey.App` and their checks, and the app as its run sees it."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypedDict

from perkey.errors import ConfigError
from perkey.numeric import is_positive, is_seconds, is_whole
from perkey.options import HandlerOptions, check_plain
from perkey.policies import is_c_text, is_topic
from perkey.signatures import takes_argument
from perkey.types import OnLost

BUFFER_BYTES_MIN = 2**20
GROUP_CHARS_MAX = 249
#: librdkafka's default
MAX_POLL_INTERVAL_MS = 300_000
#: the functions that an app calls, and their arguments
CALLBACKS = {
    "on_result": ("result",),
    "on_commit": ("committed",),
    "on_assign": ("partitions",),
    "on_revoke": ("partitions",),
    "on_error": ("record", "error", "attempt", "outcome"),
}


class AppKeywords(TypedDict, total=False):
    """The arguments of `perkey.App` besides `group` and `kafka`, for type checkers."""

    producer: Mapping[str, Any] | None
    lifespan: Callable[..., Any] | None
    drain_timeout_s: float
    revoke_timeout_s: float
    buffer_records: int
    buffer_bytes: int
    on_offset_lost: OnLost
    on_result: Callable[..., Any] | None
    on_commit: Callable[..., Any] | None
    on_assign: Callable[..., Any] | None
    on_revoke: Callable[..., Any] | None
    http: str | None
    http_token_file: str | None
    reports: str | None
    control: str | None
    on_error: Callable[..., Any] | None
    start_timeout_s: float | None
    allow_control: bool


@dataclass(frozen=True, slots=True, repr=False)
class AppOptions:
    """The options of `perkey.App(...)`. Its repr would show secrets, so it has none."""

    group: str
    kafka: dict[str, Any]
    #: a dict after the check
    producer: Any = None
    lifespan: Callable[..., Any] | None = None
    drain_timeout_s: float = 20.0
    revoke_timeout_s: float = 5.0
    buffer_records: int = 50_000
    buffer_bytes: int = 128 * 2**20
    on_offset_lost: OnLost = "stop"
    on_result: Callable[..., Any] | None = None
    on_commit: Callable[..., Any] | None = None
    on_assign: Callable[..., Any] | None = None
    on_revoke: Callable[..., Any] | None = None
    http: str | None = None
    http_token_file: str | None = None
    reports: str | None = None
    control: str | None = None
    on_error: Callable[..., Any] | None = None
    start_timeout_s: float | None = 15.0
    allow_control: bool = False

    def shown(self) -> dict[str, Any]:
        """The options that a log line may show."""
        return {
            "group": self.group,
            "drain_timeout_s": self.drain_timeout_s,
            "revoke_timeout_s": self.revoke_timeout_s,
            "buffer_records": self.buffer_records,
            "buffer_bytes": self.buffer_bytes,
            "on_offset_lost": self.on_offset_lost,
        }


def _check_revoke(options: AppOptions) -> None:
    """The default is cut to a third of max.poll.interval.ms; an explicit value above is refused."""
    default_s = AppOptions.__dataclass_fields__["revoke_timeout_s"].default
    given = options.kafka.get("max.poll.interval.ms", MAX_POLL_INTERVAL_MS)
    try:
        most_s = float(given) / 3000
    except (TypeError, ValueError):
        return  # refused with the other properties
    if options.revoke_timeout_s > most_s and options.revoke_timeout_s != default_s:
        raise ConfigError(
            f"App(revoke_timeout_s={options.revoke_timeout_s:g}): at most {most_s:g} s, a third of "
            "max.poll.interval.ms: give less, or raise that property in kafka={...}"
        )


def checked_app(options: AppOptions) -> AppOptions:
    """The same options, or a ConfigError that names the wrong one."""
    if options.producer is None:
        options = replace(options, producer={})
    group: object = options.group
    if not isinstance(group, str) or not group.strip() or len(group) > GROUP_CHARS_MAX:
        raise ConfigError(
            f"App(group={group!r:.80}): give the consumer group's name, 1 to {GROUP_CHARS_MAX} "
            "characters"
        )
    if not is_c_text(group):
        raise ConfigError(f"App(group={group!r:.80}): a group's name cannot have these characters")
    for name in ("kafka", "producer"):
        if not isinstance(getattr(options, name), Mapping):
            raise ConfigError(
                f"App({name}=...) must be a dict of librdkafka properties, such as "
                '{"bootstrap.servers": "localhost:9092"}'
            )
    for name in ("drain_timeout_s", "revoke_timeout_s"):
        limit_s = getattr(options, name)
        if not is_seconds(limit_s):
            raise ConfigError(f"App({name}={limit_s!r}): give a number of seconds, 0 or more")
    _check_revoke(options)
    patience = options.start_timeout_s
    if patience is not None and not is_positive(patience):
        raise ConfigError(
            f"App(start_timeout_s={patience!r}): give a number of seconds above 0, or None to wait "
            "for brokers without limit"
        )
    _check_count("buffer_records", options.buffer_records, 1)
    _check_count("buffer_bytes", options.buffer_bytes, BUFFER_BYTES_MIN)
    if options.on_offset_lost not in ("stop", "earliest", "latest"):
        raise ConfigError(
            f"App(on_offset_lost={options.on_offset_lost!r}) is not known: choose one of "
            '"stop", "earliest", "latest"'
        )
    # Check what is exposed, at which address, and with which access control.
    if options.http is not None:
        check_http(options.http, options.http_token_file)
    elif options.http_token_file is not None:
        raise ConfigError('App(http_token_file=...) requires App(http="HOST:PORT"): give both')
    if not isinstance(options.allow_control, bool):
        raise ConfigError(f"App(allow_control={options.allow_control!r:.40}): give True or False")
    if options.allow_control and options.http_token_file is None:
        raise ConfigError(
            "allow_control requires http and http_token_file: the token decides who may command; "
            "on this machine `perkey pause` and the like need neither"
        )
    for name in ("reports", "control"):
        topic: object = getattr(options, name)
        if topic is not None and not (isinstance(topic, str) and is_topic(topic)):
            raise ConfigError(f"App({name}={topic!r:.80}) cannot be a topic: give its name")
    if options.control is not None and options.control == options.reports:
        raise ConfigError("App(control=..., reports=...) are two topics: give two names")
    for name in ("lifespan", *CALLBACKS):
        value = getattr(options, name)
        if value is not None and not callable(value):
            raise ConfigError(f"App({name}={value!r}) is not callable: give a function, or None")
        if value is not None and name in CALLBACKS:
            does = ", which is called on a thread"
            check_plain(f"App({name}=...)", name, value, CALLBACKS[name], does)
    if options.lifespan is not None:
        takes_argument(options.lifespan)  # refused here, and not when the brokers have answered
    return replace(options, kafka=dict(options.kafka), producer=dict(options.producer))


def _check_count(name: str, value: object, low: int) -> None:
    if not is_whole(value, low):
        raise ConfigError(f"App({name}={value!r}): give a whole number, {low} or more")


def check_http(http: object, token_file: object) -> tuple[str, int]:
    """The address to listen on; ConfigError unless it is loopback or there is a token."""
    where = address("http", http)
    if token_file is None and not is_loopback(where[0]):
        raise ConfigError(
            f"http={http!r:.80} is reachable by others: give http_token_file (a file with a token) "
            "or listen on 127.0.0.1"
        )
    return where


def address(option: str, given: object) -> tuple[str, int]:
    """`HOST:PORT`, or `[::1]:PORT`, as a pair; ConfigError for anything else."""
    host, colon, port = given.rpartition(":") if isinstance(given, str) else ("", "", "")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    bad = not host or set(host) & set("[]/@ ")
    if not colon or bad or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"{option}={given!r:.80}: write HOST:PORT, such as 127.0.0.1:8080")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Hosted(Protocol):
    """What a run uses of its app."""

    #: the value of the lifespan while the app runs
    state: Any

    @property
    def options(self) -> AppOptions:
        """The app's own options."""

    @property
    def handlers(self) -> tuple[HandlerOptions, ...]:
        """Its handlers, in the order of their declaration."""


#: handler -> its app, for worker processes, which receive the function only
_OWNERS: dict[int, tuple[Any, Hosted]] = {}


def belongs(function: Any, app: Hosted) -> None:
    """Register the app as the `owner_of` this function."""
    _OWNERS[id(function)] = (function, app)


def owner_of(function: Any) -> Hosted | None:
    """The app that last decorated this function, in this process."""
    known = _OWNERS.get(id(function))
    return None if known is None else known[1]
