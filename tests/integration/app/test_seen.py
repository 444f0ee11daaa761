"""A run seen from outside on a real broker: why it is stuck, its probes and its metrics."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import threading
import urllib.error
import urllib.request
from contextlib import asynccontextmanager, closing, contextmanager, suppress

import pytest
from tests.support.command import perkey as cli
from tests.support.waiting import wait_for

import perkey
from perkey.errors import FatalError

pytestmark = pytest.mark.push


@pytest.fixture(autouse=True)
def own_sockets(tmp_path, monkeypatch):
    """Runs of this test alone, and they serve."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PERKEY_SOCKET", "1")
    monkeypatch.setattr("perkey.observe.why.BRIEF_S", 0.0)  # calls that have just started are named
    monkeypatch.setattr("perkey.observe.sentences.BRIEF_S", 0.0)


def why(*arguments):
    """The sentences of `perkey why`, as JSON has them."""
    done = cli("why", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout)
    return told["sentences"]


def get(port, path):
    """Status and body."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@contextmanager
def no_broker(kafka, folder):
    """Nothing listens at the address."""
    app = kafka.app(kafka={"bootstrap.servers": "127.0.0.1:1"}, start_timeout_s=None)
    app.consume("orders")(lambda record: None)
    yield app, r"an answer of the brokers at 127\.0\.0\.1:1: .*refused", "correct bootstrap.servers"


@contextmanager
def locked_ledger(kafka, folder):
    """Another connection has locked its database."""
    app, other = kafka.app(), sqlite3.connect(folder / "ledger.db", isolation_level=None)
    ledger = perkey.SqlLedger(f"sqlite:///{folder}/ledger.db")
    app.consume(kafka.topic(), ledger=ledger)(lambda record, tx: None)
    with closing(other):
        other.execute("BEGIN EXCLUSIVE")
        yield app, rf"the ledger's database at sqlite:///{folder}/ledger\.db\.", "`fuser -v /"


@contextmanager
def hanging_lifespan(kafka, folder):
    """It waits for a service."""
    gate = threading.Event()

    async def connect():
        await asyncio.to_thread(gate.wait, 100)

    @asynccontextmanager
    async def opens():
        await connect()
        yield

    app = kafka.app(lifespan=opens)
    app.consume(kafka.topic())(lambda record: None)
    yield (
        app,
        r"the lifespan to open, at app/test_seen\.py:\d+ opens: await connect\(\)\.",
        "time-out",
    )
    gate.set()


@pytest.mark.parametrize("cause", [no_broker, locked_ledger, hanging_lifespan])
def test_what_a_start_waits_for_is_named(kafka, cause, tmp_path):
    """`perkey why` and `perkey status` answer before there is a member; nothing is left after a stop."""

    def start(app):
        with suppress(FatalError):
            kafka.start(app)

    with cause(kafka, tmp_path) as (app, text, after):
        starts = threading.Thread(target=start, args=(app,))
        starts.start()
        wait_for(lambda: list((tmp_path / "perkey").glob("*.sock")))
        (told,) = wait_for(lambda: [o for o in why() if re.search(text, o["text"])], what=why)
        shown = " ".join(cli("status").stdout.split())
        app.stop()
    starts.join()
    assert told["text"].startswith("The start has waited for ")
    assert after in told["next"]
    assert "starting unknown remaining in 0 partitions The start has waited for" in shown
    wait_for(lambda: not list((tmp_path / "perkey").glob("*.sock")))


def test_the_record_that_holds_up_a_commit_is_named(kafka):
    """One hangs, what is beyond it is done: the sentence, by partition, offset, key, and unasked."""
    source, app, gate = kafka.topic(), kafka.app(), threading.Event()
    kafka.fill(source, [{"value": b"%d" % n, "key": b"cust-%d" % (n % 20)} for n in range(100)])

    @app.consume(source, commit=perkey.Commit(interval_s=0.05))
    def handler(record):
        if record.offset == 3:
            gate.wait(100)

    kafka.start(app)
    wait_for(lambda: [p for p in app.snapshot()["partitions"] if p["remaining"] == 5])
    wait_for(lambda: app.snapshot()["partitions"][0]["committed"] == 3)
    done = cli("why", f"{source}:0")
    gate.set()
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert re.search(
        rf"{source}\[0\] is committed to 3 since \d\d:\d\d:\d\d \([\d.]+ s\)\. Record 3 "
        r"\(key cust-3\) runs in member \S+ for [\d.]+ s, attempt 1 of 5\. 92 records beyond it are "
        r"done \(offset map \d+ % full\), 4 wait behind it\.",
        text,
    ), text
    assert "Next: a thread cannot be cancelled: set a time-out on what it waits for" in text


def test_each_record_is_found_by_offset_and_by_key(kafka):
    """Behind whom it waits, and what became of those that are done."""
    source, app, gate = kafka.topic(), kafka.app(), threading.Event()
    kafka.fill(source, [{"value": b"x", "key": b"a"}] * 3 + [{"value": b"x", "key": b"b"}])

    @app.consume(source)
    def handler(record):
        if record.key == b"a":
            gate.wait(100)

    kafka.start(app)
    wait_for(lambda: [p for p in app.snapshot()["partitions"] if p["remaining"] == 3])
    (behind,) = why(f"{source}:0:2")
    (done,) = why(f"{source}:0:3")
    of_key = why("--key", "a")
    (gone,) = why(f"{source}:0:99")
    unasked = why()
    gate.set()
    assert "is queued behind record 0, which runs" in behind["text"]
    assert done["about"] == "done"
    assert [one["about"] for one in of_key] == ["running", "behind", "behind"]
    assert "the log ends at 4" in gone["text"]
    assert "2 wait behind it" in unasked[0]["text"]


def test_a_retrying_and_a_parked_record_report_their_error(kafka):
    """With the attempts, and when the next one comes."""
    source, app = kafka.topic(), kafka.app()
    kafka.fill(source, [{"value": b"retry", "key": b"r"}, {"value": b"park", "key": b"p"}])

    @app.consume(source, retry=perkey.Retry(attempts=2, delay_s=60.0, jitter=0.0))
    def handler(record):
        if record.value == b"park":
            raise perkey.Reject("no such customer")
        raise ValueError("not yet")

    kafka.start(app)
    wait_for(lambda: [p for p in app.snapshot()["partitions"] if p["parked"] and p["retrying"]])
    (retrying,) = why(f"{source}:0:0")
    (parked,) = why(f"{source}:0:1")
    assert re.search(
        r"failed once: ValueError: not yet; attempt 2 of 2 starts in \d+", retrying["text"]
    )
    assert "is parked for" in parked["text"]
    assert "Reject: no such customer" in parked["text"]
    shown = cli("why", f"{source}:0:1").stdout
    assert "attempt 1 failed: Reject: no such customer" in shown  # its story


def test_why_nothing_starts_is_reported(kafka):
    """Paused by the application; the reader of results; no partition; each with its cure."""
    source, app = kafka.topic(), kafka.app()
    kafka.fill(source, [b"x"] * 3)

    @app.consume(source)
    def handler(record): ...

    app.pause(source)
    run = kafka.start(app)
    wait_for(lambda: [p for p in app.snapshot()["partitions"] if p["buffered"] == 3])
    told = wait_for(lambda: [one for one in why() if one["about"] == "paused"])
    assert told[0]["next"] == f"app.resume({source!r})"
    app.resume(source)
    wait_for(lambda: [p for p in app.snapshot()["partitions"] if p["remaining"] == 0])
    wait_for(lambda: why()[0]["about"] == "healthy")
    run.stop()
    run.wait(60)
    gone = cli("why")
    assert (gone.returncode, gone.stdout) == (2, "")
    assert gone.stderr.startswith("perkey: no running Perkey app found on this machine")


def test_status_shows_every_run(kafka):
    """Two apps of one process are two runs; both are in the list."""
    groups = [kafka.name("g"), kafka.name("g")]
    for group in groups:
        app = kafka.app(group=group)

        @app.consume(kafka.topic())
        def handler(record): ...

        kafka.start(app)
        wait_for(lambda app=app: app.snapshot()["partitions"])
    told = json.loads(cli("status", "--json").stdout)
    assert sorted(shot["app"]["group"] for shot in told) == sorted(groups)
    shown = cli("status").stdout
    assert all(group in shown for group in groups)


def test_probes_metrics_and_snapshot_over_http(kafka):
    """Not ready before the first assignment and while it stops; alive all the time."""
    source, app = kafka.topic(), kafka.app(http="127.0.0.1:0")
    kafka.fill(source, [b"x"] * 10)
    gate, begun = threading.Event(), []

    @app.consume(source)
    def handler(record):
        begun.append(record)
        gate.wait(100)

    run = kafka.start(app)
    port = run._outside._http.port
    assert get(port, "/livez")[0] == 200
    wait_for(lambda: get(port, "/readyz") == (200, "ok\n"))
    wait_for(lambda: len(begun) == 10)  # a stop withdraws calls that are only granted
    wait_for(lambda: app.snapshot()["partitions"][0]["in_flight"] == 10)
    text = get(port, "/metrics")[1]
    group = app.options.group
    assert f'perkey_records{{group="{group}",handler="handler",place="running"}} 10.0' in text
    assert (
        f'perkey_remaining_records{{group="{group}",partition="0",topic="{source}"}} 10.0' in text
    )
    assert json.loads(get(port, "/snapshot")[1])["partitions"][0]["remaining"] == 10
    told = cli("why", f"{source}:0", "--url", f"http://127.0.0.1:{port}", "--json")
    assert "runs in member" in json.loads(told.stdout)[0]["sentences"][0]["text"]
    run.stop()
    wait_for(lambda: get(port, "/readyz") == (503, "stopping\n"))
    assert get(port, "/livez")[0] == 200
    gate.set()
    run.wait(60)
    with pytest.raises(OSError, match=r"refused|reset|closed"):
        get(port, "/livez")


def test_worker_processes_are_in_the_metrics(kafka):
    """Their calls are counted and timed as others are."""
    source = kafka.topic()
    kafka.fill(source, [b"x"] * 20)
    app = kafka.app(http="127.0.0.1:0")
    app.consume(source, executor="processes", concurrency=1)(handled_elsewhere)
    run = kafka.start(app)
    port = run._outside._http.port
    wait_for(lambda: 'outcome="done"} 20.0' in get(port, "/metrics")[1])
    text = get(port, "/metrics")[1]
    assert re.search(r'perkey_handler_seconds_bucket\{.*le="\+Inf"\} 20\.0', text)


def handled_elsewhere(record):
    """In a worker process."""


def test_a_member_in_reserve_is_ready(kafka):
    """More members than partitions: who has none is no sick one."""
    source, group = kafka.topic(), kafka.name("g")
    apps = [kafka.app(group=group, http="127.0.0.1:0") for _ in range(2)]
    for app in apps:
        app.consume(source)(handled_elsewhere)
    ports = [kafka.start(app)._outside._http.port for app in apps]

    def bodies():
        return sorted(get(port, "/readyz") for port in ports)

    reserve = (200, "idle: the group has more members than partitions\n")
    wait_for(lambda: bodies() == [reserve, (200, "ok\n")])


def test_a_broker_that_is_away_is_unready_and_not_dead(mortal_broker, tmp_path):
    """Restarting would not bring it back; when it is back, all is well by itself."""
    broker = mortal_broker
    config = {"bootstrap.servers": broker.bootstrap}
    app = perkey.App(group="away", kafka=config, http="127.0.0.1:0")
    app.consume("away.records")(handled_elsewhere)
    broker.create_topic("away.records")
    run = app.start()
    try:
        port = run._outside._http.port
        wait_for(lambda: get(port, "/readyz")[0] == 200)
        broker.kill()
        body = wait_for(lambda: one[1] if (one := get(port, "/readyz"))[0] == 503 else None, 60)
        assert re.match(r"the broker has not answered for \d+ s", body)
        assert get(port, "/livez") == (200, "ok\n")
        assert "broker" in [one["about"] for one in why()]
        assert 'perkey_halted{cause="broker",group="away"} 1.0' in get(port, "/metrics")[1]
        broker.restart()
        wait_for(lambda: get(port, "/readyz")[0] == 200, 60)
    finally:
        run.stop("now")
        run.wait(60)


def test_a_blocked_loop_is_dead_after_a_while(kafka, monkeypatch):
    """A handler that never lets the loop turn is what a restart is for."""
    from perkey.runtime.run import outside

    monkeypatch.setattr(outside, "LOOP_BLOCKED_S", 0.5)
    source, gate = kafka.topic(), threading.Event()
    kafka.fill(source, [b"x"])
    app = kafka.app(http="127.0.0.1:0")

    @app.consume(source)
    async def handler(record):
        gate.wait(100)  # on the loop, which is the mistake

    run = kafka.start(app)
    port = run._outside._http.port
    body = wait_for(lambda: one[1] if (one := get(port, "/livez"))[0] == 503 else None)
    gate.set()
    assert "a handler blocks" in body
    wait_for(lambda: get(port, "/livez")[0] == 200)
