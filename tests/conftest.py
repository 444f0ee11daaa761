"""What every test shares: which lane it belongs to, and when its turn comes.

`make test` deals the tests out to its workers one by one in the order given here, the longest
first (tests/support/dealing.py).
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from tests.support import spark_archive

if TYPE_CHECKING:
    from perkey.broker import LocalBroker

# How long an example takes says how busy the machine is.
settings.register_profile("perkey", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("perkey")

# The JVMs of the tests (brokers, Spark) are short-lived: what the second compiler and a parallel
# collector spend on them, they never bring back. Two fifths of the processor time of a Spark test.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# And of Spark: most of a start is reading its classes.
os.environ.setdefault("SPARK_SUBMIT_OPTS", spark_archive.options())
# So long Spark's Python processes wait for each other's hello, those of a streaming source, too.
os.environ.setdefault("SPARK_AUTH_SOCKET_TIMEOUT", "120")

TESTS = Path(__file__).parent
INTEGRATION = TESTS / "integration"
#: Folders and files of the longest tests; the very longest of all first.
HEAVY = tuple(
    str(TESTS / name)
    for name in (
        "integration/test_demo.py",
        "simulation",
        "integration/spark",
        "integration/matrix",
        "integration/processes",
        "integration/delivery",
        "integration/workers",
        "integration",
        "typing",
        "contract",
    )
)


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the lanes; the longest come first."""
    for item in items:
        if _needs_broker(item):
            item.add_marker(pytest.mark.broker)
        if str(item.path).startswith(f"{INTEGRATION}/spark/"):
            item.add_marker(pytest.mark.spark)
    items.sort(key=lambda item: _turn(str(item.path)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist load` our own way to deal."""
    if config.getvalue("dist") != "load":
        return None
    from tests.support.dealing import Dealing

    return Dealing(config, log)


def _needs_broker(item: pytest.Item) -> bool:
    given = getattr(item, "callspec", None)
    in_memory = given is not None and given.params.get("kafka") == "memory"
    if str(item.path).startswith(f"{INTEGRATION}/"):
        return not in_memory
    return "kafka_broker" in getattr(item, "fixturenames", ())


@cache
def _turn(path: str) -> int:
    turns = (n for n, place in enumerate(HEAVY) if path == place or path.startswith(f"{place}/"))
    return next(turns, len(HEAVY))


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[LocalBroker]:
    """The one broker of all workers; without workers its own."""
    from tests.support import one_broker  # most tests need none

    if path := os.environ.get(one_broker.PATH):
        yield one_broker.Lent(path)
    else:
        with one_broker.started() as broker:
            yield broker


@pytest.fixture(autouse=True)
def _environment_is_put_back() -> Iterator[None]:
    """What a command sets for its own process ends with the test that called it."""
    before = dict(os.environ)
    yield
    after = dict(os.environ)
    if after != before:
        for name in after.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


class _Failures:
    """Says which test failed as soon as it has: a run that is cut short still names it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One line, beside the F."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            lines = report.longreprtext.splitlines()
            said = next((line[1:].strip() for line in lines if line.startswith("E  ")), "")
            terminal.write_line(f"\nFAILED in {report.when}: {report.nodeid}: {said[:200]}")


def pytest_configure(config: pytest.Config) -> None:
    """Failures are said at once where the output is seen: not in xdist's workers."""
    base = _own_folders(config)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Failures(config))
        if config.getoption("dist", "no") != "no":
            from tests.support.one_broker import Lender

            Lender(config, str(base / "lender"))


def _own_folders(config: pytest.Config) -> Path:
    """Each worker is a user of its own: members of another's tests hold none of its slots.

    An app that is started again under another `transactional.id`, because a group of the same name
    held its slot in the meantime, does not end what was left open under the first.
    """
    base = Path(tempfile.mkdtemp(prefix="perkey-"))  # short: a socket's path has 107 characters
    config.add_cleanup(lambda: shutil.rmtree(base, ignore_errors=True))
    for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        os.environ[name] = str(base / name[4:].lower())
        Path(os.environ[name]).mkdir(0o700)
    return base


@pytest.fixture(autouse=True)
def _no_thread_of_ours_dies(request: pytest.FixtureRequest) -> Iterator[None]:
    """A `perkey-*` thread that dies fails the test, unless it is there to see that.

    pytest itself does so for what escapes from a thread; guarded threads tell it in the log.
    """
    deaths = _Deaths(logging.CRITICAL)
    log = logging.getLogger("perkey")
    log.addHandler(deaths)
    yield
    log.removeHandler(deaths)
    if request.node.get_closest_marker("threads_may_die") is None:
        assert deaths.told == []


class _Deaths(logging.Handler):
    """Keeps what guard.py says of dead threads."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        text = record.getMessage()
        if text.startswith("thread ") and " died" in text:
            self.told.append(f"{text}: {record.exc_info and record.exc_info[1]!r}")


def pytest_collection_finish() -> None:
    """What was imported and collected stays: the garbage collector need not walk over it."""
    gc.collect()
    gc.freeze()
