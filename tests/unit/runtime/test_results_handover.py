"""`app.results()` while the run starts or ends on another thread: the reader always gets there."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from tests.support.waiting import wait_for

import perkey
from perkey.core.effects import Finished
from perkey.core.events import HandlerSpec
from perkey.runtime.handling import HandlerPlan
from perkey.runtime.member.group_membership import Callbacks
from perkey.runtime.run import run as local
from perkey.runtime.run.result_stream import RESULTS_MAX, Results, ResultStream
from perkey.testing import MemoryKafka
from perkey.types import Record

LIMIT_S = 30


@pytest.fixture
def app():
    with MemoryKafka() as kafka:
        kafka.create_topic("orders", 1)
        for number in range(3):
            kafka.produce("orders", str(number))
        one = perkey.App(group="g", kafka={"bootstrap.servers": kafka.bootstrap})
        one.consume("orders")(lambda record: None)
        yield one


class Reader:
    """Asks for the results on a thread of its own and reads them to their end."""

    def __init__(self, app):
        self.results = None
        self._app = app
        self._asked = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def come_in(self):
        """Ask now; returns once it has its stream."""
        self._thread.start()
        assert self._asked.wait(LIMIT_S)

    def knock(self):
        """Ask now; returns when it most likely waits for whoever is at it."""
        self._thread.start()
        self._asked.wait(0.3)

    def _read(self):
        stream = self._app.results()
        self._asked.set()
        self.results = list(stream)

    def outcomes(self):
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "the reader waits for ever"
        return [result.outcome for result in self.results]


def test_a_reader_who_came_before_the_start(app):
    """He reads every result."""
    reader = Reader(app)
    reader.come_in()
    app.run(until="drained")
    assert reader.outcomes() == ["done"] * 3


def test_a_reader_who_comes_while_the_run_is_made(app, monkeypatch):
    """The run has been made without his stream: he must get one of it, not one of nobody."""
    reader, made = Reader(app), local.Run

    def make(*arguments, **options):
        run = made(*arguments, **options)
        reader.knock()
        return run

    monkeypatch.setattr(local, "Run", make)
    app.run(until="drained")
    assert set(reader.outcomes()) <= {"done"}


def test_a_reader_who_comes_while_the_results_begin(app, monkeypatch):
    """Between the look for a reader and the start of the member."""
    reader, begin = Reader(app), Results.begin

    def begin_with_company(results, member):
        reader.come_in()
        begin(results, member)

    monkeypatch.setattr(Results, "begin", begin_with_company)
    app.run(until="drained")
    assert reader.outcomes() == ["done"] * 3


def test_a_reader_who_comes_when_the_results_have_ended(app, monkeypatch):
    """The run is not over yet, but nothing will come: he gets the end."""
    reader, end = Reader(app), Results.end

    def end_with_company(results):
        end(results)
        reader.come_in()

    monkeypatch.setattr(Results, "end", end_with_company)
    app.run(until="drained")
    assert reader.outcomes() == []


# -- as a member of a run would have it ------------------------------------------------------------


class Member:
    """What results need of a member: its door, of which every call is kept by name, and callbacks."""

    def __init__(self):
        self.callbacks = Callbacks()
        self.door = SimpleNamespace(post=lambda event: event(self, 0.0))
        self.did = []

    def report_results(self, *, on):
        self.did.append(("report", on))

    def halt(self, now, name, *, on):
        self.did.append((name, on))


def done(offset):
    """A record that was handled, as the engine tells it."""
    place = SimpleNamespace(handler=SimpleNamespace(index=0))
    work = SimpleNamespace(record=Record("t", 0, offset, 0, None, b""), partition=place, attempts=0)
    return Finished(work, "done", None, None, work.record)


def as_offset(result):
    """In place of each result its offset, as a decoder would do."""
    return result.record.offset


def test_on_result_is_called_with_results_as_they_are_handled():
    """Each goes through `seen` first, on a thread that ends with the run."""
    got = []
    results = Results([HandlerPlan(HandlerSpec("h"), print)], got.append, None, as_offset)
    results.begin(Member())
    results.put([done(0), done(1)])
    results.end()
    results._forwarding.join(LIMIT_S)
    assert got == [0, 1]


@pytest.mark.parametrize("name", ["on_result", "results"])
def test_a_slow_listener_holds_the_intake_under_its_own_name(name):
    """So that two of them do not let go for each other."""
    stream = ResultStream() if name == "results" else None
    gate = threading.Event()
    on_result = None if stream else lambda result: gate.wait(LIMIT_S)
    plan, member = HandlerPlan(HandlerSpec("h"), print), Member()
    results = Results([plan], on_result, stream, None)
    results.begin(member)
    results.put([done(offset) for offset in range(RESULTS_MAX + 300)])
    assert (name, True) in member.did
    gate.set()
    results.end()
    if stream:
        stream.close()
    else:
        results._forwarding.join(LIMIT_S)
    assert {who for who, _ in member.did} == {"report", name}


def test_no_one_listens_to_a_run_whose_reader_left_before_its_start():
    """The engine is not asked to report for one who has closed his stream."""
    stream, member = ResultStream(), Member()
    stream.close()
    Results([], None, stream, None).begin(member)
    assert member.did == []


def test_a_reader_who_comes_after_the_start_is_fed():
    """From then on."""
    results, member = Results([HandlerPlan(HandlerSpec("h"), print)], None, None, None), Member()
    results.begin(member)
    assert member.did == []
    stream = results.open()
    results.put([done(7)])
    results.end()
    assert [result.record.offset for result in stream] == [7]
    assert member.did[0] == ("report", True)


def test_a_buffered_stop_that_waits_for_the_reader_is_bounded_and_logged(caplog) -> None:
    """Unread results hold what is buffered; the line of the time-out names them as a cause."""
    count = 2 * RESULTS_MAX
    with MemoryKafka() as kafka:
        kafka.create_topic("orders", 1)
        for number in range(count):
            kafka.produce("orders", str(number))
        app = perkey.App(
            group="g", kafka={"bootstrap.servers": kafka.bootstrap}, drain_timeout_s=0.5
        )
        app.consume("orders", concurrency=1)(lambda record: None)
        results = app.results()
        run = app.start()
        wait_for(lambda: results._full, LIMIT_S)
        run.stop("buffered")
        report = run.wait(LIMIT_S)
    assert RESULTS_MAX <= report.done < count
    assert len(list(results)) == report.done
    assert "or app.results() is not read" in caplog.text
