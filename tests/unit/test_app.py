"""`perkey.App`: its options, its decorator, and what it refuses before it runs."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys

import pytest

import perkey

KAFKA = {"bootstrap.servers": "localhost:1"}


def handled(**options):
    """An app with one handler."""
    app = perkey.App(**{"group": "g", "kafka": KAFKA, **options})
    app.consume("t")(print)
    return app


def test_the_decorator_returns_the_function_unchanged():
    """It stays a function that tests and other code may call."""

    def check(record):
        return 7

    app = perkey.App(group="g", kafka=KAFKA)
    decorated = app.consume("t", concurrency=3)(check)
    assert decorated is check
    assert decorated("anything") == 7
    assert (app.handlers[0].function, app.handlers[0].concurrency) == (check, 3)


async def waits(_): ...


WRONG = {
    "no group": ({"group": ""}, "App(group='')", "consumer group's name"),
    "group with NUL": ({"group": "a\0b"}, "App(group='a\\x00b')", "cannot have these characters"),
    "group of another encoding": ({"group": "a\udcff"}, "App(group=", "cannot have these characters"),
    "blank group": ({"group": "  "}, "App(group='  ')", "consumer group's name"),
    "group 7": ({"group": 7}, "App(group=7)", "consumer group's name"),
    "long group": ({"group": "g" * 250}, "group=", "1 to 249"),
    "kafka text": ({"kafka": "localhost:9092"}, "App(kafka=...) must be a dict", "bootstrap.servers"),
    "producer list": ({"producer": []}, "App(producer=...) must be a dict", "librdkafka"),
    "drain": ({"drain_timeout_s": -1}, "drain_timeout_s=-1", "seconds, 0 or more"),
    "drain nan": ({"drain_timeout_s": math.nan}, "drain_timeout_s=nan", "seconds"),
    "revoke": ({"revoke_timeout_s": "5"}, "revoke_timeout_s='5'", "seconds"),
    "revoke too long": (
        {"revoke_timeout_s": 500},
        "App(revoke_timeout_s=500): at most 100 s, a third of max.poll.interval.ms",
        "raise that property",
    ),
    "records": ({"buffer_records": 0}, "buffer_records=0", "1 or more"),
    "bytes": ({"buffer_bytes": 2**20 - 1}, "buffer_bytes=1048575", "1048576 or more"),
    "bytes 1.5": ({"buffer_bytes": 1e9}, "buffer_bytes=1000000000.0", "whole number"),
    "lost": ({"on_offset_lost": "begin"}, "on_offset_lost='begin'", '"stop", "earliest", "latest"'),
    "lifespan": ({"lifespan": 7}, "App(lifespan=7)", "give a function, or None"),
    "lifespan of two": (
        {"lifespan": lambda app, pool: None},
        "App(lifespan=...) requires app, pool",
        "it gets the app, or nothing",
    ),
    "start": ({"start_timeout_s": 0}, "start_timeout_s=0", "or None"),
    "start text": ({"start_timeout_s": "15"}, "start_timeout_s='15'", "seconds above 0"),
    "start nan": ({"start_timeout_s": math.nan}, "start_timeout_s=nan", "or None"),
    "on_result waits": ({"on_result": waits}, "App(on_result=...) is an async", "a plain `def`"),
    "on_commit waits": ({"on_commit": waits}, "App(on_commit=...) is an async", "a plain `def`"),
    "on_assign waits": ({"on_assign": waits}, "App(on_assign=...) is an async", "a plain `def`"),
    "on_revoke waits": ({"on_revoke": waits}, "App(on_revoke=...) is an async", "a plain `def`"),
    "on_error waits": ({"on_error": waits}, "App(on_error=...) is an async", "a plain `def`"),
    "on_assign takes none": ({"on_assign": lambda: 0}, "1 argument:", "on_assign(partitions)"),
    "on_error takes one":
    ({"on_error": lambda record: 0}, "4 arguments:", "on_error(record, error, attempt, outcome)"),
    "callback": ({"on_commit": "f"}, "App(on_commit='f')", "give a function, or None"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_option_of_the_app_is_named_with_its_cure(name):
    """Where the app is made, in one line."""
    options, *words = WRONG[name]
    with pytest.raises(perkey.ConfigError) as caught:
        handled(**options)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    "options",
    [
        {"group": "g" * 249},
        {"buffer_records": 1},
        {"buffer_bytes": 2**20},
        {"drain_timeout_s": 0, "revoke_timeout_s": 0},
        {"start_timeout_s": None},
        {"start_timeout_s": 0.001},
    ],
)
def test_the_limits_themselves_are_allowed(options):
    """The least and the longest there may be."""
    handled(**options)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"engine": "flink"}, "engine='flink' is not known"),
        ({"until": "empty"}, "until='empty' is not known: give \"drained\""),
        ({"members": 3}, 'members requires engine="spark"'),
        ({"master": "local[2]"}, "master requires engine"),
        ({"conf": {"a": "b"}}, "conf requires engine"),
        ({"spark": object()}, "spark requires engine"),
    ],
)
def test_ways_to_run_that_there_are_not(how, said):
    """Refused before any client is made."""
    with pytest.raises(perkey.ConfigError, match=said):
        handled().run(**how)


PROPERTIES = {
    "unknown": ({"fetch.max.byte": 1}, "fetch.max.byte is unknown", "did you mean fetch.max.bytes?"),
    "no brokers": ({}, "bootstrap.servers is missing", "localhost:9092"),
    "group.id": ({"group.id": "x"}, "group.id is set by Perkey", "App(group=...)"),
    "auto commit": ({"enable.auto.commit": True}, "enable.auto.commit is set by Perkey", "perkey.Commit"),
    "store": ({"enable.auto.offset.store": True}, "is set by Perkey", "perkey.Commit"),
    "eof": ({"enable.partition.eof": True}, "is set by Perkey", "drained"),
    "idempotence": ({"enable.idempotence": False}, "is set by Perkey", "delivery"),
    "transactional": ({"transactional.id": "x"}, "is set by Perkey", "exactly_once"),
    "a producer's": ({"acks": "some"}, "acks", "takes"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROPERTIES)
def test_properties_of_kafka_that_cannot_be(name):
    """Unknown ones, and those that Perkey must own, name what to use instead."""
    properties, *words = PROPERTIES[name]
    kafka = properties if name == "no brokers" else {**KAFKA, **properties}
    with pytest.raises(perkey.ConfigError) as caught:
        handled(kafka=kafka).run()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("option", "cure"),
    [
        ("lifespam", ": did you mean lifespan?"),
        (
            "bootstrap_servers",
            ': a property of Kafka belongs into kafka={"bootstrap.servers": ...}',
        ),
    ],
)
def test_an_unknown_option_is_named_with_its_cure(option, cure):
    """A slip of the pen, and what confluent-kafka or kafka-python take by name."""
    with pytest.raises(TypeError) as error:
        perkey.App("g", {"bootstrap.servers": "x"}, **{option: "y"})
    assert str(error.value) == f"App() got an unexpected keyword argument {option!r}{cure}"


def test_an_app_without_a_handler_does_not_run():
    """The message shows the decorator."""
    with pytest.raises(
        perkey.ConfigError, match=r"no handler: decorate a function with @app\.consume"
    ):
        perkey.App(group="g", kafka=KAFKA).run()


def test_two_handlers_of_one_topic_are_refused():
    """Both are named; a handler may name a topic twice."""
    app = handled()
    with pytest.raises(perkey.ConfigError, match="'t' has two handlers, print and len"):
        app.consume(["u", "t"])(len)
    app.consume(["v", "v"])(len)
    assert [handler.name for handler in app.handlers] == ["print", "len"]


def test_the_repr_shows_no_property():
    """It would show passwords."""
    app = handled(
        kafka={**KAFKA, "sasl.password": "hunter2"}, producer={"sasl.password": "hunter2"}
    )
    assert repr(app) == "<App group='g' handlers=[print]>"
    assert "hunter2" not in repr(app.options) + repr(app.handlers)


def test_the_dictionaries_are_copied():
    """What the caller changes later changes nothing."""
    kafka = dict(KAFKA)
    app = handled(kafka=kafka)
    kafka["group.id"] = "late"
    assert "group.id" not in app.options.kafka


def test_what_needs_a_run_reports_it():
    """A snapshot before the start; a stop is nothing, an unknown mode an error."""
    app = handled()
    with pytest.raises(perkey.NotStarted, match=r"call app\.run\(\), app\.start\(\)"):
        app.snapshot()
    app.stop()
    app.pause("t")
    app.resume()
    with pytest.raises(perkey.ConfigError, match=r"stop\('later'\)"):
        app.stop("later")


def test_results_have_one_reader():
    """Until that one has gone."""
    app = handled()
    stream = app.results()
    with pytest.raises(perkey.ConfigError, match="one reader"):
        app.results()
    stream.close()
    app.results()


def test_state_is_none_before_the_start():
    """It is the value of the lifespan, later."""
    assert handled().state is None


LOADED = """
import sys
import perkey
app = perkey.App(group="g", kafka={"bootstrap.servers": "localhost:1"})
app.consume("t", value="json", retry=perkey.Retry(attempts=2))(lambda record: None)
declared = set(sys.modules)
import perkey.runtime.run.run
running = set(sys.modules)
from perkey.cli.main import run
run(["--version"])
version = set(sys.modules)
print([
    sorted(declared & {"typer", "rich", "pydantic", "confluent_kafka", "asyncio", "perkey.core",
                       "perkey.kafka.schema"}),
    sorted(running & {"typer", "rich", "pydantic", "pyspark", "starlette", "fastavro", "httpx2"}),
    sorted(version & {"typer", "rich"}),
])
"""


def test_what_is_not_imported():
    """Declaring an app loads no client and no loop, a run none of the command's libraries."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[1] == "[[], [], []]", done.stdout


ALONE = """
import importlib.abc, sys
EXTRAS = {"aiosqlite", "asyncpg", "deltalake", "fastavro", "opentelemetry", "pandas",
          "prometheus_client", "psycopg", "pyarrow", "pydantic", "pyiceberg", "pyspark",
          "sqlalchemy", "starlette", "textual", "uvicorn", "uvloop"}
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import perkey
from perkey.testing import MemoryKafka
kafka = MemoryKafka(auto_create=True)
kafka.produce("t", "text")
app = perkey.App(group="g", kafka={"bootstrap.servers": kafka.bootstrap})
app.consume("t")(lambda record: None)
print(app.run(until="drained").done)
"""


def test_an_app_runs_without_any_extra():
    """As `pip install perkey` leaves it: SQLAlchemy was imported by every run, not by ledgers."""
    command = [sys.executable, "-c", ALONE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip() == "1", done.stderr


def test_a_handler_that_comes_too_late_is_refused():
    """Decorated while the app runs it would never be called."""
    app = handled()
    app._run = type("Run", (), {"over": False})()
    with pytest.raises(perkey.ConfigError, match="say: the app is running and would never call it"):
        app.consume("u")(say)
    app._run.over = True
    app.consume("u")(say)


def say(record):
    """A handler."""


def test_a_served_app_that_fails_is_logged(caplog):
    """`asyncio.create_task(app.serve())` that nobody awaits would end in silence."""

    async def main():
        task = asyncio.create_task(handled(kafka={"bootstrap.servers": "memory://none"}).serve())
        await asyncio.wait([task])
        return task.exception()

    error = asyncio.run(main())
    (line,) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert line.startswith("app.serve() failed")
    assert type(error).__name__ in line
