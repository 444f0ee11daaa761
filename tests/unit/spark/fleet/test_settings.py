"""What is asked of a fleet, checked before Java is started."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

import perkey
from perkey.spark import requirements
from perkey.spark.fleet import settings
from perkey.spark.fleet.limits import MEMBERS_MAX
from perkey.spark.fleet.settings import (
    check_java,
    check_master_answers,
    choose_python,
    effective_master,
    fleet_settings,
)


def handle(record: perkey.Record) -> None:
    """A handler."""


def app_with_a_handler() -> perkey.App:
    """An app that could run."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "localhost:1"})
    app.consume("t")(handle)
    return app


@pytest.mark.parametrize("members", [None, 0, -1, True, 2.0, "2", MEMBERS_MAX + 1])
def test_members_must_be_a_number_in_range(members) -> None:
    """members=0 and the like are one line that names the range."""
    with pytest.raises(perkey.ConfigError, match=rf"^members=.* from 1 to {MEMBERS_MAX}$"):
        app_with_a_handler().run(engine="spark", members=members)


@pytest.mark.parametrize("members", [1, MEMBERS_MAX - 1, MEMBERS_MAX])
def test_members_within_the_limit_pass(members) -> None:
    """The limit itself is allowed."""
    assert fleet_settings(members, None, None, None).members == members


@pytest.mark.parametrize("master", ["sprak://x:1", "spark://", "local[x]", "mesos://h:1", "", 3])
def test_an_unknown_master_is_named(master) -> None:
    """A master that Spark does not know is one line with those it does."""
    with pytest.raises(perkey.ConfigError, match="is no Spark master: give local"):
        fleet_settings(2, master, None, None)


@pytest.mark.parametrize("master", ["yarn", "k8s://https://h:6443", "spark://a:1,b:2", "local[*]"])
def test_known_masters_pass(master) -> None:
    """What Spark knows is not Perkey's to judge further."""
    assert fleet_settings(2, master, None, None).master == master


@pytest.mark.parametrize("master", ["local[2]", "local[2,5]", "local-cluster[2,1,512]"])
def test_a_local_master_with_too_few_slots(master) -> None:
    """Local masters say how many tasks they run: fewer than members is told with both numbers."""
    assert fleet_settings(2, master, None, None).members == 2
    with pytest.raises(perkey.ConfigError, match="runs 2 concurrent tasks and members=3"):
        fleet_settings(3, master, None, None)


def test_local_masters_are_written_to_retry() -> None:
    """local[N] never retries a task: it becomes local[N,F], others stay as they are."""
    assert effective_master(None, 3) == "local[3,1000]"
    assert effective_master("local", 3) == "local[3,1000]"
    assert effective_master("local[4]", 3) == "local[4,1000]"
    assert effective_master("local[4,2]", 3) == "local[4,2]"
    assert re.fullmatch(r"local\[\d+,1000\]", effective_master("local[*]", 3))
    assert effective_master("spark://h:1", 3) == "spark://h:1"


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({"spark.speculation": "true"}, "spark.speculation=true cannot be used"),
        ({"spark.speculation": True}, "spark.speculation=true cannot be used"),
        ({"spark.python.worker.killOnIdleTimeout": True}, "killOnIdleTimeout=true cannot be used"),
        ({"executor.memory": "1g"}, "which start with spark."),
        ({3: "x"}, "which start with spark., and none of Perkey's"),
        ({"spark.master": "local"}, "is given by master="),
        ({"spark.x": object()}, "must be text or a number"),
        ({"perkey.control.port": "70000"}, "from 0 to 65535"),
        ({"perkey.control.wait_s": "soon"}, "from 1 to 86400"),
        ("spark.x=1", "must be a dict"),
    ],
)
def test_conf_is_checked(conf, words) -> None:
    """Speculation, foreign keys and what is no text are refused in one line."""
    with pytest.raises(perkey.ConfigError, match=re.escape(words)):
        fleet_settings(2, None, None, conf)


def test_members_have_30_s_to_dial_in() -> None:
    """Unless perkey.control.wait_s gives them more, for executors that must be started first."""
    assert fleet_settings(2, None, None, None).wait_s == 30
    assert fleet_settings(2, None, None, {"perkey.control.wait_s": 600}).wait_s == 600


def test_a_given_session_has_its_own_settings() -> None:
    """master= and conf= beside spark= would be ignored, so they are refused."""
    with pytest.raises(perkey.ConfigError, match="master= cannot be given with spark="):
        fleet_settings(2, "local[2]", object(), None)
    given = {"spark.x": 1, "perkey.ship.data": "*"}
    session = SimpleNamespace(range=None, conf=None)
    with pytest.raises(perkey.ConfigError, match=r"conf spark\.x cannot be given with spark="):
        fleet_settings(2, None, session, given)
    with pytest.raises(
        perkey.ConfigError, match=r"conf spark\.x cannot be given with master=sc://h"
    ):
        fleet_settings(2, "sc://h:1", None, given)
    assert fleet_settings(2, None, session, {"perkey.ship.data": "a, b,"}).data == ["a", "b"]
    with pytest.raises(perkey.ConfigError, match="must be a SparkSession, not a object"):
        fleet_settings(2, None, object(), None)


def test_spark_words_with_the_local_engine() -> None:
    """members= and the like mean nothing in one process, and say so."""
    with pytest.raises(perkey.ConfigError, match='members requires engine="spark"'):
        app_with_a_handler().run(members=2)
    with pytest.raises(perkey.ConfigError, match="engine='flink' is not known"):
        app_with_a_handler().run(engine="flink")


def test_missing_or_wrong_packages_are_named(monkeypatch) -> None:
    """No PySpark, an old one, and pandas 3 are one line each, with the extra that cures it."""
    versions = {"pyspark": "4.3.0", "pyarrow": "20.0", "pandas": "3.0.1"}
    monkeypatch.setattr(requirements, "installed_version", versions.get)
    with pytest.raises(perkey.ConfigError, match=r"pandas>=2.2,<3.0, found 3.0.1: pip install"):
        fleet_settings(2, None, None, None)
    versions.update(pandas="2.2.0", pyspark="3.4.1")
    with pytest.raises(perkey.ConfigError, match=r"pyspark>=3.5,<5.0, found 3.4.1"):
        fleet_settings(2, None, None, None)
    del versions["pyspark"]
    with pytest.raises(perkey.ConfigError, match="pyspark, which is not installed"):
        fleet_settings(2, None, None, None)


def test_no_java_and_old_java(monkeypatch, tmp_path: Path) -> None:
    """Without Java, and with one that is too old, Spark is not even tried."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(perkey.ConfigError, match=r"JAVA_HOME=.* has none: install Java 17"):
        check_java()
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(perkey.ConfigError, match="is Java 11, too old for Spark"):
        check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setattr(settings.shutil, "which", lambda _: None)
    with pytest.raises(perkey.ConfigError, match="none was found: install Java 17"):
        check_java()


def test_a_master_that_is_not_there() -> None:
    """Nobody at the master's address is a line now, not a minute of Spark's retries."""
    with pytest.raises(
        perkey.ConfigError, match=r"no Spark master answers at spark://127.0.0.1:1 "
    ):
        check_master_answers("spark://127.0.0.1:1")
    check_master_answers("yarn")


def test_executors_here_run_this_python(monkeypatch) -> None:
    """On this machine's masters the driver's Python is used; what the user chose stays."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    choose_python("spark://far.away:7077", {})
    assert "PYSPARK_PYTHON" not in os.environ
    choose_python("local[2]", {"spark.pyspark.python": "/p"})
    assert "PYSPARK_PYTHON" not in os.environ
    monkeypatch.setenv("PYSPARK_PYTHON", "mine")
    choose_python("local[2]", {})
    assert os.environ["PYSPARK_PYTHON"] == "mine"


@pytest.mark.parametrize(
    ("kafka", "words"),
    [
        ({"bootstrap.servers": "memory://x"}, "memory:// broker lives in this process"),
        (
            {"bootstrap.servers": "h:1", "group.instance.id": "i"},
            "group.instance.id is set by Perkey",
        ),
        (
            {"bootstrap.servers": "h:1", "group.instance.id": "i", "group.protocol": "consumer"},
            "group.instance.id is set by Perkey",
        ),
    ],
)
def test_what_kafka_settings_a_fleet_refuses(kafka, words) -> None:
    """A broker inside this process, and static ids of the user's own."""
    app = perkey.App(group="g", kafka=kafka)
    app.consume("t")(handle)
    with pytest.raises(perkey.ConfigError, match=words):
        app.run(engine="spark", members=2)
