"""The recipes of docs/cookbook that call services: run in memory, against services on this machine.

Recipes about where an app runs are in test_cookbook_hosts.py.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import json
import lzma
import socketserver
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from email import message_from_bytes
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import moto
import pytest
import sqlalchemy as sa
from tests.docs.test_site_blocks import code_of

import perkey
from perkey.testing import MemoryKafka, VirtualClock, run

COOKBOOK = Path(__file__).parents[2] / "docs" / "cookbook"
HOSTS = (
    "web-frameworks", "notebook", "airflow", "systemd", "docker", "kubernetes-keda", "telemetry",
)  # fmt: skip
SERVICES = (
    "http-service", "database", "s3-and-files", "llm-session", "webhooks", "email", "enrich",
    "cpu-bound",
)  # fmt: skip


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Imports a recipe as the user's own file, with these settings in the environment."""
    monkeypatch.syspath_prepend(tmp_path)
    loaded: list[str] = []

    def load_page(page: str, **settings: str) -> Any:
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        name = "recipe_" + page.replace("-", "_")
        (tmp_path / f"{name}.py").write_text(code_of((COOKBOOK / f"{page}.md").read_text()))
        loaded.append(name)
        return importlib.import_module(name)

    yield load_page
    for name in loaded:
        sys.modules.pop(name, None)


class Request:
    """One request that a service received."""

    def __init__(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.path, self.headers, self.body = path, headers, body
        self.json = json.loads(body)


Answer = tuple[int, dict[str, str], Any]


class Service:
    """An HTTP service: `answer` decides what each request gets."""

    def __init__(self, answer: Callable[[Request], Answer]) -> None:
        self.requests: list[Request] = []
        service, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = Request(self.path, dict(self.headers), body)
                with lock:
                    service.requests.append(request)
                    status, headers, value = answer(request)
                self.send_response(status)
                for name, text in headers.items():
                    self.send_header(name, text)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(value).encode())

            def log_message(self, *arguments: object) -> None:
                """Not into the test's output."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def serve() -> Iterator[Callable[..., Service]]:
    """Starts services; they end with the test."""
    started: list[tuple[Service, threading.Thread]] = []

    def start(answer: Callable[[Request], Answer]) -> Service:
        service = Service(answer)
        thread = threading.Thread(target=service.server.serve_forever, args=(0.01,))
        thread.start()
        started.append((service, thread))
        return service

    yield start
    for service, thread in started:
        service.server.shutdown()
        service.server.server_close()
        thread.join()


def test_every_recipe_is_run() -> None:
    """A recipe without a test here or in test_cookbook_hosts.py is not one."""
    pages = {path.stem for path in COOKBOOK.glob("*.md")} - {"index"}
    assert pages == {*SERVICES, *HOSTS}
    assert len(pages) == 15


def test_the_index_links_every_recipe() -> None:
    """In its table and in the navigation."""
    text = (COOKBOOK / "index.md").read_text()
    assert [page for page in (*SERVICES, *HOSTS) if f"]({page}.md)" not in text] == []
    assert [page for page in (*SERVICES, *HOSTS) if f" <{page}>" not in text] == []


@pytest.mark.parametrize("page", [*SERVICES, *HOSTS])
def test_a_recipe_asks_one_question_and_warns(page) -> None:
    """The title is a question, and 4 or 5 bullets, with links, end the page."""
    text = (COOKBOOK / f"{page}.md").read_text()
    assert text.partition("\n")[0].endswith("?")
    bullets = [line for line in text.rpartition("```")[2].splitlines() if line.startswith("- ")]
    assert 3 <= len(bullets) <= 5
    assert ".md" in text.rpartition("```")[2]


def test_a_429_delays_its_record_and_loses_none(load, serve) -> None:
    """Its next attempt comes after Retry-After, before the next record of its key."""
    clock = VirtualClock()
    called_at: list[float] = []

    def answer(request: Request) -> Answer:
        called_at.append(clock.elapsed_s)
        if len(called_at) == 1:
            return 429, {"Retry-After": "7"}, None
        return 200, {}, request.json | {"price": 10}

    service = serve(answer)
    page = load("http-service", PRICES_URL=service.url)
    results = run(page.app, [("ada", {"id": 1}), ("ada", {"id": 2})], clock=clock)
    assert [(each.outcome, each.attempts) for each in results] == [("done", 2), ("done", 1)]
    assert [request.json["id"] for request in service.requests] == [1, 1, 2]
    assert called_at[1] - called_at[0] >= 7
    keys = [request.headers["Idempotency-Key"] for request in service.requests]
    assert keys == ["orders-0-0", "orders-0-0", "orders-0-1"]
    assert [json.loads(each.outputs[0].value)["price"] for each in results] == [10, 10]


def test_an_outage_uses_up_no_attempts(load, serve) -> None:
    """Thirty 503s in a row, and the record is done; a 404 is a dead letter after one call."""
    answers = iter([503] * 30)

    def answer(request: Request) -> Answer:
        if request.json["id"] == 404:
            return 404, {}, None
        return next(answers, 200), {}, {}

    page = load("http-service", PRICES_URL=serve(answer).url)
    (held,) = run(page.app, [("ada", {"id": 1})], clock=VirtualClock())
    assert (held.outcome, held.record.attempt) == ("done", 31)
    (unknown,) = run(page.app, [("ada", {"id": 404})], clock=VirtualClock())
    assert (unknown.outcome, unknown.attempts) == ("dead_lettered", 1)


def test_retry_after_may_be_a_date(load) -> None:
    """RFC 9110 allows both forms; a date that has passed is no delay."""
    page = load("http-service")
    assert page.seconds("12") == 12
    assert 50 < page.seconds(formatdate(time.time() + 60, usegmt=True)) <= 60
    assert page.seconds("Wed, 21 Oct 2015 07:28:00 GMT") == 0


def test_a_database_has_each_payment_once(load, tmp_path) -> None:
    """Also if Kafka has lost the commit after the database had it: all are delivered again."""
    url = f"sqlite:///{tmp_path}/shop.db"
    page = load("database", DATABASE_URL=url)
    engine = sa.create_engine(url)
    page.metadata.create_all(engine)
    with MemoryKafka(auto_create=True) as kafka:
        payments = [("ada", {"cents": 5}), ("bob", {"cents": 7}), ("ada", {"cents": 20})]
        run(page.app, payments, broker=kafka, ledger=perkey.SqlLedger(url))
        kafka.commit("bookings", "payments", 0, 0)
        repeated = run(page.app, [], broker=kafka, ledger=perkey.SqlLedger(url))
        assert [each.outcome for each in repeated] == ["done"] * 3
    with engine.connect() as connection:
        rows = connection.execute(sa.select(page.accounts)).all()
    engine.dispose()
    assert sorted(rows) == [("ada", 25), ("bob", 7)]


def test_s3_and_files_have_each_record(load, tmp_path, monkeypatch) -> None:
    """A kill repeats uploads, and the repeated objects and files replace themselves."""
    page = load("s3-and-files", BUCKET="archive", FOLDER=str(tmp_path / "files"))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    records = [
        perkey.Record(topic, 0, offset, 0, b"k", f"{topic} {offset}".encode(), ())
        for topic in ("invoices", "clicks")
        for offset in range(3)
    ]
    with moto.mock_aws(), MemoryKafka(clock=VirtualClock(), auto_create=True) as kafka:
        s3 = boto3.client("s3")
        s3.create_bucket(Bucket="archive")
        versioned = {"Status": "Enabled"}
        s3.put_bucket_versioning(Bucket="archive", VersioningConfiguration=versioned)
        kafka.crash_at("after_handler", nth=2)
        run(page.app, records, broker=kafka)
        run(page.app, [], broker=kafka)
        assert len(s3.list_object_versions(Bucket="archive")["Versions"]) > 3  # repeated
        found = {
            each["Key"]: s3.get_object(Bucket="archive", Key=each["Key"])["Body"].read()
            for each in s3.list_objects_v2(Bucket="archive")["Contents"]
        }
        s3.close()
    assert found == {
        f"invoices/00000/{offset:020}-{offset:020}": f"invoices {offset}".encode()
        for offset in range(3)
    }
    files = sorted((tmp_path / "files").rglob("*.*"))
    lines = b"".join(page.gzip.decompress(file.read_bytes()) for file in files).splitlines()
    assert {file.suffix for file in files} == {".gz"}
    assert set(lines) == {b"clicks 0", b"clicks 1", b"clicks 2"}


class Llm:
    """Answers with the number of messages; the first `busy` calls get a 429."""

    def __init__(self, busy: int = 0) -> None:
        self.busy = busy
        self.calls: list[list[str]] = []

    def __call__(self, request: Request) -> Answer:
        messages = [message["content"] for message in request.json["messages"]]
        self.calls.append(messages)
        if len(self.calls) <= self.busy:
            return 429, {"Retry-After": "3"}, None
        reply = {"role": "assistant", "content": f"answer {len(messages)}"}
        return 200, {}, {"choices": [{"message": reply}], "usage": {"total_tokens": 40}}


def test_an_llm_session_has_its_turns_in_order(load, serve, tmp_path) -> None:
    """Each turn sees the earlier ones of its session alone; a 429 loses none."""
    llm = Llm(busy=1)
    service = serve(llm)
    page = load("llm-session", LLM_URL=service.url, SESSIONS=str(tmp_path / "s.db"), LLM_KEY="k")
    clock = VirtualClock()
    turns = [("ada", "hello"), ("ada", "why?"), ("bob", "hi")]
    results = run(page.app, turns, clock=clock)
    assert {each.outcome for each in results} == {"done"}
    assert clock.elapsed_s >= 3
    assert service.requests[0].headers["Authorization"] == "Bearer k"
    assert ["hello", "answer 1", "why?"] in llm.calls
    assert ["hi"] in llm.calls
    assert len(llm.calls) == 4
    answers = {each.record.offset: each.outputs[0].value for each in results}
    assert answers == {0: b"answer 1", 1: b"answer 3", 2: b"answer 1"}


def test_an_answered_turn_is_not_paid_twice(load, serve, tmp_path) -> None:
    """A kill after the answer was stored repeats the record, from the database."""
    llm = Llm()
    page = load("llm-session", LLM_URL=serve(llm).url, SESSIONS=str(tmp_path / "s.db"))
    with MemoryKafka(clock=VirtualClock(), auto_create=True) as kafka:
        kafka.crash_at("output_stored")
        run(page.app, [("ada", "hello")], broker=kafka)
        assert kafka.crashes
        (result,) = run(page.app, [], broker=kafka)
    assert (result.outcome, result.outputs[0].value) == ("done", b"answer 1")
    assert llm.calls == [["hello"]]


def test_tokens_are_estimated_and_settled(load) -> None:
    """The budget has a cost for each record, by its bytes; a null value has one too."""
    page = load("llm-session")
    (handler,) = page.app.handlers
    record = perkey.Record("questions", 0, 0, 0, b"k", b"x" * 400, ())
    assert handler.budget.cost(record) == 600
    assert handler.budget.cost(perkey.Record("questions", 0, 0, 0, b"k", None, ())) == 500


def test_a_webhook_that_is_down_holds_its_customer_only(load, serve) -> None:
    """The other customer's events pass; then the held ones arrive in order, signed, with one id."""
    answers = iter([503] * 3)
    down = serve(lambda request: (next(answers, 200), {}, None))
    clock = VirtualClock()
    passed_at: list[float] = []
    up = serve(lambda request: (200, {}, passed_at.append(clock.elapsed_s)))
    endpoints = {
        "ada": {"url": down.url, "secret": "a"},
        "bob": {"url": up.url, "secret": "b"},
    }
    page = load("webhooks", ENDPOINTS=json.dumps(endpoints))
    events = [("ada", {"n": 1}), ("ada", {"n": 2}), ("eve", {"n": 0})]
    results = run(page.app, [*events, *[("bob", {"n": 3})] * 20], clock=clock)
    rejected = [each.record.key for each in results if each.outcome != "done"]
    assert (rejected, len(results)) == ([b"eve"], 23)
    assert [each.record.key for each in results][-2:] == [b"ada", b"ada"]
    assert clock.elapsed_s >= 60
    assert len(passed_at) == 20
    assert max(passed_at) < 30  # before the first probe
    assert [request.json["n"] for request in down.requests] == [1, 1, 1, 1, 2]
    assert {request.headers["Webhook-Id"] for request in down.requests[:4]} == {"events-0-0"}
    request = up.requests[0]
    sent_at = request.headers["Webhook-Timestamp"]
    signed = f"events-0-3.{sent_at}.".encode() + request.body
    wanted = hmac.new(b"b", signed, hashlib.sha256).hexdigest()
    assert request.headers["Webhook-Signature"] == wanted


def test_a_webhook_that_redirects_is_not_followed(load, serve) -> None:
    """The service that the redirect names gets no request."""
    inside = serve(lambda request: (200, {}, None))
    answers = iter([(307, {"Location": inside.url}, None)])
    outside = serve(lambda request: next(answers, (200, {}, None)))
    endpoints = {"ada": {"url": outside.url, "secret": "a"}}
    page = load("webhooks", ENDPOINTS=json.dumps(endpoints))
    (result,) = run(page.app, [("ada", {})], clock=VirtualClock())
    assert (result.outcome, len(outside.requests), inside.requests) == ("done", 2, [])


class Mailbox(socketserver.ThreadingTCPServer):
    """An SMTP server that keeps what it takes; it refuses mails to `refused@`."""

    daemon_threads = False
    allow_reuse_address = True

    def __init__(self) -> None:
        self.mails: list[bytes] = []
        super().__init__(("127.0.0.1", 0), Session)


class Session(socketserver.StreamRequestHandler):
    """As much of SMTP as smtplib speaks."""

    server: Mailbox

    def handle(self) -> None:
        self.wfile.write(b"220 ready\r\n")
        for line in self.rfile:
            word = line.strip().upper()
            if word == b"QUIT":
                self.wfile.write(b"221 bye\r\n")
                return
            if word.startswith(b"RCPT TO:<REFUSED@"):
                self.wfile.write(b"550 no such mailbox\r\n")
            elif word == b"DATA":
                self.wfile.write(b"354 go ahead\r\n")
                self.server.mails.append(self.text())
                self.wfile.write(b"250 taken\r\n")
            else:
                self.wfile.write(b"250 ok\r\n")

    def text(self) -> bytes:
        lines = []
        while (line := self.rfile.readline()) not in (b".\r\n", b""):
            lines.append(line)
        return b"".join(lines)


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    """A running SMTP server."""
    with Mailbox() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


POINTS = ["before_handler", "after_handler", "before_commit", "commit_stored"]


@pytest.mark.parametrize("point", POINTS)
def test_an_email_is_sent_at_most_once(load, mailbox, point) -> None:
    """After a kill no address has two, and at most one for each slot is missing."""
    page = load("email", SMTP=f"127.0.0.1:{mailbox.server_address[1]}")
    mails = [
        (f"k{number}", {"to": f"{number}@example.com", "subject": "Hello", "text": "Hi"})
        for number in range(30)
    ]
    with MemoryKafka(auto_create=True) as kafka:
        kafka.crash_at(point, nth=2)
        run(page.app, mails, broker=kafka)
        assert kafka.crashes
        run(page.app, [], broker=kafka)
    sent = [message_from_bytes(mail)["To"] for mail in mailbox.mails]
    assert len(sent) == len(set(sent))
    assert len(sent) >= 20  # 30, without those of 10 slots


def test_an_email_that_the_server_refuses_is_a_dead_letter(load, mailbox) -> None:
    """After its one attempt, with the server's words; the others are sent."""
    page = load("email", SMTP=f"127.0.0.1:{mailbox.server_address[1]}")
    mails = [
        ("k", {"to": f"{name}@example.com", "subject": "Hello", "text": "Hi"})
        for name in ("refused", "ada")
    ]
    refused, sent = run(page.app, mails)
    assert (refused.outcome, refused.attempts) == ("dead_lettered", 1)
    assert "no such mailbox" in refused.error.message
    assert sent.outcome == "done"
    (mail,) = map(message_from_bytes, mailbox.mails)
    assert (mail["To"], mail["Message-ID"]) == ("ada@example.com", "<mails-0-1@example.com>")


def test_many_records_are_enriched_by_one_query(load, tmp_path, monkeypatch) -> None:
    """Each has its own customer; one without is a dead letter, and the others are done."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        database.execute("CREATE TABLE customers (id TEXT, name TEXT, country TEXT)")
        rows = [(str(number), f"name {number}", "SE") for number in range(40)]
        database.executemany("INSERT INTO customers VALUES (?, ?, ?)", rows)
    page = load("enrich", DATABASE_URL=f"sqlite:///{tmp_path}/shop.db")
    queries: list[str] = []
    create = sa.create_engine

    def watched(url: str) -> sa.Engine:
        engine = create(url)
        sa.event.listen(engine, "before_cursor_execute", lambda *given: queries.append(given[2]))
        return engine

    monkeypatch.setattr(sa, "create_engine", watched)
    orders = [(str(number), {"order": number}) for number in range(41)]
    results = run(page.app, orders)
    bad = {each.record.offset: each.outcome for each in results if each.outcome != "done"}
    assert bad == {40: "dead_lettered"}
    names = {
        each.record.offset: json.loads(each.outputs[0].value)["customer"]["name"]
        for each in results
        if each.outcome == "done"
    }
    assert names == {number: f"name {number}" for number in range(40)}
    assert 1 <= len(queries) < len(orders)


def test_worker_processes_compute(load, monkeypatch) -> None:
    """The calls run in other processes, which import the file: what is broken here works there."""
    page = load("cpu-bound")
    monkeypatch.setattr(page, "lzma", None)
    documents = [(f"k{number}", b"x" * 1000 * number) for number in range(4)]
    results = run(page.app, documents)
    assert {each.outcome for each in results} == {"done"}
    texts = {each.record.offset: lzma.decompress(each.outputs[0].value) for each in results}
    assert texts == {number: b"x" * 1000 * number for number in range(4)}
