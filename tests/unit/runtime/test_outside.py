"""Is a run well? What the probes say of every state that a run can be in."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

import perkey
from perkey.runtime.run import outside
from perkey.runtime.run.outside import Outside, RunSource
from perkey.testing import run

NOW = 10_000.0


@pytest.fixture(autouse=True)
def still(monkeypatch):
    """The clock stands still."""
    monkeypatch.setattr(outside, "since_boot", lambda: NOW)


def source(member=None, watching=None):
    """What answers for a run in that state."""
    run = SimpleNamespace(member=member, watching=watching, snapshot=dict)
    return RunSource(run)


def member(**differs):
    """One that polls and has a partition."""
    made = SimpleNamespace(
        door=SimpleNamespace(broken=None, round_at=NOW),
        ending=False,
        ended=threading.Event(),
        leaving=False,
        fatal=None,
        engine=SimpleNamespace(stop_mode=None),
        partitions=[("t", 0)],
    )
    for name, value in differs.items():
        setattr(made, name, value)
    return made


def watching(*, away_s=None, reserve=False, loop_stands_s=None):
    """What is known of the broker and of the handlers' loop."""
    stands = None
    if loop_stands_s is not None:
        stands = SimpleNamespace(
            blocked_s=lambda: loop_stands_s,
            blocked_by=lambda: "a handler blocks it: shop/app.py:12 check",
        )
    return SimpleNamespace(broker_away_s=lambda: away_s, in_reserve=reserve, loop=stands)


def ended():
    """The event of a member that has ended."""
    event = threading.Event()
    event.set()
    return event


NOT_LIVE = {
    "engine": (
        member(door=SimpleNamespace(broken="KeyError", round_at=NOW)),
        watching(),
        "the engine has failed: KeyError",
    ),
    "polling thread": (
        member(door=SimpleNamespace(broken=None, round_at=NOW - outside.POLL_BLOCKED_S - 1)),
        watching(),
        "the polling thread has not run for 11 s",
    ),
    "loop": (
        member(),
        watching(loop_stands_s=outside.LOOP_BLOCKED_S + 1),
        "the handlers' loop has not run for 61 s: a handler blocks it",
    ),
}


@pytest.mark.parametrize("state", NOT_LIVE)
def test_what_only_a_restart_cures_is_not_live_and_not_ready(state):
    """Each with its reason."""
    of_member, of_watching, reason = NOT_LIVE[state]
    assert source(of_member, of_watching).live() == (False, reason)
    assert source(of_member, of_watching).ready() == (False, reason)


NOT_READY = {
    "start": (None, None, "starting: not in the group yet"),
    "leaving": (member(leaving=True), watching(), "stopping"),
    "fatal": (member(fatal=RuntimeError()), watching(), "stopping"),
    "stop": (
        member(engine=SimpleNamespace(stop_mode="drain")),
        watching(),
        "stopping",
    ),
    "broker": (member(), watching(away_s=12.4), "the broker has not answered for 12 s"),
    "nothing": (member(partitions=[]), watching(), "no partition is assigned yet"),
}


@pytest.mark.parametrize("state", NOT_READY)
def test_what_passes_by_itself_is_live_and_not_ready(state):
    """A restart would not help, so none is asked for."""
    of_member, of_watching, reason = NOT_READY[state]
    assert source(of_member, of_watching).live()[0]
    assert source(of_member, of_watching).ready() == (False, reason)


@pytest.mark.parametrize("made", [member(ending=True), member(ended=ended())])
def test_a_run_that_ends_is_live_however_long_it_takes(made):
    """The polling thread may stand still then."""
    made.door.round_at = 0.0
    assert source(made, watching()).live() == (True, "ending")


def test_a_run_that_handles_records_is_ready():
    """And so is one in reserve: its group has more members than partitions."""
    just_turned = watching(loop_stands_s=outside.LOOP_BLOCKED_S)
    just_round = SimpleNamespace(broken=None, round_at=NOW - outside.POLL_BLOCKED_S)
    assert source(member(door=just_round), just_turned).ready() == (True, "ok")
    ready, reason = source(member(partitions=[]), watching(reserve=True)).ready()
    assert (ready, "idle" in reason) == (True, True)


BROKEN = member(door=SimpleNamespace(broken="not looked at yet", round_at=0.0))


@pytest.mark.parametrize("parts", [(BROKEN, None), (None, watching(loop_stands_s=1_000.0))])
def test_a_run_of_which_one_part_is_missing_begins(parts):
    """It is neither dead nor ready before both are there."""
    assert source(*parts).live() == (True, "starting")
    assert source(*parts).ready() == (False, "starting: not in the group yet")


def test_measures_leave_the_worst_records_out():
    """They are asked for every few seconds, and cost less so."""

    def snapshot(*, worst=True, mapped=False):
        return {"worst": worst}

    made = RunSource(SimpleNamespace(member=None, watching=None, snapshot=snapshot))
    assert (made.snapshot(), made.measures()) == ({"worst": True}, {"worst": False})


def test_records_of_a_key_that_wait_behind_one_that_runs():
    """Each is found with the record that it waits for, where that is called, and its stack."""
    app, seen = perkey.App(group="g", kafka={"bootstrap.servers": "localhost:9092"}), []

    @app.consume("t", concurrency=2)
    def handler(record):
        if record.offset == 0:
            seen.extend(RunSource(app._run).find_key(b"k", None))

    run(app, [(b"k", b"1"), (b"k", b"2")])
    assert [row["place"] for row in seen] == ["running", "behind"]
    behind = seen[1]["behind"]
    assert (behind["topic"], behind["partition"], behind["offset"]) == ("t", 0, 0)
    assert (behind["handler"], behind["executor"]) == ("handler", "threads")


def outside_with(*closes):
    """What a run serves: reports and a control topic that close like this."""
    made: Any = Outside.__new__(Outside)
    made._words = made._local = made._http = None
    made._reporter, made._followed = (SimpleNamespace(close=close) for close in closes)
    return made


def test_the_clients_of_a_run_close_at_the_same_time():
    """One after another, each waited three seconds for brokers that do not answer."""
    both = threading.Barrier(2, timeout=30)
    met = []

    def close():
        met.append(both.wait())

    outside_with(close, close).close()
    assert sorted(met) == [0, 1]


def test_a_client_that_does_not_close_is_left_behind_after_a_second_signal():
    """The last report is not worth waiting for."""
    answers, closed = threading.Event(), threading.Event()
    try:
        outside_with(lambda: answers.wait(60), closed.set).close(0.01)
        assert not answers.is_set()
        assert closed.wait(60)
    finally:
        answers.set()


PLAIN = {"bootstrap.servers": "k1:9092,k2:9092"}
SERVED = {"http": "127.0.0.1:0", "http_token_file": "/etc/perkey/a token"}
READS = "--bootstrap-servers k1:9092,k2:9092"
REACHED = [
    ({}, "--group g", READS),
    ({**SERVED, "allow_control": True}, None, READS),
    ({"control": "c"}, f"--control c --group g {READS}", READS),
    ({**SERVED, "allow_control": True, "control": "c"}, None, READS),
    (
        {**SERVED, "allow_control": True, "control": "c", "reports": "r"},
        f"--control c --group g {READS}",
        READS,
    ),
    (
        {"kafka": {**PLAIN, "security.protocol": "SSL"}},
        "--group g",
        f"{READS} --config FILE",
    ),
]


@pytest.mark.parametrize(("options", "command", "servers"), REACHED)
def test_the_commands_of_the_page_reach_the_group(options, command, servers):
    """By the page's own address if that reaches all that it shows, else by topic or socket."""
    app = perkey.App(**{"group": "g", "kafka": PLAIN, **options})
    reach = outside.reach_of(app._options)
    assert (reach["command"], reach["servers"], reach["group"]) == (command, servers, "--group g")
    file = "'/etc/perkey/a token'" if "http_token_file" in options else None
    assert reach["token_file"] == file
