"""The result of a handler's call: messages to send, or a failed attempt.

Also calls a function given as `on_exhausted`, on the callbacks' thread.
"""

from __future__ import annotations

import json
import math
import re
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from itertools import islice
from types import CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

from perkey.core import effects as fx
from perkey.core.events import Decided, Ended, Failed, Returned
from perkey.core.work import Work
from perkey.decoding import Undecodable, message_of
from perkey.errors import Delayed, NotNow, Reject, RemoteError, RetryAfter
from perkey.kafka.ports import OutMessage
from perkey.policies import GivenUp, Retry, letters_of
from perkey.runtime.calls.tracing import carried
from perkey.runtime.logs import event
from perkey.types import ErrorInfo, Produce, Raised, Record, _SameKey

if TYPE_CHECKING:
    from perkey.runtime.door import Door
    from perkey.runtime.handling import HandlerPlan

#: callables of Retry(delay_s=...) that failed and were logged
_REPORTED: list[Callable[..., float]] = []

TRACEBACK_CHARS_MAX = 2_000  # the end of it: kept for each failing record
MESSAGE_CHARS_MAX = 2_000
OUTPUTS_MAX = 100_000
PARTITION_MAX = 2**31 - 1
TOO_MANY_REQUESTS = 429
CAUSES_MAX = 5
KIND = "OnExhausted"
RETURN_ONE = "return perkey.Park(), DeadLetter(TOPIC), Skip(), Stop() or Retry(...)"
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class BadReturn(Exception):
    """The handler returned something Perkey cannot send; the message names the fix."""


def error_info(error: BaseException) -> ErrorInfo:
    """An exception as bounded plain strings, even if its own `__str__` fails."""
    try:
        message, whole = message_of(error), str(error)
    except BaseException:
        message = whole = "<its __str__ failed>"
    try:
        trace = "".join(traceback.format_exception(error))
        if message != whole:
            trace = trace.replace(whole, message)
    except BaseException:
        trace = ""
    return ErrorInfo(
        type(error).__name__,
        _printable(message[:MESSAGE_CHARS_MAX]),
        _printable(trace[-TRACEBACK_CHARS_MAX:]),
    )


def _printable(text: str) -> str:
    """The text without lone surrogates, which would break dead letters and log lines."""
    return text.encode(errors="replace").decode()


def failed(work: Work, error: BaseException) -> Failed:
    """A failed attempt, classified by the types and callables of the record's retry policy."""
    retry = work.retry
    final = is_final(error, retry)
    spec = work.partition.handler.spec
    # A failed batch costs no attempt: which of its records are retried is not known here.
    spent = None if spec.batch is not None else work.attempts_spent + 1
    delay_s = None if final else asked_delay(work.attempts + 1, error, retry, spent)
    info = Raised(*error_info(error))
    info.raised = error
    away = spec.hold is not None and isinstance(error, spec.hold.on)
    budget_s = None if spec.budget is None else asked_wait_s(error)
    return Failed(work, info, final, delay_s, away, budget_s, isinstance(error, NotNow))


def is_final(error: BaseException, retry: Retry) -> bool:
    """No further attempt can help."""
    if isinstance(error, NotNow):  # whatever base class `final` names
        return False
    return isinstance(error, (Reject, BadReturn, Undecodable, *retry.final))


def asked_delay(
    attempt: int, error: BaseException, retry: Retry, spent: int | None = None
) -> float | None:
    """Seconds from RetryAfter, NotNow or the policy's callable; None: the policy decides.

    `spent`: the attempts that count, with this one; after the last one there is nothing to delay.
    """
    if isinstance(error, Delayed):
        return error.delay_s
    if not callable(retry.delay_s):
        return None
    if spent is not None and retry.attempts is not None and spent >= retry.attempts:
        return None
    try:
        delay_s = float(retry.delay_s(attempt, error))
        if math.isnan(delay_s):
            raise ValueError("it returned NaN")  # handled like its own exceptions
    except BaseException as why:  # a broken policy must not lose a record
        if retry.delay_s not in _REPORTED:
            _REPORTED.append(retry.delay_s)
            text = f"{type(why).__name__}: {why}"
            event("error", "Retry(delay_s=...) failed: waiting 1 s instead", error=text)
        return None
    return delay_s


def messages_of(record: Record, returned: Any, output: str | None) -> list[OutMessage]:
    """The messages for a returned value that is not None; BadReturn if it cannot be sent."""
    if isinstance(returned, Produce):
        return [_message(record, returned, output)]
    if isinstance(returned, list | tuple | GeneratorType):
        items = list(islice(_yielded(returned), OUTPUTS_MAX + 1))
        if len(items) > OUTPUTS_MAX:
            raise BadReturn(f"one record returned more than {OUTPUTS_MAX} outputs: split the work")
        wrong = [item for item in items if not isinstance(item, Produce)]
        if wrong:
            did = "yielded" if isinstance(returned, GeneratorType) else "returned several, with"
            raise BadReturn(
                f"the handler {did} {type(wrong[0]).__name__}: each is a "
                "perkey.Produce(...); one value that is a list is perkey.Produce([...])"
            )
        return [_message(record, item, output) for item in items]
    if isinstance(returned, CoroutineType):
        returned.close()
        raise BadReturn("the handler returned a coroutine: make it an `async def`, or await it")
    if output is None:
        raise BadReturn(
            f"the handler returned {type(returned).__name__}: return None or perkey.Produce(...), "
            "or give @app.consume(output=TOPIC) for plain values"
        )
    return [_message(record, Produce(returned), output)]


def _yielded(several: Iterable[Any]) -> Generator[Any, None, None]:
    """The items; a generator's return value would be lost, so it is refused."""
    returned: object = yield from several  # type: ignore[func-returns-value]  # a generator's may
    if returned is not None:
        raise BadReturn(
            f"the handler yields and returns {type(returned).__name__}: yield it as Produce(...)"
        )


def _message(record: Record, produce: Produce, output: str | None) -> OutMessage:
    topic = produce.topic or output
    if topic is None:
        raise BadReturn(
            "Produce(...) names no topic: give topic=, or @app.consume(output=TOPIC) for all"
        )
    named = isinstance(topic, str) and _TOPIC.fullmatch(topic)  # type: ignore[redundant-expr]  # what users pass
    if topic != output and not named:
        raise BadReturn(f"Produce(topic={topic!r:.80}) cannot be a topic of Kafka: give its name")
    number = produce.partition
    if number is not None and not (type(number) is int and 0 <= number <= PARTITION_MAX):
        raise BadReturn(f"Produce(partition={number!r:.80}): give a whole number from 0, or None")
    key = record.key if isinstance(produce.key, _SameKey) else _bytes("key", produce.key)
    value = _value_bytes(produce.value)
    pairs: Any = (
        produce.headers.items() if isinstance(produce.headers, Mapping) else produce.headers
    )
    found = []
    try:
        for name, text in pairs:
            if not isinstance(name, str) or "\0" in name:
                raise BadReturn(
                    f"Produce(headers=...): {name!r:.80} cannot be a header's name: give text"
                )
            _encoded("headers", name)
            found.append((name, _bytes("headers", text)))
    except (TypeError, ValueError) as error:
        raise BadReturn(f"Produce(headers=...) must be (name, bytes) pairs: {error}") from error
    headers = carried(record.headers, tuple(found))
    return OutMessage(topic, value, key, headers, number)


def _value_bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return _encoded("value", value)
    dump = getattr(value, "model_dump_json", None)
    if dump is not None:
        return str(dump()).encode()
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadReturn(
            f"a value of type {type(value).__name__} cannot be sent: return bytes, str or what "
            f"JSON can hold ({error})"
        ) from error


def _bytes(what: str, value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return _encoded(what, value)
    raise BadReturn(f"Produce({what}=...) must be bytes, str or None, not {type(value).__name__}")


def _encoded(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadReturn(f"Produce({what}=...) is text that UTF-8 cannot encode: {error}") from error


def ending(work: Work, returned: Any, output: str | None) -> Ended | None:
    """How a call that returned something ended; None if there is nothing to send."""
    try:
        messages = messages_of(work.record, returned, output)
    except BaseException as error:  # a user's generator may raise anything, or call sys.exit()
        return failed(work, error)
    return Returned(work, messages) if messages else None


def report_returned(plan: HandlerPlan, door: Door, work: Work, returned: Any, began: float) -> None:
    """Append a call that returned something, or that a reader of results wants to see."""
    # A generator runs only now.
    ended = None if returned is None else ending(work, returned, plan.output)
    plan.called([work], began, returned)
    if ended is None:
        door.done.append(work)
    else:
        door.ended.append(ended)


def decided(effect: fx.AskExhausted) -> Decided:
    """The function's outcome; or the reason if it raised or returned no outcome."""
    work, number, record, info = effect
    raised = info.raised if isinstance(info, Raised) else None
    error: BaseException = raised or RemoteError(*info)
    function: Any = work.partition.handler.spec.on_exhausted
    try:
        outcome = function(record, error)
        wrong = _wrong(outcome, record.topic)
    except BaseException as why:  # also sys.exit(): no record is lost by it
        info = error_info(why)
        text = f"on_exhausted raised {info.line}"
        return Decided(work, number, None, ErrorInfo(KIND, text, info.traceback))
    if wrong:
        return Decided(work, number, None, ErrorInfo(KIND, f"on_exhausted returned {wrong}"))
    delay_s = asked_delay(1, error, outcome) if isinstance(outcome, Retry) else None
    return Decided(work, number, outcome, None, delay_s)


def _wrong(outcome: object, topic: str) -> str:
    """What is wrong with it, and the fix; empty for a valid outcome."""
    if isinstance(outcome, CoroutineType):
        outcome.close()
        return "a coroutine: make it a plain `def`"
    if not isinstance(outcome, GivenUp | Retry):
        return f"{outcome!r:.80}: {RETURN_ONE}"
    if letters_of(outcome, topic) == topic:
        return f"{outcome!r:.80}, and {topic} is the topic it reads: name another"
    return ""


def asked_wait_s(error: BaseException) -> float | None:
    """Seconds for which the service refuses requests: by `RetryAfter`, or a client's status 429.

    httpx, requests and libraries on top of them (openai, anthropic) raise an error with a
    `response`; aiohttp's has `status` and `headers` itself. None if neither it nor a cause has one.
    """
    if isinstance(error, RetryAfter):
        return error.delay_s
    one: BaseException | None = error
    try:
        for _ in range(CAUSES_MAX):
            if one is None:
                break
            both: tuple[Any, Any] = (getattr(one, "response", None), one)
            for answered in both:
                status = getattr(answered, "status_code", None) or getattr(answered, "status", None)
                if status == TOO_MANY_REQUESTS:
                    # The header's value: a number of seconds, or an HTTP date.
                    value = answered.headers.get("Retry-After")
                    if value is None:
                        return None
                    text = str(value).strip()
                    try:
                        seconds = float(text)
                    except ValueError:
                        at = parsedate_to_datetime(text)
                        seconds = (
                            at if at.tzinfo else at.replace(tzinfo=UTC)
                        ).timestamp() - time.time()
                    return max(0.0, seconds) if seconds < float("inf") else None
            one = one.__cause__ or one.__context__
    except Exception:  # a user's error: its attributes may be anything
        return None
    return None
