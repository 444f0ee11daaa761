"""`perkey.NotNow`: a record is given back for a time; it costs no attempt and is no failure."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

import perkey
from perkey.testing import VirtualClock, run

pytestmark = pytest.mark.push

KINDS = ["async", "threads", "async batch", "batch"]
ONCE = perkey.Retry(attempts=1)
#: calls so far, in a worker process
CALLS: Counter[int] = Counter()


def handled(kind: str, records: list, handle: Any, **options: Any) -> tuple[list, list, float]:
    """The results, what `on_error` got, and for how long it ran in virtual time."""
    errors: list = []
    app = perkey.App(
        group="g", kafka={"bootstrap.servers": "x"}, on_error=lambda *given: errors.append(given)
    )
    if "batch" in kind:
        options = {"batch": perkey.Batch(max_records=3, linger_s=0.01), **options}

    async def awaited(given):
        handle(given)

    options = {"retry": ONCE, "on_exhausted": perkey.Skip(), **options}
    app.consume("orders", **options)(awaited if "async" in kind else handle)
    clock = VirtualClock()
    results = run(app, records, clock=clock)
    return results, errors, clock.elapsed_s


def each(given: Any) -> list:
    """The records of a call."""
    return [given] if isinstance(given, perkey.Record) else list(given)


@pytest.mark.parametrize("kind", KINDS)
def test_it_costs_no_attempt_and_is_no_failure(kind):
    """With one attempt, three times, in key order; `on_error` is not called."""
    seen: list = []

    def handle(given):
        for record in each(given):
            seen.append((int(record.value), record.attempt, record.last_error))
            if record.value == b"0" and len([one for one in seen if one[0] == 0]) <= 3:
                raise perkey.NotNow(600)

    results, errors, elapsed_s = handled(kind, [(b"k", b"%d" % n) for n in range(3)], handle)
    assert [(one.outcome, one.attempts) for one in results] == [("done", 1)] * 3
    assert seen == [(0, 1, None)] * 3 + [(n, 1, None) for n in range(3)]
    assert errors == []
    assert 1_800 <= elapsed_s < 1_900


@pytest.mark.parametrize("kind", KINDS)
def test_attempts_and_last_error_stay_as_they_are(kind):
    """Between two failed attempts."""
    seen: list = []

    def handle(given):
        (record,) = each(given)
        seen.append((record.attempt, record.last_error and record.last_error.type))
        if len(seen) == 1:
            raise ValueError("first")
        if len(seen) == 2:
            raise perkey.NotNow(5)
        raise OSError("second")

    retry = perkey.Retry(attempts=2, delay_s=0.1)
    results, errors, _ = handled(kind, [(b"k", b"v")], handle, retry=retry)
    assert [(one.outcome, one.attempts) for one in results] == [("skipped", 2)]
    assert seen == [(1, None), (2, "ValueError"), (2, "ValueError")]
    # two failed attempts, the last of them exhausts it
    assert [type(one[1]).__name__ for one in errors][:2] == ["ValueError", "OSError"]


def test_a_batch_is_given_back_whole():
    """Not tried in halves: its records are in one batch again."""
    sizes: list[int] = []

    def handle(batch):
        sizes.append(len(batch))
        if len(sizes) < 3:
            raise perkey.NotNow(1)

    results, _, _ = handled("batch", [(b"%d" % n, b"v") for n in range(3)], handle)
    assert {one.outcome for one in results} == {"done"}
    assert sizes == [3, 3, 3]


@pytest.mark.parametrize("how", ["nack", "raise"])
def test_an_explicit_batch_gives_single_records_back(how):
    """Those that it has not acknowledged, by `nack` or by raising."""
    calls: Counter[bytes] = Counter()

    def handle(batch):
        for record in batch:
            calls[record.value] += 1
            if record.value == b"1" and calls[b"1"] < 4:
                if how == "raise":
                    raise perkey.NotNow(1)
                batch.nack(record, error=perkey.NotNow(1))
            else:
                batch.ack(record)

    batch = perkey.Batch(max_records=2, linger_s=0.01, ack="explicit")
    results, errors, _ = handled(
        "batch", [(b"%d" % n, b"%d" % n) for n in range(2)], handle, batch=batch
    )
    assert [(one.outcome, one.attempts) for one in results] == [("done", 1)] * 2
    assert (calls, errors) == ({b"0": 1, b"1": 4}, [])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["decoder", "callable", "prefetch"])
def test_decoders_and_prefetch_postpone_as_well(kind, where):
    """They run as a part of the call."""
    calls: list = []

    def asked(given):
        calls.append(given)
        if len(calls) < 3:
            raise perkey.NotNow(1)
        return given

    options = {
        "decoder": {"value": perkey.decoder(lambda record: asked(record).value)},
        "callable": {"value": asked},
        "prefetch": {"prefetch": asked},
    }[where]
    results, errors, _ = handled(kind, [(b"k", b"v")], lambda _: None, **options)
    assert [(one.outcome, one.attempts) for one in results] == [("done", 1)]
    assert (len(calls) >= 3, errors) == (True, [])  # the reader of a result decodes it, too


def test_a_worker_process_postpones():
    """Its reply carries the delay; the next call may be in another worker."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "x"})
    options: dict = {"executor": "processes", "concurrency": 1, "output": "out", "retry": ONCE}
    app.consume("orders", **options)(postponed_twice)
    (result,) = run(app, [(b"k", b"v")])
    assert (result.outcome, result.attempts, result.outputs[0].value) == ("done", 1, b"1 3")


def postponed_twice(record):
    """In a worker process."""
    CALLS[record.offset] += 1
    if CALLS[record.offset] < 3:
        raise perkey.NotNow(0.01)
    return f"{record.attempt} {CALLS[record.offset]}"


@pytest.mark.parametrize(
    "options", [{"hold": perkey.Hold(Exception)}, {"retry": perkey.Retry(final=(Exception,))}]
)
def test_it_is_no_error_of_hold_and_final(options):
    """Whatever base class they name."""
    calls: list = []

    def handle(record):
        calls.append(record.attempt)
        if len(calls) < 3:
            raise perkey.NotNow(0.01)

    results, _, elapsed_s = handled("threads", [(b"k", b"v")], handle, **options)
    assert [(one.outcome, one.attempts) for one in results] == [("done", 1)]
    assert (calls, elapsed_s < 1) == ([1, 1, 1], True)


def test_exactly_once_postpones():
    """Nothing of the call is in a transaction."""
    calls: list = []

    def handle(record):
        calls.append(record.attempt)
        if len(calls) < 3:
            raise perkey.NotNow(1)
        return b"out"

    options: dict = {"delivery": "exactly_once", "output": "out"}
    results, _, _ = handled("threads", [(b"k", b"v")], handle, **options)
    assert [(one.outcome, one.attempts, len(one.outputs)) for one in results] == [("done", 1, 1)]
    assert calls == [1, 1, 1]


@pytest.mark.parametrize("kind", ["async", "threads", "batch"])
def test_at_most_once_handles_nothing_twice(kind):
    """The record is final, as with RetryAfter."""
    calls: list = []

    def handle(given):
        calls.append(given)
        raise perkey.NotNow(1)

    options: dict = {"delivery": "at_most_once"}
    results, _, _ = handled(kind, [(b"k", b"v")], handle, **options)
    assert [(one.outcome, one.error.type) for one in results] == [("skipped", "NotNow")]
    assert len(calls) == 1


def test_other_keys_continue():
    """Only its lane waits."""
    done: list[bytes] = []
    first = asyncio.Event()

    def handle(record):
        if record.value == b"a0" and not first.is_set():
            first.set()
            raise perkey.NotNow(60)
        done.append(record.value)

    records = [(b"a", b"a0"), (b"a", b"a1"), (b"b", b"b0"), (b"b", b"b1")]
    handled("async", records, handle)
    assert done == [b"b0", b"b1", b"a0", b"a1"]
