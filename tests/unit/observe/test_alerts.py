"""Each alert fires when it burns: the fault on a real app, the real rule over what it exposes.

A minute of the scrapes is a minute of the app's clock, which is moved on by hand. Where promtool is
installed it evaluates the same series and must agree.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # it has no types of its own
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.promql import firing
from tests.support.waiting import wait_for

import perkey
from perkey.errors import FatalError
from perkey.kafka.group_lag import PartitionLag
from perkey.observe.lag_server import LagBoard, LettersBoard
from perkey.observe.metrics import exposed
from perkey.runtime.member import group_membership
from perkey.testing import MemoryKafka, VirtualClock

pytestmark = pytest.mark.push

RULES_FILE = Path(__file__).parents[3] / "ops" / "prometheus" / "perkey-alerts.yml"
RULES = [
    rule for group in yaml.safe_load(RULES_FILE.read_text())["groups"] for rule in group["rules"]
]
MINUTE_S = 60.0
#: every scene that was played -> its series, its end, and what fired
PLAYED: dict[str, tuple[dict, float, Counter[str]]] = {}


class Scene:
    """Apps on an in-memory broker, scraped once a minute of their clock."""

    def __init__(self, name):
        self.name, self.at, self.series = name, 0.0, {}
        self.clock = VirtualClock()
        self.kafka = MemoryKafka(clock=self.clock, auto_create=True)
        self.kafka.create_topic("t")
        self.kafka.create_topic("t.dlq")
        self.over = threading.Event()
        self._runs: list = []
        self._scraped: list[Callable[[], bytes]] = []

    def app(self, **options):
        return perkey.App(group="g", kafka={"bootstrap.servers": self.kafka.bootstrap}, **options)

    def start(self, app):
        self._runs.append(app.start())
        self._scraped.append(lambda: exposed(app.snapshot))
        wait_for(lambda: app.snapshot()["partitions"])
        return self._runs[-1]

    def board(self, measure, kind=LagBoard, name="g"):
        board = kind(measure, name, 5.0)
        registry = CollectorRegistry()
        registry.register(board)

        def told():
            board.look()
            return generate_latest(registry)

        self._scraped.append(told)

    def put(self, count, value=b"x", key=None, **more):
        for number in range(count):
            self.kafka.produce("t", value, key=key or b"%d" % number, **more)

    def scrape(self):
        for told in self._scraped:
            for family in text_string_to_metric_families(told().decode()):
                for name, labels, value, *_ in family.samples:
                    points = self.series.setdefault((name, frozenset(labels.items())), [])
                    points.append((self.at, value))
        self.at += MINUTE_S

    def minutes(self, count, each=lambda: None):
        for _ in range(count):
            self.clock.skipped_s += MINUTE_S
            each()
            self.scrape()

    def unreachable(self):
        """No member answers a scrape any more."""
        self._scraped.clear()

    def fired(self):
        """The alerts that fire at its end."""
        until_s = self.at - MINUTE_S
        found = firing(RULES, self.series, until_s)
        series = {key: list(points) for key, points in self.series.items()}
        PLAYED[f"{self.name} {self.at:.0f}"] = series, until_s, found
        return set(found)

    def close(self):
        self.over.set()
        for run in self._runs:
            run.stop()
            run.wait(30)
        self.kafka.close()


@pytest.fixture
def scene(request):
    """A scene named after its test."""
    made = Scene(request.node.name)
    yield made
    made.close()


def done(app, count):
    """So many records are done."""
    return lambda: app.snapshot()["handlers"]["handler"]["done"] >= count


def test_nothing_fires_while_all_is_well(scene):
    """Records come and are done, minute after minute."""
    app, put = scene.app(), [0]
    app.consume("t", concurrency=4)(named(lambda record: None))
    scene.start(app)

    def work():
        scene.put(5)
        put[0] += 5
        wait_for(done(app, put[0]))

    scene.minutes(25, work)
    assert scene.fired() == set()


def named(function):
    """As the handler of every app here is called."""
    function.__name__ = "handler"
    return function


def test_all_calls_hang(scene):
    """A service that never answers: every call waits for it, and nothing ends."""
    app = scene.app()
    app.consume("t", concurrency=4)(named(lambda record: scene.over.wait(60)))
    scene.start(app)
    scene.put(10)
    wait_for(lambda: app.snapshot()["handlers"]["handler"]["in_flight"] == 4)
    scene.minutes(12)
    assert scene.fired() == {"PerkeyCallsHang", "PerkeyCommitStands"}


def test_one_record_hangs(scene):
    """Others are done all the time; the commit cannot pass it."""
    app = scene.app()

    @app.consume("t", concurrency=4)
    def handler(record):
        if record.value == b"hang":
            scene.over.wait(60)

    scene.start(app)
    scene.put(1, b"hang", b"k")
    put = [0]

    def work():
        scene.put(5)
        put[0] += 5
        wait_for(done(app, put[0]))

    scene.minutes(12, work)
    assert scene.fired() == {"PerkeyCommitStands"}


def test_the_offset_map_is_full(scene):
    """One record hangs at the frontier and others far beyond: what comes next waits for room."""
    app = scene.app()

    @app.consume("t", concurrency=600)
    async def handler(record):
        while record.value == b"hang" and not scene.over.is_set():  # noqa: ASYNC110  # a thread sets it
            await asyncio.sleep(0.05)

    scene.put(1, b"hang", b"k")
    scene.put(19_000)
    for number in range(500):
        scene.put(1, b"hang", b"h%d" % number)
        scene.put(1)
    scene.start(app)
    wait_for(lambda: app.snapshot()["partitions"][0]["places"]["past_map"])
    scene.minutes(4)
    assert scene.fired() - {"PerkeyCallsHang"} == {"PerkeyOffsetMapNearlyFull"}


def test_a_partition_is_not_read(scene):
    """It is assigned, and no leader answers where it starts."""
    app = scene.app()
    app.consume("t")(named(lambda record: None))
    scene.kafka.fail_next("find", times=100_000)
    scene.start(app)
    wait_for(lambda: app.snapshot()["partitions"][0]["place"] == "start_unknown")
    scene.minutes(4)
    assert scene.fired() == {"PerkeyPartitionNotRead"}


def test_records_are_parked(scene):
    """Their lanes wait; the commit cannot pass them, in the end."""
    app = scene.app()

    @app.consume("t", retry=perkey.Retry(attempts=1))
    def handler(record):
        raise ValueError

    scene.start(app)
    scene.put(1)
    wait_for(lambda: app.snapshot()["handlers"]["handler"]["parked"])
    scene.minutes(3)
    assert scene.fired() == {"PerkeyParked"}


def test_attempts_fail(scene):
    """Of half the records, again and again."""
    app, put = scene.app(), [0]

    @app.consume("t", retry=perkey.Retry(attempts=1), on_exhausted=perkey.Skip())
    def handler(record):
        if int(record.key) % 2:
            raise ValueError

    scene.start(app)

    def work():
        scene.put(30)
        put[0] += 15
        wait_for(done(app, put[0]))

    scene.minutes(15, work)
    assert scene.fired() == {"PerkeyFailing"}


def test_a_group_falls_behind(scene):
    """More comes than is done; old records wait."""
    app, gate, put = scene.app(), threading.Semaphore(0), [0]

    @app.consume("t", concurrency=1)
    def handler(record):
        while not (scene.over.is_set() or gate.acquire(timeout=0.05)):
            pass

    scene.start(app)

    def work():
        scene.put(5, timestamp_ms=int((time.time() - 3600) * 1000))
        gate.release()
        put[0] += 1
        wait_for(done(app, put[0]))
        held = [*range(5)]
        wait_for(lambda: app.snapshot()["partitions"][0]["buffered"] >= len(held) - 1)

    scene.minutes(35, work)
    assert scene.fired() == {"PerkeyFallsBehind"}


def test_nothing_starts(scene):
    """The reader of the results does not read."""
    app = scene.app()
    app.consume("t")(named(lambda record: None))
    results = app.results()
    scene.start(app)
    scene.put(3_000)
    wait_for(lambda: any(h["cause"] == "results" for h in app.snapshot()["halts"]))
    scene.minutes(4)
    assert scene.fired() == {"PerkeyHalted"}
    results.close()


def test_a_call_is_overdue(scene):
    """A `def` in a thread cannot be ended by its timeout_s."""
    app, put = scene.app(), [0]

    @app.consume("t", concurrency=3, timeout_s=0.05, retry=perkey.Retry(attempts=1))
    def handler(record):
        if record.value == b"hang":
            scene.over.wait(60)

    scene.start(app)
    scene.put(1, b"hang", b"k")
    wait_for(lambda: app.snapshot()["handlers"]["handler"]["overdue"])

    def work():
        scene.put(5)
        put[0] += 5
        wait_for(done(app, put[0]))

    scene.minutes(7, work)
    assert scene.fired() >= {"PerkeyCallsOverdue"}


def test_dead_letters_and_those_of_a_new_type(scene):
    """The first of a type are an alert of their own, which clears; more of them are not."""
    app, put = scene.app(), [0]

    @app.consume("t", retry=perkey.Retry(attempts=1), on_exhausted=perkey.DeadLetter("t.dlq"))
    def handler(record):
        raise KeyError if record.value == b"new" else ValueError

    scene.start(app)

    def letter(value=b"old"):
        scene.put(1, value)
        put[0] += 1
        wait_for(lambda: app.snapshot()["handlers"]["handler"]["dead_lettered"] == put[0])

    scene.minutes(2)
    scene.minutes(3, letter)
    assert scene.fired() - {"PerkeyFailing"} == {"PerkeyDeadLetters", "PerkeyDeadLettersOfNewType"}
    scene.minutes(20, letter)
    assert scene.fired() - {"PerkeyFailing"} == {"PerkeyDeadLetters"}
    letter(b"new")
    scene.minutes(2)
    assert scene.fired() >= {"PerkeyDeadLettersOfNewType"}


def test_the_polling_thread_did_not_poll(scene, monkeypatch):
    """The process was stopped for 61 s; the alert clears once that is some minutes ago."""
    app, stopped_s = scene.app(), [0.0]
    app.consume("t")(named(lambda record: None))

    class Clock:
        """Of the machine, which goes on while the process is stopped."""

        @staticmethod
        def monotonic():
            return time.monotonic() + stopped_s[0]

    monkeypatch.setattr(group_membership, "time", Clock)
    scene.start(app)
    scene.minutes(2)
    assert scene.fired() == set()
    stopped_s[0] += 61
    wait_for(lambda: app.snapshot()["poll_gap_max_s"] > 60)
    scene.minutes(1)
    assert scene.fired() == {"PerkeyPollGap"}
    member = scene._runs[-1].member
    for _ in range(8):
        stopped_s[0] += 50  # these gaps are shorter than the alert's
        wait_for(lambda: Clock.monotonic() - member.poll_gaps.polled_at < 40)
        scene.minutes(1)
    assert scene.fired() == set()


def test_every_member_is_dead(scene):
    """Nothing of the group is scraped any more; an hour after it was removed it is forgotten."""
    app = scene.app()
    app.consume("t")(named(lambda record: None))
    scene.start(app)
    scene.minutes(3)
    scene.unreachable()
    scene.minutes(9)
    assert scene.fired() == {"PerkeyNoMember"}


def test_no_member_ever(scene):
    """The rules are there and nothing of Perkey was ever scraped."""
    scene.minutes(4)
    assert scene.fired() == {"PerkeyNoMember"}


def test_records_remain_and_no_member_runs(scene):
    """By what `perkey lag --listen` measures, which does not need them; the other members' too."""
    rows = [PartitionLag("t", 0, end=10, committed=3, remaining=7)]
    scene.board(lambda: rows)
    app = scene.app()
    app.consume("t")(named(lambda record: None))
    run = scene.start(app)
    scene.minutes(7)
    assert scene.fired() == set()
    run.stop()
    run.wait(30)
    scene.minutes(12)
    assert scene.fired() == {"PerkeyGroupNotRead"}


def test_the_lag_cannot_be_measured(scene):
    """The brokers do not answer `perkey lag`."""

    def measure():
        raise FatalError("no broker answers")

    scene.board(measure)
    app = scene.app()
    app.consume("t")(named(lambda record: None))
    scene.start(app)
    scene.minutes(7)
    assert scene.fired() == {"PerkeyLagNotMeasured"}


def test_dead_letters_are_not_brought_back(scene):
    """For an hour; `perkey dlq stats --listen` measures it, and it clears once they are back."""
    counts = {"other": 0, "Timeout": 3}
    scene.board(lambda: counts, LettersBoard, "t.dlq")
    app = scene.app()
    app.consume("t")(named(lambda record: None))
    scene.start(app)
    scene.minutes(60)
    assert scene.fired() == set()
    scene.minutes(2)
    assert scene.fired() == {"PerkeyDeadLettersNotBack"}
    counts["Timeout"] = 0
    scene.minutes(1)
    assert scene.fired() == set()


def test_dead_letters_cannot_be_counted(scene):
    """The brokers do not answer `perkey dlq stats --listen`."""

    def measure():
        raise FatalError("no broker answers")

    scene.board(measure, LettersBoard, "t.dlq")
    app = scene.app()
    app.consume("t")(named(lambda record: None))
    scene.start(app)
    scene.minutes(7)
    assert scene.fired() == {"PerkeyDeadLettersNotCounted"}


def test_every_alert_is_fired_by_a_scene():
    """No rule without one that brings it about; scenes may be played in several processes."""
    expected = re.findall(r"fired\(\).*?[>=]= (\{.*?\})", Path(__file__).read_text())
    named = {name for names in expected for name in re.findall(r'"(Perkey\w+)"', names)}
    assert named == {rule["alert"] for rule in RULES}


def written(points, until_s):
    """A series as promtool's tests have it: a value a minute, `_` for none."""
    known = dict(points)
    return " ".join(
        repr(known[at]) if at in known else "_"
        for at in (minute * MINUTE_S for minute in range(int(until_s // MINUTE_S) + 1))
    )


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool here: apt-get install prometheus"
)
def test_promtool_agrees(tmp_path):
    """Prometheus' own evaluation of every scene has the same alerts firing."""
    asked = {name for rule in RULES for name in re.findall(r"\bperkey_\w+", rule["expr"])}
    tests = []
    for name, (series, until_s, found) in PLAYED.items():
        rows = [
            {
                "series": metric + "{" + ",".join(f'{k}="{v}"' for k, v in labels) + "}",
                "values": written(points, until_s),
            }
            for (metric, labels), points in series.items()
            if metric in asked
        ]
        expected = [
            {"labels": f'{{alertname="{alert}"}}', "value": count}
            for alert, count in sorted(found.items())
        ]
        tests.append({
            "interval": "1m", "name": name, "input_series": rows,
            "promql_expr_test": [{
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{until_s:.0f}s", "exp_samples": expected,
            }],
        })  # fmt: skip
    path = tmp_path / "scenes.yml"
    path.write_text(yaml.safe_dump({
        "rule_files": [str(RULES_FILE)], "evaluation_interval": "1m", "tests": tests,
    }))  # fmt: skip
    done = subprocess.run(
        ["promtool", "test", "rules", str(path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
