"""Decode a record's key and value for the handler.

Decoding ends in one of three ways: a value; a permanent failure, which ends the record like
`Reject` (`Undecodable`); or a temporary one, as if the handler had raised it (`RetryAfter`,
`NotNow` and `OSError`), so that an unavailable schema registry empties no topic.

`"str"`, `"json"`, models and plain callables of bytes only compute: they run where the handler is
called. A function with `@perkey.decoder`, and `perkey.Schema`, may wait: for an `async def` handler
a plain one runs in a thread of the loop's pool, and an async one is awaited as part of the call,
within its `timeout_s`.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args, get_type_hints

from perkey.errors import ConfigError, Delayed
from perkey.types import ErrorInfo, Record

if TYPE_CHECKING:
    import asyncio  # imported on use: declaring an app loads no loop

QUOTED_CHARS = 12  # a common part of value and message of this length is no coincidence
#: exceptions of a decoder that count as the handler's; all others are final
TRANSIENT = (Delayed, OSError)
NAMES = ("bytes", "str", "json")
_MARK = "__perkey_decoder__"
#: method of an object that takes bytes, such as perkey.Schema: whether it may block on them
_WAITS = "__perkey_waits__"
#: its method that returns, by field, what it takes of a record: not only the field's bytes
_GIVEN = "__perkey_given__"

D = TypeVar("D", bound=Callable[..., Any])


class Undecodable(Exception):
    """The record's key or value does not match `key=` or `value=`."""


def decoder(function: D) -> D:
    """Mark a function `(record) -> value`, plain or `async def`, for use as `value=` or `key=`.

    It gets the record as fetched, with topic and headers, but never one with a null key or value.
    `RetryAfter` and `OSError` are failed attempts, `NotNow` is none; any other exception ends the
    record.
    """
    where = f"@perkey.decoder on {getattr(function, '__name__', repr(function)[:80])}"
    if not callable(function) or inspect.isclass(function):  # type: ignore[redundant-expr]  # what users pass
        raise ConfigError(f"{where}: decorate a function that takes the record")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{where}: a generator cannot be a decoder: return the value")
    try:
        inspect.signature(function).bind("record")
    except TypeError as error:
        raise ConfigError(f"{where}: it is called with the record alone ({error})") from None
    except ValueError:
        pass  # a builtin without a signature: its first call will show
    try:
        setattr(function, _MARK, True)
    except AttributeError:
        raise ConfigError(f"{where}: put it above your own function") from None
    return function


def is_async(function: Any) -> bool:
    """True for `async def` functions and objects whose `__call__` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  # the method itself is looked at, not whether it exists
    )


def takes_bytes(kind: Any) -> bool:
    """Whether this `key=` or `value=` is a function that takes the field's bytes."""
    return callable(kind) and not (isinstance(kind, type) or _is_marked(kind))


def check_kind(where: str, name: str, kind: Any) -> None:
    """ConfigError if this is not valid as `key=` or `value=` (`name`)."""
    if isinstance(kind, str):
        if kind not in NAMES:
            choices = ", ".join(f'"{choice}"' for choice in NAMES)
            raise ConfigError(f"{where}: {name}={kind!r} is not known: choose one of {choices}")
    elif not callable(kind):
        raise ConfigError(
            f'{where}: {name}={kind!r}: give "bytes", "str", "json", a pydantic model, a '
            "dataclass, a msgspec.Struct, perkey.Schema(url), a callable that takes bytes, or a "
            "@perkey.decoder"
        )
    elif isinstance(kind, type) and hasattr(kind, _WAITS):
        raise ConfigError(f"{where}: {name}={kind.__name__} lacks its URL: perkey.Schema(url)")
    elif is_async(kind) and not _is_marked(kind):
        raise ConfigError(
            f"{where}: {name}={getattr(kind, '__name__', kind)!s:.80} is an `async def`: put "
            "@perkey.decoder above it; it then takes the record"
        )
    else:
        try:
            _codec(kind)
        except ConfigError as error:
            raise ConfigError(f"{where}: {name}={kind.__name__}: {error}") from None


def decoding_of(key: Any, value: Any) -> Decoding | None:
    """The decoding for these options; None if both stay bytes."""
    parts = [_part(name, kind) for name, kind in (("key", key), ("value", value))]
    return decoding_with([part for part in parts if part is not None])


def decoding_with(parts: Sequence[Part]) -> Decoding | None:
    """The same for existing parts; None if there are none."""
    return Decoding(parts) if parts else None


class Part(NamedTuple):
    """The decoding of one field of a record."""

    #: "key" or "value"
    name: str
    function: Callable[[Any], Any]
    #: what the function takes of a record: the field's bytes; a decoder takes the record
    given: Callable[[Record], Any]
    is_async: bool = False
    #: takes the same: whether the function may block, which a loop must not
    waits: Callable[[Any], bool] | None = None


def _part(name: str, kind: Any) -> Part | None:
    if _is_marked(kind):
        return Part(name, kind, lambda record: record, is_async(kind), lambda _: True)
    codec = _codec(kind)
    if codec is None:
        return None
    given = getattr(codec, _GIVEN, attrgetter)(name)
    return Part(name, codec, given, waits=getattr(codec, _WAITS, None))


def _is_marked(kind: Any) -> bool:
    return getattr(kind, _MARK, False) is True


def _codec(kind: Any) -> Callable[[bytes], Any] | None:
    """The function of bytes for one option; None if they stay bytes."""
    match kind:
        case "bytes":
            return None
        case "str":
            return bytes.decode
        case "json":
            return json.loads
    validate = getattr(kind, "model_validate_json", None)
    if validate is not None:
        return validate  # type: ignore[no-any-return] # checked when decorated
    if not isinstance(kind, type):
        return kind  # type: ignore[no-any-return] # checked when decorated
    if hasattr(kind, "__pydantic_validator__"):  # a pydantic dataclass
        return importlib.import_module("pydantic").TypeAdapter(kind).validate_json  # type: ignore[no-any-return] # pydantic's
    if dataclasses.is_dataclass(kind) or hasattr(kind, "__struct_fields__"):
        try:
            msgspec = importlib.import_module("msgspec")
        except ImportError:
            raise ConfigError("dataclasses are read by msgspec: pip install msgspec") from None
        try:
            return msgspec.json.Decoder(kind).decode  # type: ignore[no-any-return] # msgspec's
        except (TypeError, NameError) as error:
            raise ConfigError(f"msgspec cannot read it: {error}") from None
        finally:
            _drop_caches(kind, set())
    return kind


def _drop_caches(kind: Any, seen: set[Any]) -> None:
    """Remove msgspec's cache from a dataclass: it would prevent shipping the class."""
    for part in get_args(kind):
        _drop_caches(part, seen)
    if not isinstance(kind, type) or kind in seen:
        return
    seen.add(kind)
    if "__msgspec_cache__" in vars(kind) and dataclasses.is_dataclass(kind):
        delattr(kind, "__msgspec_cache__")
    if dataclasses.is_dataclass(kind) or hasattr(kind, "__struct_fields__"):
        with suppress(NameError):  # msgspec has refused it, too
            for part in get_type_hints(kind).values():
                _drop_caches(part, seen)


class Decoding:
    """The decoding of one handler's records by `key=` and `value=`."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = tuple(parts)
        #: part of it must be awaited
        self.is_async = any(part.is_async for part in parts)
        #: part of it may block: not for the handlers' loop
        self.waits = any(part.waits is not None for part in parts)
        alone = len(self._parts) == 1 and not self.waits and self._parts[0].name == "value"
        #: decodes a record on this thread; for parts that are not async
        self.here: Callable[[Record], Record] = (
            _of_value(self._parts[0].function) if alone else self._here
        )

    def _here(self, record: Record) -> Record:
        found: dict[str, Any] = {}
        for name, function, given, *_ in self._parts:
            held = getattr(record, name)
            if held is not None:
                try:
                    found[name] = function(given(record))
                except BaseException as error:
                    raise judged(error, name, held) from None
        return record._replace(**found)

    async def awaited(self, record: Record) -> Record:
        """The same on a loop, without blocking it."""
        found: dict[str, Any] = {}
        for name, function, given, asynchronous, waits in self._parts:
            held = getattr(record, name)
            if held is None:
                continue
            try:
                taken = given(record)
                if asynchronous:
                    found[name] = await function(taken)
                elif waits is not None and waits(taken):
                    found[name] = await _in_a_thread(function, taken)
                else:
                    found[name] = function(taken)
            except BaseException as error:
                raise judged(error, name, held) from None
        return record._replace(**found)

    def around(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """An async handler whose call starts with decoding."""

        @wraps(handler)
        async def called(record: Record) -> Any:
            return await handler(await self.awaited(record))

        return called

    def on_threads(self, loop: asyncio.AbstractEventLoop | None) -> Callable[[Record], Record]:
        """For a thread that may block: async parts are awaited on this loop."""
        if not self.is_async:
            return self.here
        assert loop is not None, "an async decoder needs the loop that was opened for it"

        import asyncio

        def waited(record: Record) -> Record:
            return asyncio.run_coroutine_threadsafe(self.awaited(record), loop).result()

        return waited

    async def all_awaited(self, records: Sequence[Record]) -> Decoded:
        """Like `all_decoded`, concurrently."""
        import asyncio

        made = await asyncio.gather(*map(self.awaited, records), return_exceptions=True)
        good = [one for one in made if not isinstance(one, BaseException)]
        return good, {i: one for i, one in enumerate(made) if isinstance(one, BaseException)}


#: a batch's decoded records, and by index the exceptions of those that failed
Decoded = tuple[list[Record], dict[int, BaseException]]


def all_decoded(records: Sequence[Record], decode: Callable[[Record], Record] | None) -> Decoded:
    """Decode a batch's records; returns them, and by index the exceptions of those that failed."""
    if decode is None:
        return list(records), {}
    good: list[Record] = []
    bad: dict[int, BaseException] = {}
    for index, record in enumerate(records):
        try:
            good.append(decode(record))
        except BaseException as error:  # a user's decoder may raise anything
            bad[index] = error
    return good, bad


def _of_value(function: Callable[[Any], Any]) -> Callable[[Record], Record]:
    """A decoder of the value only, from bytes: the common case, on the hot path."""

    def decoded(record: Record) -> Record:
        if record.value is None:
            return record
        try:
            return record._replace(value=function(record.value))
        except BaseException as error:  # also sys.exit(): it ends the record, not the thread
            raise judged(error, "value", record.value) from None

    return decoded


async def _in_a_thread(function: Callable[[Any], Any], given: Any) -> Any:
    """Call a plain decoder in the loop's pool, in the context of the call."""
    import asyncio

    loop, context = asyncio.get_running_loop(), copy_context()
    return await loop.run_in_executor(None, context.run, function, given)


def judged(error: BaseException, name: str, held: Any) -> BaseException:
    """The exception for a decoder's error: itself if it is temporary, otherwise Undecodable.

    Undecodable has no cause: its traceback would end with the value that was just removed.
    """
    from asyncio import CancelledError

    if isinstance(error, (KeyboardInterrupt, CancelledError)):
        return error
    if isinstance(error, TRANSIENT):
        error.add_note(f"(raised while the {name} was decoded)")
        return error
    text = f"{name} cannot be decoded: {ErrorInfo(type(error).__name__, message_of(error)).line}"
    if _quotes(text, held):
        text = f"{name} cannot be decoded: {type(error).__name__} (its message quotes the {name})"
    return Undecodable(text)


def message_of(error: BaseException) -> str:
    """The message of an error; pydantic's without the invalid values."""
    errors = getattr(error, "errors", None)
    if type(error).__module__.startswith("pydantic") and callable(errors):
        found = errors(include_input=False, include_url=False, include_context=False)
        places = (".".join(map(str, one["loc"])) for one in found)  # "": the whole value
        return "; ".join(
            f"{place}: {one['msg']}" if place else one["msg"]
            for place, one in zip(places, found, strict=True)
        )
    return str(error)


def _quotes(message: str, value: Any) -> bool:
    """Whether the message contains part of the value."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    pieces = [text[at : at + QUOTED_CHARS] for at in range(0, min(len(text), 4_096), QUOTED_CHARS)]
    short = bool(text.strip()) and text.strip() in message  # a PIN is shorter than any piece
    return short or any(piece in message for piece in pieces if len(piece) == QUOTED_CHARS)
