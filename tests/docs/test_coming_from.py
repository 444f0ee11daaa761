"""The pages for users of other consumers: their code runs, their names exist, groups move."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
import types
import uuid
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import confluent_kafka
import pytest
from tests.docs.test_site_blocks import DOCS, NOT_RUN, code_of

import perkey
from perkey.app_options import AppOptions
from perkey.broker import LocalBroker
from perkey.broker.topics import create_topic
from perkey.handler_types import RunOptions
from perkey.kafka.properties import CALLBACKS, properties
from perkey.options import HandlerOptions
from perkey.testing import VirtualClock, run

FOLDER = DOCS / "coming-from"
#: those that show a program before and after, by the name of their file
PAGES = {
    **{path.stem: path for path in sorted(FOLDER.glob("*.md"))},
    "from-java": DOCS / "from-java.md",
}
BESIDE = {"index", "group-id"}
PROGRAMS = sorted(PAGES.keys() - BESIDE)
PARTS = ["Before", "After", "What corresponds to what", "Migrate", "What is missing here"]
RECORDS = 200
Load = Callable[[str, str], Any]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Runs code as a module of a name."""

    def made(name: str, code: str) -> Any:
        module = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(code, name, "exec", dont_inherit=True), module.__dict__)
        return module

    return made


def before(page: str) -> str:
    """The code of the other library: the first block that is marked as not run."""
    found = NOT_RUN.search(PAGES[page].read_text())
    assert found is not None, page
    return found[0].partition("```python\n")[2].removesuffix("```")


def after(page: str) -> str:
    """The code of the page that runs."""
    return code_of(PAGES[page].read_text())


def rows(text: str) -> list[tuple[str, str]]:
    """The table of a page: the other library's side, and Perkey's."""
    table = text.partition("## What corresponds to what\n")[2]
    lines = re.findall(r"(?m)^\| (.+) \|$", table.partition("\n## ")[0])[1:]
    return [(left, right) for left, _, right in (line.partition(" | ") for line in lines)]


def quoted(text: str) -> list[str]:
    """What is in backticks."""
    return re.findall(r"`([^`]+)`", text)


@pytest.mark.parametrize("page", PROGRAMS)
def test_each_page_has_its_parts(page: str) -> None:
    """Before and after, the table, the steps there and back, and what is missing."""
    text = PAGES[page].read_text()
    heads = re.findall(r"(?m)^## (.+)$", text)
    assert [head for head in heads if head in PARTS] == PARTS
    steps = text.partition("## Migrate")[2].partition("\n## ")[0]
    assert "**Roll back**" in steps
    assert len(rows(text)) >= 15
    assert len(re.findall(r"(?m)^- ", text.partition("## What is missing here")[2])) >= 4


GOOD, PLAIN = {"id": 1}, {"id": 1, "cents": 5}
INVOICE = {"order": 1, "cents": 5}


#: a page, a good record, what its handler prints, its output, the outcome of a broken record
AFTER = [
    ("confluent-kafka", GOOD, "billed 1", None, "dead_lettered"),
    ("aiokafka", GOOD, "billed 1", None, "dead_lettered"),
    ("faststream", PLAIN, "", INVOICE, "dead_lettered"),
    ("celery", {"order_id": 7, "cents": 990}, "billed 7 990", None, "dead_lettered"),
    ("faust", PLAIN, "", INVOICE, "parked"),
    ("arroyo", GOOD, "billed 1", None, "dead_lettered"),
    ("spring-kafka", PLAIN, "", INVOICE, "dead_lettered"),
    ("from-java", GOOD, "billed 1", None, "dead_lettered"),
    ("sqs-fifo", GOOD, "billed 1", None, "dead_lettered"),
]


@pytest.mark.parametrize(
    ("page", "good", "printed", "invoice", "given_up"), AFTER, ids=[case[0] for case in AFTER]
)
def test_the_program_after_handles_its_records(
    load: Load, capsys: Any, page: str, good: Any, printed: str, invoice: Any, given_up: str
) -> None:
    """A good record is done, with its output; one that cannot be decoded does not stop the run."""
    app = load("after", after(page)).app
    results = {result.record.key: result for result in run(app, [("a", good), ("b", b"no json")])}
    assert results[b"a"].outcome == "done", results[b"a"].error
    assert results[b"b"].outcome == given_up
    assert capsys.readouterr().out.strip() == printed
    sent = [json.loads(one.value) for one in results[b"a"].outputs]
    assert sent == ([] if invoice is None else [invoice])


def test_every_program_is_tried() -> None:
    """No page is left out above."""
    assert sorted(str(case[0]) for case in AFTER) == PROGRAMS


@pytest.mark.parametrize("page", ["confluent-kafka", "aiokafka"])
def test_only_the_key_of_a_failing_record_waits(load: Load, page: str) -> None:
    """As the comment in the code claims; the loop before it stops everything."""
    module = load("after", after(page))
    billed: list[int] = []
    fails = iter([ConnectionError(), ConnectionError()])

    def bill(_: str, number: int) -> None:
        if number == 1 and (error := next(fails, None)):
            raise error
        billed.append(number)

    module.print = bill
    clock = VirtualClock()
    run(module.app, [("a", {"id": 1}), ("a", {"id": 2}), ("b", {"id": 3})], clock=clock)
    assert billed == [3, 1, 2]
    assert clock.elapsed_s >= 0.2


# -- names ---------------------------------------------------------------------------------------

#: what a cell of the other side may name besides its library
ELSEWHERE = {"ThreadPoolExecutor", "asyncio", "create_ssl_context", "sleep", "try"}
ELSEWHERE |= {"latest", "read_uncommitted"}  # defaults


def known_of_confluent() -> set[str]:
    """The names of the installed confluent-kafka, and those of librdkafka's properties."""
    parts = (confluent_kafka, confluent_kafka.Consumer, confluent_kafka.Message)
    found = {name for part in (*parts, confluent_kafka.Producer) for name in dir(part)}
    for module in ("confluent_kafka.aio", "confluent_kafka.schema_registry.avro"):
        found |= set(dir(importlib.import_module(module)))
    text = str(confluent_kafka.Consumer.subscribe.__doc__)
    found |= set(re.findall(r"\bon_\w+", text))
    return found | properties().keys() | CALLBACKS.keys()


def known_of_aiokafka() -> set[str]:
    """The names of the installed aiokafka: classes, methods and options."""
    aiokafka = importlib.import_module("aiokafka")
    parts = (
        aiokafka,
        aiokafka.AIOKafkaConsumer,
        aiokafka.AIOKafkaProducer,
        aiokafka.ConsumerRecord,
    )
    found = {name for part in parts for name in dir(part)}
    found |= set(inspect.signature(aiokafka.AIOKafkaConsumer.__init__).parameters)
    roundrobin = importlib.import_module("aiokafka.coordinator.assignors.roundrobin")
    return found | set(dir(roundrobin)) | set(aiokafka.ConsumerRecord.__dataclass_fields__)


def heads(code: str) -> list[str]:
    """The first name of what is quoted: `message.timestamp` → timestamp, `seek()` → seek."""
    name = code.removeprefix("message.").removeprefix(".").split("=")[0].split("(")[0]
    return [name] if re.fullmatch(r"[A-Za-z_][\w.]*\w", name) else []


KNOWN = {"confluent-kafka": known_of_confluent, "aiokafka": known_of_aiokafka}


def others(text: str, known: set[str]) -> set[str]:
    """Names on the other side of the table that the installed library does not have."""
    names = {name for left, _ in rows(text) for code in quoted(left) for name in heads(code)}
    return {name for name in names - known if name.split(".")[0] not in known | ELSEWHERE}


def not_properties(text: str) -> set[str]:
    """Dotted names on Perkey's side that are no property, nor an attribute of app or record."""
    names = {code.split("=")[0] for _, right in rows(text) for code in quoted(right)}
    dotted = {name for name in names if re.fullmatch(r"[a-z]+(\.[a-z]+)+", name)}
    ours = {name for name in dotted if name.split(".")[0] in {"app", "record", "perkey"}}
    return dotted - ours - properties().keys()


def options() -> set[str]:
    """Every option of Perkey, and every parameter of its policies."""
    names = {one.name for taken in (AppOptions, HandlerOptions) for one in fields(taken)}
    public = (getattr(perkey, name) for name in perkey.__all__)
    for thing in filter(inspect.isclass, public):
        if not issubclass(thing, Exception):
            names |= set(inspect.signature(thing).parameters)
    return names | set(RunOptions.__annotations__)


def not_perkey(text: str) -> set[str]:
    """Names of the module, and options in the table, that Perkey does not have."""
    names = set(re.findall(r"\bperkey\.(\w+)", code_of(text) + " ".join(quoted(text))))
    gone = {name for name in names - {"testing"} if not hasattr(perkey, name)}
    codes = " ".join(code for _, right in rows(text) for code in quoted(right))
    return gone | (set(re.findall(r"(?<![\w.])([a-z_]+)=(?!=)", codes)) - options())


def sections() -> dict[str, str]:
    """What the reference has about each command."""
    text = "".join(path.read_text() for path in (DOCS / "reference/commands").glob("*.md"))
    found = re.split(r"(?m)^## `perkey (.+)`$", text)
    return dict(zip(found[1::2], found[2::2], strict=True))


def not_commands(text: str) -> set[str]:
    """Commands, or their options, that the reference does not have."""
    known = sections()
    groups = {name.partition(" ")[0] for name in known if " " in name}
    gone = set()
    for call in quoted(text.replace("\n", " ")):
        words = call.split()
        if words[0] != "perkey" or len(words) == 1:
            continue
        name = next((one for one in (" ".join(words[1:3]), words[1]) if one in known), "")
        if not name and (len(words) > 2 or words[1] not in groups):
            gone.add(call)
        wrong = [one for one in re.findall(r"--[a-z-]+", call) if one not in known.get(name, "")]
        gone |= {call} if wrong else set()
    return gone


@pytest.mark.parametrize("page", KNOWN)
def test_names_of_the_other_library_exist(page: str) -> None:
    """Each name on the left side of the table is one of the installed version."""
    text = PAGES[page].read_text()
    assert others(text, KNOWN[page]()) == set()
    assert others(text.replace("`pause()`", "`pausing()`"), KNOWN[page]()) == {"pausing"}


@pytest.mark.parametrize("page", KNOWN)
def test_properties_of_librdkafka_exist(page: str) -> None:
    """Each dotted name on Perkey's side is a property, or an attribute of app or record."""
    assert not_properties(PAGES[page].read_text()) == set()


@pytest.mark.parametrize("page", sorted(PAGES))
def test_names_of_perkey_exist(page: str) -> None:
    """The module's names, options and commands: what the page names is what there is."""
    text = PAGES[page].read_text()
    assert not_perkey(text) == set()
    assert not_commands(text) == set()


def test_names_that_do_not_exist_are_found() -> None:
    """The mutants: a name of the module, an option, a property, a command and its option."""
    table = "## What corresponds to what\n\n| a | b |\n|---|---|\n| `x` | {} |\n"
    assert not_perkey(table.format("`perkey.Parks()`")) == {"Parks"}
    assert not_perkey(table.format("`Retry(tries=5)`")) == {"tries"}
    assert not_properties(table.format("`fetch.wait.max`, `group.protocol=x`")) == {
        "fetch.wait.max"
    }
    assert not_commands("`perkey lags --group G`, `perkey lag --group G`") == {
        "perkey lags --group G"
    }
    assert not_commands("`perkey parked ls --all`, `perkey dlq`") == {"perkey parked ls --all"}


# -- on a real broker ----------------------------------------------------------------------------


class Stopped(Exception):
    """The process ends here, as the loop knows no such error."""


class Move:
    """A topic of 200 orders, and the two programs of a page in one group."""

    def __init__(self, page: str, bootstrap: str, load: Load) -> None:
        self.topic = f"orders-{uuid.uuid4().hex[:8]}"
        self.group = f"{self.topic}-billing"
        self.bootstrap = bootstrap
        self._page, self._load = page, load
        for name in (self.topic, f"{self.topic}.dlq"):
            create_topic(bootstrap, name, partitions=2, replication=1, config=None)
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
        for number in range(RECORDS):
            producer.produce(self.topic, json.dumps({"id": number}), f"customer-{number % 20}")
        assert producer.flush(60) == 0

    def here(self, code: str) -> str:
        """The code with this broker, topic and group."""
        code = code.replace("localhost:9092", self.bootstrap)
        return code.replace('"orders', f'"{self.topic}').replace('"billing"', f'"{self.group}"')

    def loop(self, calls: int) -> list[int]:
        """Run the program before; the last of so many calls does not return."""
        billed: list[int] = []

        def bill(_: str, number: int) -> None:
            billed.append(number)
            if len(billed) == calls:
                raise Stopped

        names = {"__name__": "__main__", "print": bill}
        with pytest.raises(Stopped):
            exec(compile(self.here(before(self._page)), "before", "exec", dont_inherit=True), names)
        return billed

    def app(self, bill: Callable[[str, int], None]) -> perkey.App:
        """The program after."""
        module = self._load("after", self.here(after(self._page)))
        module.print = bill
        app: perkey.App = module.app
        return app

    def done_beyond(self) -> int:
        """What `perkey lag` reports."""
        command = [sys.executable, "-m", "perkey", "lag", "--json", "--group", self.group]
        ran = subprocess.run(
            [*command, "--bootstrap-servers", self.bootstrap],
            check=True, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        return sum(row["done_beyond"] for row in json.loads(ran.stdout)["partitions"])


@pytest.fixture(params=["confluent-kafka", "aiokafka"])
def move(request: pytest.FixtureRequest, kafka_broker: LocalBroker, load: Load) -> Move:
    """One for each of the two pages."""
    return Move(request.param, kafka_broker.bootstrap, load)


@pytest.mark.broker
def test_the_app_continues_where_the_loop_stopped(move: Move) -> None:
    """With the same group id: nothing is lost, and nothing before the commit is repeated."""
    *handled, in_hand = move.loop(RECORDS // 2 + 1)
    billed: list[int] = []
    report = move.app(lambda _, number: billed.append(number)).run(until="drained")
    assert report.exit_code == 0
    assert in_hand in billed
    assert sorted(handled + billed) == list(range(RECORDS))


@pytest.mark.broker
def test_the_loop_continues_after_a_roll_back(move: Move) -> None:
    """It starts at the lowest record that is not done: `done_beyond` records repeat, none is lost."""
    billed: list[int] = []
    waiting = [number for number in range(RECORDS // 2, RECORDS) if number % 20 == 3]

    def bill(_: str, number: int) -> None:
        if number in waiting:
            raise perkey.RetryAfter(3600)  # its customer waits, the others are done
        billed.append(number)
        if len(billed) == RECORDS - len(waiting):
            app.stop()

    app = move.app(bill)
    assert app.run().exit_code == 0
    beyond = move.done_beyond()
    assert beyond > 0
    again = move.loop(len(waiting) + beyond)
    assert len(set(again) & set(billed)) == beyond
    assert set(again) | set(billed) == set(range(RECORDS))
