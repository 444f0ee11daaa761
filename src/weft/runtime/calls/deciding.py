"""Call the function that is `on_exhausted`, on the callbacks' thread, and check what it returns."""

from __future__ import annotations

from types import CoroutineType
from typing import Any

from weft.core import effects as fx
from weft.core.events import Decided
from weft.errors import RemoteError
from weft.policies import DeadLetter, GivenUp, Park, Retry
from weft.runtime.calls.invoke import asked_delay, error_info
from weft.types import ErrorInfo, Raised

KIND = "OnExhausted"
RETURN_ONE = "return weft.Park(), DeadLetter(TOPIC), Skip(), Stop() or Retry(...)"


def decided(effect: fx.AskExhausted) -> Decided:
    """What it returned; with the reason where it raised, or returned no outcome."""
    work, number, record, info = effect
    raised = info.raised if isinstance(info, Raised) else None
    error: BaseException = raised or RemoteError(*info)
    function: Any = work.partition.handler.spec.on_exhausted
    try:
        outcome = function(record, error)
        wrong = _wrong(outcome, record.topic)
    except BaseException as why:  # whatever it raises, sys.exit() too: no record is lost by it
        info = error_info(why)
        text = f"on_exhausted raised {info.line}"
        return Decided(work, number, None, ErrorInfo(KIND, text, info.traceback))
    if wrong:
        return Decided(work, number, None, ErrorInfo(KIND, f"on_exhausted returned {wrong}"))
    delay_s = asked_delay(1, error, outcome) if isinstance(outcome, Retry) else None
    return Decided(work, number, outcome, None, delay_s)


def _wrong(outcome: object, topic: str) -> str:
    """What is wrong with it, and the cure; empty for an outcome."""
    if isinstance(outcome, CoroutineType):
        outcome.close()
        return "a coroutine: make it a plain `def`"
    if not isinstance(outcome, GivenUp | Retry):
        return f"{outcome!r:.80}: {RETURN_ONE}"
    if isinstance(outcome, DeadLetter | Park) and outcome.topic_for(topic) == topic:
        return f"{outcome!r:.80}, and {topic} is the topic it reads: name another"
    return ""
