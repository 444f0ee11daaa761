"""Decoding: what a record becomes, and how it fails: for good, or for now."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import threading

import pytest

import perkey
from perkey.decoding import Undecodable, decoding_of
from perkey.testing import run
from perkey.types import ErrorInfo, Record

RECORD = Record("orders", 0, 0, 0, b"k", b"stop")


def leave(data: bytes) -> str:
    """What a careless decoder does."""
    if data == b"stop":
        sys.exit(3)
    return data.decode()


def test_a_decoder_that_exits_is_a_decoder_that_failed():
    """SystemExit is no Exception: it went past, to the executor's thread and to the reader."""
    with pytest.raises(Undecodable, match="value cannot be decoded: SystemExit: 3"):
        decoding_of("bytes", leave).here(RECORD)


def test_ctrl_c_in_a_decoder_is_ctrl_c():
    """The reader of results decodes on its own thread, which may be the main one."""

    def interrupted(_data: bytes) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decoding_of("bytes", interrupted).here(RECORD)


@pytest.mark.parametrize("is_async", [True, False])
def test_its_record_fails_and_the_reader_continues(is_async):
    """The record is parked at its first attempt and read as bytes; the next one is handled."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "x"})

    if is_async:

        @app.consume("orders", value=leave)
        async def handle(record):
            """Nothing."""
    else:

        @app.consume("orders", value=leave)
        def handle(record):
            """Nothing."""

    results = run(app, [(b"a", b"stop"), (b"b", b"go")])
    found = {one.record.value: (one.outcome, one.attempts) for one in results}
    assert found == {b"stop": ("parked", 1), "go": ("done", 1)}


@pytest.mark.parametrize(
    ("error", "line"), [(ErrorInfo("ValueError", ""), "ValueError"), (ErrorInfo("E", "m"), "E: m")]
)
def test_an_error_without_a_message_is_its_type(error, line):
    """`raise ValueError` read as 'ValueError: '."""
    assert error.line == line


# -- three ends ----------------------------------------------------------------------------------------

AT_ONCE = perkey.Retry(attempts=5, delay_s=0)
KINDS = ["async", "threads", "async batch", "threads batch"]
DECODERS = ["callable", "plain decoder", "async decoder"]


class Registry:
    """A service that answers from the third time on."""

    def __init__(self, error: Exception, times: int = 2) -> None:
        self.error, self.times = error, times
        self.asked: list[bytes] = []

    def answer(self, value: bytes) -> str:
        """The value, in time."""
        self.asked.append(value)
        if self.asked.count(value) <= self.times:
            raise self.error
        return value.decode()


def decoder_of(kind: str, registry: Registry):
    """A decoder of this kind that asks the registry."""
    if kind == "callable":
        return registry.answer
    if kind == "plain decoder":

        @perkey.decoder
        def asked(record):
            return registry.answer(record.value)

        return asked

    @perkey.decoder
    async def awaited(record):
        await asyncio.sleep(0)
        return registry.answer(record.value)

    return awaited


def app_of(kind: str, seen: list, **options) -> perkey.App:
    """An app with one handler that remembers what it is called with."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "x"})
    if "batch" in kind:
        options["batch"] = perkey.Batch(max_records=3, linger_s=0.01)

    def handle(given):
        seen.extend([given] if isinstance(given, Record) else given)

    async def awaited(given):
        handle(given)

    app.consume("orders", **options)(awaited if "async" in kind else handle)
    return app


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("error", [ConnectionError("away"), perkey.RetryAfter(0.0)])
def test_an_outage_is_a_failed_attempt(kind, decoder, error):
    """ConnectionError and RetryAfter out of any decoder: tried again, and in key order."""
    seen: list[Record] = []
    decode = decoder_of(decoder, Registry(error))
    app = app_of(kind, seen, value=decode, retry=AT_ONCE, on_exhausted=perkey.Skip())
    results = run(app, [(b"k", b"%d" % number) for number in range(4)])
    assert [one.outcome for one in results] == ["done"] * 4
    assert [one.attempts for one in results] == [3] * 4
    assert [one.value for one in seen] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decoder", DECODERS)
def test_any_other_error_ends_the_record(kind, decoder):
    """At its first attempt, without its value in what is said; the next one is handled."""
    seen: list[Record] = []
    decode = decoder_of(decoder, Registry(ValueError("bad secret"), 1))
    app = app_of(kind, seen, value=decode, retry=AT_ONCE, on_exhausted=perkey.Skip())
    (result,) = run(app, [(b"k", b"secret")])
    assert (result.outcome, result.attempts, result.error.type) == ("skipped", 1, "Undecodable")
    assert result.error.message == (
        "value cannot be decoded: ValueError (its message quotes the value)"
    )
    assert seen == []


def test_an_outage_that_lasts_takes_the_way_of_on_exhausted():
    """Attempts are counted as a handler's are, and types in Retry.final are final."""
    for retry, attempts in (
        (perkey.Retry(attempts=2, delay_s=0), 2),
        (perkey.Retry(delay_s=0, final=(OSError,)), 1),
    ):
        decode = decoder_of("callable", Registry(TimeoutError("slow"), 99))
        app = app_of("async", [], value=decode, retry=retry, on_exhausted=perkey.Skip())
        (result,) = run(app, [(b"k", b"v")])
        assert (result.outcome, result.attempts) == ("skipped", attempts)
        assert result.error.type == "TimeoutError"
        assert "(raised while the value was decoded)" in result.error.traceback


# -- decoders ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_decoder_gets_the_record(kind):
    """Topic, headers, key and value as they came; null keys and values never come to it."""
    seen: list[Record] = []

    @perkey.decoder
    def described(record):
        return (record.topic, dict(record.headers), record.key, record.value)

    @perkey.decoder
    async def upper(record):
        return record.key.decode().upper()

    app = app_of(kind, seen, key=upper, value=described)
    run(
        app,
        [
            Record("orders", 0, 0, 0, b"k", b"v", (("schema", b"7"),)),
            Record("orders", 0, 1, 0, None, b"w"),
            Record("orders", 0, 2, 0, b"k", None),
        ],
    )
    by_value = {one.key: one.value for one in seen if one.value is not None}
    assert by_value == {
        "K": ("orders", {"schema": b"7"}, b"k", b"v"),
        None: ("orders", {}, None, b"w"),
    }
    assert [one.key for one in seen if one.value is None] == ["K"]


def test_a_plain_decoder_does_not_hold_up_the_loop():
    """It runs in a thread of the loop's pool, in the context of its call."""
    threads: dict[str, set[str]] = {"decoder": set(), "handler": set()}
    app = perkey.App(group="g", kafka={"bootstrap.servers": "x"})
    company = threading.Barrier(2, timeout=60)

    @perkey.decoder
    def slow(record):
        if threading.current_thread() is threading.main_thread():
            return record.value  # for the result, which is read when all is over
        company.wait()  # two at once, though there is one loop
        threads["decoder"].add(threading.current_thread().name)
        return record.value

    @app.consume("orders", value=slow)
    async def handle(record):
        threads["handler"].add(threading.current_thread().name)

    run(app, [(b"a", b"1"), (b"b", b"2")])
    assert threads["handler"] == {"perkey-handlers"}
    assert len(threads["decoder"] - {"perkey-handlers"}) == 2


def test_an_async_decoder_has_the_time_of_its_call():
    """Past timeout_s the attempt has failed, also while it decodes."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "x"})

    @perkey.decoder
    async def never(record):
        await asyncio.Event().wait()

    @app.consume(
        "orders",
        value=never,
        timeout_s=0.05,
        retry=perkey.Retry(attempts=2, delay_s=0),
        on_exhausted=perkey.Skip(),
    )
    async def handle(record):
        """Never called."""

    (result,) = run(app, [(b"a", b"1")])
    assert (result.outcome, result.attempts, result.error.type) == ("skipped", 2, "AttemptTimeout")


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_keep_the_keys_bytes(kind):
    """A decoded key is what the handler sees; what it returns goes under the record's own."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "x"})
    options = {"batch": perkey.Batch(linger_s=0.0)} if "batch" in kind else {}

    def handle(given):
        return perkey.Produce(b"out", topic="out")

    async def awaited(given):
        return handle(given)

    function = awaited if "async" in kind else handle
    app.consume("orders", key="json", **options)(function)
    (result,) = run(app, [(b'{"id": 7}', b"v")])
    assert [one.key for one in result.outputs] == [b'{"id": 7}']
    assert result.record.key == {"id": 7}


def test_keys_that_cannot_be_decoded_are_named():
    """Lanes are of bytes: the record has its place, and ends like any that cannot be decoded."""
    app = app_of("async", [], key="json", on_exhausted=perkey.Skip())
    (result,) = run(app, [(b"{", b"v")])
    assert (result.outcome, result.attempts) == ("skipped", 1)
    assert result.error.message.startswith("key cannot be decoded: JSONDecodeError")


@dataclasses.dataclass
class Order:
    """What an order is."""

    number: int
    lines: list[str] = dataclasses.field(default_factory=list)


@pytest.mark.parametrize("kind", ["dataclass", "struct", "pydantic dataclass"])
def test_classes_with_fields_are_made_of_json(kind):
    """And JSON that does not fit ends its record."""
    if kind == "pydantic dataclass":
        model = pytest.importorskip("pydantic").dataclasses.dataclass(Order)
    else:
        msgspec = pytest.importorskip("msgspec")
        model = Order
        if kind == "struct":
            model = msgspec.defstruct("Order", [("number", int), ("lines", list[str], [])])
    seen: list[Record] = []
    app = app_of("async", seen, value=model, on_exhausted=perkey.Skip())
    good, bad = b'{"number": 7, "lines": ["a"]}', b'{"number": "x"}'
    outcomes = {one.outcome for one in run(app, [(b"a", good), (b"b", bad)])}
    assert outcomes == {"done", "skipped"}
    assert [(one.value.number, one.value.lines) for one in seen] == [(7, ["a"])]


def test_the_error_of_a_whole_value_has_no_empty_place():
    """As for a value that is not JSON at all; else the field is named."""
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Order", number=int)
    app = app_of("async", [], value=model, on_exhausted=perkey.Skip())
    broken, wrong = run(app, [(b"a", b"no json"), (b"b", b'{"number": "x"}')])
    assert "ValidationError: Invalid JSON" in broken.error.message
    assert "ValidationError: number: " in wrong.error.message


@dataclasses.dataclass
class Basket:
    """One that holds others."""

    orders: list[Order]
    gift: Order | None = None


def test_a_class_that_was_read_can_travel():
    """What msgspec noted on a dataclass could not be pickled: no fleet, no worker process had it."""
    pytest.importorskip("msgspec")
    app = perkey.App(group="g", kafka={"bootstrap.servers": "x"})
    app.consume("orders", value=Basket)(print)
    noted = [name for kind in (Basket, Order) for name in vars(kind) if "msgspec" in name]
    assert noted == []


# -- bad input -----------------------------------------------------------------------------------------


async def later(data: bytes) -> str:
    """What only a decoder may be."""
    return data.decode()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"value": later}, "value=later is an `async def`: put @perkey.decoder above it"),
        ({"key": later}, "key=later is an `async def`: put @perkey.decoder above it"),
        ({"key": "utf8"}, "key='utf8' is not known: choose one of"),
        ({"key": 5}, 'key=5: give "bytes", "str", "json", a pydantic model, a dataclass'),
    ],
)
def test_what_cannot_decode_is_refused(options, said):
    """When it is decorated, in one line that names the option."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "x"})
    with pytest.raises(perkey.ConfigError) as caught:
        app.consume("orders", **options)(print)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_dataclass_without_msgspec_reports_what_to_install(monkeypatch):
    """One line, when it is decorated."""
    monkeypatch.setitem(sys.modules, "msgspec", None)
    app = perkey.App(group="g", kafka={"bootstrap.servers": "x"})
    with pytest.raises(perkey.ConfigError, match=r"value=Order: .* pip install msgspec"):
        app.consume("orders", value=Order)(print)


def test_a_decoder_takes_the_record_alone():
    """What could never be called so is refused where it is decorated."""
    with pytest.raises(perkey.ConfigError, match="it is called with the record alone"):
        perkey.decoder(lambda record, more: None)
    with pytest.raises(perkey.ConfigError, match="a generator cannot be a decoder"):
        perkey.decoder(app_values)
    with pytest.raises(perkey.ConfigError, match="put it above your own function"):
        perkey.decoder(len)
    with pytest.raises(perkey.ConfigError, match="decorate a function"):
        perkey.decoder("json")


def app_values(record):
    """A generator."""
    yield record.value
