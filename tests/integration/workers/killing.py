"""Worker processes that kill themselves at a named step of their protocol, once.

Imported by the workers with the handlers below; the steps are taken from outside: each is a method
of the worker with something put before or behind it.
"""

from __future__ import annotations

import os
import pickle
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import perkey
from perkey.runtime.calls.processes.protocol import IDLE, BatchReply, Job, Opened, Reply
from perkey.runtime.calls.processes.worker import Worker

STEP = "PERKEY_TEST_KILL_AT"
FOLDER = "PERKEY_TEST_KILL_FOLDER"
SLOW = "PERKEY_TEST_SLOW"  # the offset whose call takes long, so that others are taken back
NTH = 3  # the step is met so often before, so that there is something behind it

#: a worker comes to these once, or hardly more often
ONCE = ("opening", "opened", "giving back", "gave back")
#: in the order in which a worker takes them
STEPS = (
    "opening",
    "opened",
    "read",
    "took",
    "giving back",
    "gave back",
    "claimed",
    "begun",
    "decoding",
    "calling",
    "handling",
    "acking",
    "acked",
    "called",
    "replying",
    "half sent",
    "replied",
    "idle",
)
_met = dict.fromkeys(STEPS, 0)


def at(step: str) -> None:
    """Die here, if it is the step, unless a worker has died before."""
    if os.environ.get(STEP) == step:
        _met[step] += 1
        if _met[step] == (1 if step in ONCE else NTH):
            try:
                (Path(os.environ[FOLDER]) / "killed").touch(exist_ok=False)
            except FileExistsError:
                return
            os.kill(os.getpid(), 9)


def around(owner: Any, name: str, before: Callable[..., None], behind: Callable[..., None]) -> None:
    """Put these before and behind a function."""
    original = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:
        before(*arguments)
        result = original(*arguments, **options)
        behind(result, *arguments)
        return result

    setattr(owner, name, call)


def nothing(*_: Any) -> None:
    """Not here."""


def is_end(message: Any) -> bool:
    """It says how a call ended."""
    return isinstance(message, BatchReply | Reply) and getattr(message, "outcome", "") != "acked"


def is_ack(message: Any) -> bool:
    """It acknowledges one record of a batch that still runs."""
    return isinstance(message, Reply) and message.outcome == "acked"


def after_send(_: None, _self: Worker, message: Any) -> None:
    """It is in the pipe."""
    if is_ack(message):
        at("acked")
    elif is_end(message):
        at("replied")
    elif isinstance(message, Opened):
        at("opened")


def before_send(self: Worker, message: Any) -> None:
    """The reply is made; then half of it is in the pipe."""
    if is_ack(message):
        at("acking")
    elif is_end(message):
        at("replying")
        if os.environ.get(STEP) == "half sent" and _met["half sent"] == NTH - 1:
            data = pickle.dumps(message, protocol=5)
            killed = Path(os.environ[FOLDER]) / "killed"
            if not killed.exists():
                os.write(self._pipe.fileno(), struct.pack("!i", len(data)) + data[:10])
        at("half sent")


if STEP in os.environ:
    around(Worker, "_open", lambda *_: at("opening"), nothing)
    around(pickle, "loads", nothing, lambda got, *_: at("read") if isinstance(got, Job) else None)
    around(Worker, "_end_unhandled", lambda *_: at("giving back"), lambda *_: at("gave back"))
    around(Worker, "_handle", lambda *_: at("took"), nothing)
    around(Worker, "_claimed", nothing, lambda found, *_: at("claimed") if found else None)
    around(Worker, "begin", nothing, lambda _, _self, number: number != IDLE and at("begun"))
    around(Worker, "decode", lambda *_: at("decoding"), nothing)
    around(Worker, "call_handler", lambda *_: at("calling"), lambda *_: at("called"))
    around(Worker, "send", before_send, after_send)
    around(Worker, "report", nothing, lambda *_: at("idle"))


def note(record: perkey.Record) -> None:
    """It has begun."""
    with (Path(os.environ[FOLDER]) / "begun").open("ab", buffering=0) as file:
        file.write(b"%d\n" % record.offset)
    if str(record.offset) == os.environ.get(SLOW):
        time.sleep(0.5)  # its work
    at("handling")


def single(record: perkey.Record) -> perkey.Produce:
    """One record, one output."""
    note(record)
    return perkey.Produce(str(record.offset), topic="out")


def batch(records: perkey.RecordBatch) -> list[perkey.Produce]:
    """A batch, an output for each."""
    return [single(record) for record in records]


def explicit(records: perkey.RecordBatch) -> None:
    """The same, acknowledged one by one."""
    for record in records:
        records.ack(record, single(record))
