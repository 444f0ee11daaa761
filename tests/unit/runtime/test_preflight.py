"""What a start does while no broker answers."""

from __future__ import annotations

import pytest

import perkey
from perkey.errors import ConfigError, FatalError
from perkey.kafka.ports import KafkaUnavailable
from perkey.routing import Routes
from perkey.runtime.run import preflight
from perkey.runtime.run.preflight import check_cluster


class Cluster:
    """An admin client of brokers that answer after a while; every request takes its whole time."""

    def __init__(self, away_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.away_s = away_s
        self.now = 0.0
        self.limits: list[float] = []
        self.missing: set[str] = set()
        self.created: list[str] = []
        monkeypatch.setattr(preflight, "time", self)

    def monotonic(self) -> float:
        """The time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds

    def describe(self, topics: list[str], timeout_s: float) -> list[str]:
        """All are there, once brokers are."""
        self.limits.append(timeout_s)
        if self.now + timeout_s < self.away_s:
            self.now += timeout_s
            raise KafkaUnavailable("connection refused")
        return [one for one in topics if one not in self.missing]

    def create_topic(self, topic: str, partitions: int, *, config: dict[str, str]) -> None:
        """It is there from now on."""
        self.missing.remove(topic)
        self.created.append(topic)

    def described(self) -> str:
        """Its address."""
        return "kafka:9092"

    def matching(self, patterns: list[str], timeout_s: float) -> list[str]:
        """None yet: a topic that Perkey makes is made at the start."""
        return []

    def start(self, stopped=lambda: False, topic="t", handler=None, **options):
        """Check it for an app."""
        app = perkey.App(group="g", kafka={"bootstrap.servers": "x:1"}, **options)
        app.consume(topic, **handler or {})(print)
        routes = Routes(app.handlers)
        return check_cluster(self, self, routes, app.handlers, app.options, stopped)


@pytest.mark.parametrize(("patience", "after"), [(15.0, 15.0), (3.0, 3.0), (40.0, 40.0)])
def test_a_start_waits_as_long_as_it_may(monkeypatch, patience, after):
    """And says for how long it did."""
    cluster = Cluster(1e9, monkeypatch)
    with pytest.raises(FatalError, match=f"no answer from kafka:9092 within {after:.0f} s"):
        cluster.start(start_timeout_s=patience)
    assert after - 0.2 <= cluster.now <= after + 0.7


def test_brokers_that_come_in_time_are_enough(monkeypatch):
    """Without a line, where they come within five seconds."""
    cluster = Cluster(30.0, monkeypatch)
    assert cluster.start(start_timeout_s=60.0) == ["t"]
    assert cluster.limits[0] == preflight.FIRST_ASK_S


def test_a_start_without_a_limit_is_logged(monkeypatch, caplog):
    """After five seconds and then each minute, while it waits for ever."""
    cluster = Cluster(600.0, monkeypatch)
    assert cluster.start(start_timeout_s=None) == ["t"]
    told = [line.getMessage() for line in caplog.records]
    assert all("no broker answers yet" in line and "kafka:9092" in line for line in told)
    assert 8 <= len(told) <= 11
    assert max(cluster.limits) == preflight.ANSWER_S


def test_a_stop_ends_the_wait(monkeypatch):
    """`app.stop()` of an app that was started for ever."""
    cluster = Cluster(1e9, monkeypatch)
    with pytest.raises(FatalError, match="no answer"):
        cluster.start(lambda: cluster.now > 100, start_timeout_s=None)
    assert cluster.now < 130


@pytest.mark.parametrize("missing", [{"seen"}, set()])
def test_a_missing_topic_of_reports_is_created(monkeypatch, missing):
    """Once; one that is there stays as it is."""
    cluster = Cluster(0.0, monkeypatch)
    cluster.missing = set(missing)
    cluster.start(reports="seen")
    assert cluster.created == sorted(missing)


@pytest.mark.parametrize("name", ["control", "reports"])
@pytest.mark.parametrize(
    ("topic", "handler", "reason"),
    [
        ("own", {}, "a handler reads this topic, and would handle what members write there"),
        ("^o.*", {}, "a handler reads this topic by the pattern '^o.*'"),
        ("t", {"output": "own"}, "a handler writes to this topic"),
        ("t", {"on_exhausted": perkey.DeadLetter("own")}, "a handler writes to this topic"),
        ("t", {"on_exhausted": perkey.Park(dead_letter="own")}, "a handler writes to this topic"),
        ("t", {"on_exhausted": perkey.DeadLetter("own", on_missing="create")}, "a handler writes"),
    ],
)
def test_a_topic_of_perkeys_own_records_is_no_handlers(monkeypatch, name, topic, handler, reason):
    """It would handle the heartbeats and reports of all members, or write among the commands."""
    with pytest.raises(ConfigError, match="own") as refused:
        Cluster(0.0, monkeypatch).start(topic=topic, handler=handler, **{name: "own"})
    assert f"App({name}='own'): " in str(refused.value)
    assert reason in str(refused.value)
    assert Cluster(0.0, monkeypatch).start(topic="t", **{name: "own"}) == ["t"]
