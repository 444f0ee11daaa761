"""`perkey.Schema` beside a registry of HTTP's own server: values, outages, records that do not fit."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from confluent_kafka import serialization

import perkey
from perkey.decoding import Undecodable, decoding_of
from perkey.testing import run

pytestmark = pytest.mark.push

fastavro = pytest.importorskip("fastavro", reason="needs perkey[schema]")
schema_registry = pytest.importorskip("confluent_kafka.schema_registry")
avro_serde = pytest.importorskip("confluent_kafka.schema_registry.avro")
json_serde = pytest.importorskip("confluent_kafka.schema_registry.json_schema")
protobuf_serde = pytest.importorskip("confluent_kafka.schema_registry.protobuf")
StringValue = pytest.importorskip("google.protobuf.wrappers_pb2").StringValue

AVRO = {"type": "record", "name": "Order", "fields": [{"name": "n", "type": "int"}]}
WITH_LINE = {"type": "record", "name": "L", "fields": [{"name": "order", "type": "Order"}]}
JSON_SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
KINDS = ["async", "threads", "async batch"]
SECRET = "s3cret-pass"


class Registry(ThreadingHTTPServer):
    """A schema registry: what it holds by path, and how often it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.asked: list[tuple[str, str | None]] = []
        #: answered first: a status and a body
        self.failing: list[tuple[int, bytes]] = []
        self.held: dict[str, dict] = {
            "/schemas/ids/1": {"schema": json.dumps(AVRO)},
            "/schemas/ids/2": {"schema": json.dumps(JSON_SCHEMA), "schemaType": "JSON"},
            "/schemas/ids/3": {"schema": 'syntax = "proto3";', "schemaType": "PROTOBUF"},
            "/schemas/ids/4": {"schema": '"string"'},
            "/schemas/ids/5": {
                "schema": json.dumps(WITH_LINE),
                "references": [{"name": "Order", "subject": "order", "version": 1}],
            },
            "/schemas/ids/6": {"schema": "<xsd/>", "schemaType": "XSD"},
            "/subjects/order/versions/1": {
                "subject": "order", "version": 1, "id": 1, "schema": json.dumps(AVRO),
            },
        }  # fmt: skip


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Registry

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append((path, self.headers["Authorization"]))
        found = self.server.held.get(path)
        if self.server.failing:
            status, body = self.server.failing.pop(0)
        elif found is None:
            status, body = 404, b'{"error_code": 40403, "message": "Schema not found"}'
        else:
            status, body = 200, json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args) -> None:
        """Nothing."""


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Registry]:
    """It listens on a port of 127.0.0.1, and no client of it reads all certificates there are."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    with Registry() as served:
        thread = threading.Thread(target=served.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield served
        served.shutdown()
        thread.join(10)


def avro(number: int, schema_id: int = 1) -> bytes:
    """A record of AVRO in the wire format."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(AVRO), {"n": number})
    return head(schema_id) + body.getvalue()


def head(schema_id: int) -> bytes:
    """Magic byte 0 and the id."""
    return b"\0" + schema_id.to_bytes(4, "big")


def handled(records, kind: str = "async", **options):
    """The results of these values, and what the handler saw."""
    seen: list = []
    app = perkey.App(group="g", kafka={"bootstrap.servers": "x"})
    if "batch" in kind:
        options["batch"] = perkey.Batch(max_records=3, linger_s=0.01)

    def handle(given):
        seen.extend([given] if isinstance(given, perkey.Record) else given)

    async def awaited(given):
        handle(given)

    options = {
        "retry": perkey.Retry(attempts=3, delay_s=0), "on_exhausted": perkey.Skip(), **options,
    }  # fmt: skip
    app.consume("orders", **options)(awaited if "async" in kind else handle)
    return run(app, records), seen


def only(records, **options):
    """The one result as outcome, attempts, error."""
    (result,), _ = handled(records, **options)
    return result.outcome, result.attempts, result.error


# -- values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_avro_and_json_are_dicts(registry, kind):
    """By the type that the registry reports for the id; known ids are not fetched again."""
    values = [avro(n) for n in range(20)] + [head(2) + b'{"n": 20}', None]
    schema = perkey.Schema(registry.url)
    assert schema(values[20]) == schema(avro(20))
    results, seen = handled([(b"k", one) for one in values], kind, value=schema)
    assert {one.outcome for one in results} == {"done"}
    assert [one.value for one in seen] == [{"n": n} for n in range(21)] + [None]
    assert sorted(registry.asked) == [("/schemas/ids/1", None), ("/schemas/ids/2", None)]


@pytest.mark.push
def test_worker_processes_read_with_clients_of_their_own(registry):
    """The object travels without its client."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "x"})
    schema = perkey.Schema(registry.url)
    assert schema(avro(7)) == {"n": 7}
    options = {"executor": "processes", "concurrency": 1, "output": "out", "value": schema}
    app.consume("orders", **options)(described)
    (result,) = run(app, [(b"k", avro(7))])
    value, process = json.loads(result.outputs[0].value)
    assert (value, process == os.getpid()) == ({"n": 7}, False)
    assert len(registry.asked) == 2


def described(record):
    """What was read, and in which process."""
    return perkey.Produce([record.value, os.getpid()])


async def awaited(decoding, record):
    """As a call on a loop decodes it."""
    return await decoding.awaited(record)


def test_the_loop_reads_what_is_at_hand(registry, monkeypatch):
    """Only a schema that is fetched, and JSON Schema, costs a thread of the loop's pool."""
    threads: list[bytes] = []

    async def in_a_thread(function, given):
        threads.append(given)
        return function(given)

    monkeypatch.setattr("perkey.decoding._in_a_thread", in_a_thread)
    decoding = decoding_of("bytes", perkey.Schema(registry.url))
    values = [head(5) + b"\xff", *[head(5) + avro(7)[5:]] * 3, *[head(2) + b'{"n": 7}'] * 2]
    for value in values:
        with contextlib.suppress(Undecodable):
            asyncio.run(awaited(decoding, perkey.Record("orders", 0, 0, 0, b"k", value)))
    assert threads == values[:2] + values[4:]


def test_a_forked_process_has_a_client_of_its_own(registry, monkeypatch):
    """Connections are not for two processes."""
    schema = perkey.Schema(registry.url)
    first = schema(avro(7))
    forked = os.getpid() + 1
    monkeypatch.setattr("os.getpid", lambda: forked)
    assert schema.__perkey_waits__(avro(7))
    assert (schema(avro(7)), len(registry.asked)) == (first, 2)


def test_keys_have_schemas_too(registry):
    """Both fields by one object; outputs keep the key's bytes."""
    schema = perkey.Schema(registry.url)
    key = head(4) + b"\x06abc"
    _, seen = handled([(key, avro(7))], key=schema, value=schema)
    assert [(one.key, one.value) for one in seen] == [("abc", {"n": 7})]


def test_references_are_fetched(registry):
    """A schema of several; where the registry is away just then, it is a failed attempt."""
    schema = perkey.Schema(registry.url)
    assert schema(head(5) + avro(7)[5:]) == {"order": {"n": 7}}
    other = perkey.Schema(registry.url)
    other(avro(7))
    served = registry.held.pop("/subjects/order/versions/1")
    registry.failing = [(200, json.dumps(registry.held["/schemas/ids/5"]).encode()), (503, b"{}")]
    with pytest.raises(ConnectionError, match="HTTP 503"):
        other(head(5) + avro(7)[5:])
    registry.held["/subjects/order/versions/1"] = served
    assert other(head(5) + avro(7)[5:]) == {"order": {"n": 7}}


def test_protobuf_with_its_class_is_a_message(registry):
    """`message=` is the generated class; the indexes before the message are taken off."""
    schema = perkey.Schema(registry.url, message=StringValue)
    data = head(3) + b"\0" + StringValue(value="seven").SerializeToString()
    assert pickle.loads(pickle.dumps(schema))(data).value == "seven"
    assert schema(avro(7)) == {"n": 7}
    with pytest.raises(ValueError, match="it does not fit schema 3"):
        schema(head(3) + b"\0\xff\xff")


# -- the id in a header --------------------------------------------------------------------------------


def written(registry: Registry, kind: str, form: str) -> tuple[perkey.Record, dict[str, object]]:
    """A record by confluent-kafka's serializers, and its fields; the registry has its schemas."""
    client = schema_registry.SchemaRegistryClient.new_client({"url": "mock://"})
    conf = {"schema.id.serializer": getattr(schema_registry, f"{form}_schema_id_serializer")}
    fields: dict = {"key": {"n": 1}, "value": {"n": 2}}
    if kind == "AVRO":
        serializer = avro_serde.AvroSerializer(client, json.dumps(AVRO), conf=conf)
    elif kind == "JSON":
        titled = json.dumps({**JSON_SCHEMA, "title": "Order"})
        serializer = json_serde.JSONSerializer(titled, client, conf=conf)
    else:
        fields = {name: StringValue(value=name) for name in fields}
        serializer = protobuf_serde.ProtobufSerializer(StringValue, client, conf)
    headers: list[tuple[str, bytes]] = []
    key, value = (
        serializer(field, serialization.SerializationContext("orders", name, headers))
        for name, field in fields.items()
    )
    for name in fields:
        held = client.get_latest_version(f"orders-{name}")
        # as a registry responds that does not repeat the GUID
        answer = {"schema": held.schema.schema_str, "schemaType": kind}
        places = (f"/schemas/ids/{held.schema_id}", f"/schemas/guids/{held.guid}")
        registry.held |= dict.fromkeys(places, answer)
    assert [name for name, _ in headers] == (
        ["__key_schema_id", "__value_schema_id"] if form == "header" else []
    )
    return perkey.Record("orders", 0, 0, 0, key, value, tuple(headers)), fields


@pytest.mark.parametrize("field", ["key", "value"])
@pytest.mark.parametrize("form", ["prefix", "header"])
@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
def test_both_forms_of_the_librarys_serializers_are_read(registry, kind, form, field):
    """The schema's id before the payload, or its GUID in a header; the other field keeps its bytes."""
    record, fields = written(registry, kind, form)
    schema = perkey.Schema(registry.url, message=StringValue if kind == "PROTOBUF" else None)
    decoding = decoding_of(**{"key": "bytes", "value": "bytes", field: schema})
    expected = record._replace(**{field: fields[field]})
    assert decoding.here(record) == expected
    assert asyncio.run(awaited(decoding, record)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_with_ids_in_headers_is_handled(registry, kind):
    """Known schemas are not fetched again; tombstones stay None."""
    record, fields = written(registry, "AVRO", "header")
    given = [record._replace(offset=n) for n in range(9)] + [record._replace(offset=9, value=None)]
    schema = perkey.Schema(registry.url)
    decoding_of(schema, schema).here(record)
    results, seen = handled(given, kind, key=schema, value=schema)
    assert {one.outcome for one in results} == {"done"}
    assert [one.value for one in seen] == [fields["value"]] * 9 + [None]
    assert {str(one.key) for one in seen} == {str(fields["key"])}
    assert len(registry.asked) == 2


@pytest.mark.parametrize("kind", ["AVRO", "PROTOBUF"])
def test_a_loop_reads_a_known_guid_itself(registry, monkeypatch, kind):
    """Only its first record costs a thread of the loop's pool."""
    threads: list[bytes] = []

    async def in_a_thread(function, given):
        threads.append(given)
        return function(given)

    monkeypatch.setattr("perkey.decoding._in_a_thread", in_a_thread)
    record, _ = written(registry, kind, "header")
    schema = perkey.Schema(registry.url, message=StringValue)
    for _ in range(3):
        asyncio.run(awaited(decoding_of("bytes", schema), record))
    assert (len(threads), len(registry.asked)) == (1, 1)


def test_the_last_header_counts(registry):
    """A producer that reuses its list of headers appends; a header without a value is none."""
    record, fields = written(registry, "AVRO", "header")
    foreign = ("__value_schema_id", b"\1" + bytes(16))
    decoding = decoding_of("bytes", perkey.Schema(registry.url))
    many = record._replace(headers=(foreign, *record.headers, ("__value_schema_id", None)))
    assert decoding.here(many).value == fields["value"]
    plain = perkey.Record("orders", 0, 0, 0, None, avro(7), (("__value_schema_id", None),))
    assert decoding.here(plain).value == {"n": 7}


@pytest.mark.parametrize(
    ("header", "line"),
    [
        (b"\1" + bytes(16), "HTTP 404 for schema 00000000-0000-0000-0000-000000000000: Schema not"),
        (b"\1abc", "not in Confluent's wire format"),
        (b"2", "not in Confluent's wire format"),
    ],
)
def test_a_header_that_names_no_schema_is_final(registry, header, line):
    """At the first attempt, with the cause."""
    record = perkey.Record("orders", 0, 0, 0, b"k", b"x", (("__value_schema_id", header),))
    with pytest.raises(Undecodable, match=line):
        decoding_of("bytes", perkey.Schema(registry.url)).here(record)


# -- failed attempts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_an_outage_is_a_failed_attempt(registry, kind, status):
    """A busy, broken or forbidding registry may get well: tried again, in key order."""
    registry.failing = [(status, b'{"error_code": %d, "message": "no"}' % (status * 100))] * 2
    results, seen = handled([(b"k", avro(7))], kind, value=perkey.Schema(registry.url))
    assert [(one.outcome, one.attempts) for one in results] == [("done", 3)]
    assert [one.value for one in seen] == [{"n": 7}]


def test_404_of_a_proxy_is_a_failed_attempt(registry):
    """It has no error code of a registry: the registry behind it is away, or the URL is wrong."""
    registry.failing = [(404, b"<html>default backend"), (200, b"<html>log in")]
    _, seen = handled([(b"k", avro(7))], value=perkey.Schema(registry.url))
    assert [one.value for one in seen] == [{"n": 7}]


def test_a_response_without_a_schema_is_a_failed_attempt(registry):
    """The JSON of a proxy, with status 200: it is not kept as the schema."""
    registry.failing = [(200, b'{"status": "maintenance"}')]
    results, seen = handled([(b"k", avro(7))], value=perkey.Schema(registry.url))
    assert [(one.outcome, one.attempts) for one in results] == [("done", 2)]
    assert [one.value for one in seen] == [{"n": 7}]


def test_a_registry_that_is_not_there_is_named(registry):
    """With its URL, and after all attempts: `on_exhausted` decides."""
    schema = perkey.Schema("http://127.0.0.1:1")
    outcome, attempts, error = only([(b"k", avro(7))], value=schema)
    assert (outcome, attempts, error.type) == ("skipped", 3, "ConnectionError")
    assert error.message.startswith("schema registry http://127.0.0.1:1: ConnectError: ")


def test_missing_rights_are_named(registry):
    """401 and 403 name what to look at; an operator can mend them."""
    registry.failing = [(403, b'{"error_code": 40301, "message": "no"}')] * 3
    outcome, attempts, error = only([(b"k", avro(7))], value=perkey.Schema(registry.url))
    assert (outcome, attempts, error.type) == ("skipped", 3, "PermissionError")
    assert error.message.endswith(
        "HTTP 403 for schema 1: check the credentials in conf and their rights"
    )


# -- final failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (head(99) + b"x", "HTTP 404 for schema 99: Schema not found"),
        (b'{"n": 7}', "not in Confluent's wire format: magic byte 0 and a schema id must come"),
        (b"\0\0\0", "not in Confluent's wire format"),
        (b"", "not in Confluent's wire format"),
        (head(1) + b"\xff", "it does not fit schema 1: "),
        (head(2) + b"{", "it does not fit schema 2: JSONDecodeError"),
        (head(2) + b'{"n": "4111111111111111"}', "it does not fit schema 2: $.n fails 'type'"),
        (
            head(3) + b"\0",
            "schema 3 is PROTOBUF: pass its generated class: perkey.Schema(url, messa",
        ),
        (head(6) + b"x", "schema 6 is XSD: Perkey reads AVRO, JSON and PROTOBUF"),
    ],
)
def test_what_does_not_fit_is_final(registry, value, line):
    """At the first attempt, with the cause and without the value."""
    outcome, attempts, error = only([(b"k", value)], value=perkey.Schema(registry.url))
    assert (outcome, attempts, error.type) == ("skipped", 1, "Undecodable")
    assert line in error.message
    assert "4111" not in error.message
    assert "\n" not in error.message


# -- options -------------------------------------------------------------------------------------------


def test_credentials_are_sent_and_never_shown(registry, caplog):
    """From the URL or from conf; not in the repr, a log line, an error or a ConfigError."""
    caplog.set_level(logging.DEBUG)
    host = registry.url.removeprefix("http://")
    schema = perkey.Schema(f"http://me:{SECRET}@{host}/")
    schema(avro(7))
    perkey.Schema(registry.url, conf={"basic.auth.user.info": f"me:{SECRET}"})(avro(7))
    sent = {held for _, held in registry.asked}
    assert sent == {"Basic bWU6czNjcmV0LXBhc3M="}
    assert repr(schema) == f"perkey.Schema('{registry.url}')"
    registry.failing = [(503, b"{}")]
    with pytest.raises(ConnectionError) as caught:
        schema(head(2) + b"{}")
    assert SECRET not in f"{caught.value} {caplog.text}"
    assert "HTTP Request" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "options", "line"),
    [
        (("registry:8081",), {}, "perkey.Schema: give the registry's URL, http://HOST:PORT"),
        ((f"ftp://me:{SECRET}@h",), {}, "give the registry's URL"),
        (("http://h:port",), {}, "give the registry's URL"),
        (("http://a,,http://b",), {}, "give the registry's URL"),
        ((None,), {}, "give the registry's URL"),
        (("http://h",), {"conf": {"url": "http://i"}}, "remove url from conf"),
        (("http://h",), {"conf": {"tiemout": 5}}, "conf: ValueError: Unrecognized properties: tie"),
        (("http://h",), {"conf": {"basic.auth.user.info": SECRET}}, "conf: ValueError: basic.auth"),
        (("http://h",), {"conf": {"proxy": SECRET}}, "conf: "),
        (("http://h",), {"conf": {"ssl.ca.location": "/nowhere"}}, "conf: FileNotFoundError"),
        ((f"http://a:{SECRET}@h",), {"conf": {"basic.auth.user.info": "a:b"}}, "remove one"),
        (("http://h",), {"message": dict}, "message= takes a class that protoc generated"),
    ],
)
def test_bad_options_are_refused(arguments, options, line):
    """Where it is made, in one line, without a password."""
    with pytest.raises(perkey.ConfigError) as caught:
        perkey.Schema(*arguments, **options)
    assert line in str(caught.value)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_class_itself_is_refused():
    """`value=perkey.Schema` would have made one of each record's bytes."""
    with pytest.raises(
        perkey.ConfigError, match=r"value=Schema lacks its URL: perkey\.Schema\(url\)"
    ):
        handled([], value=perkey.Schema)


@pytest.mark.parametrize("library", ["httpx", "fastavro", "jsonschema", "google"])
@pytest.mark.push
def test_without_the_extra_it_names_what_to_install(library):
    """One line, where the handler is declared."""
    gone = f"sys.modules.update(dict.fromkeys(({library!r}, {library + '2'!r})))"
    program = f"import sys, perkey; {gone}; perkey.Schema('http://127.0.0.1:1')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"perkey.errors.ConfigError: perkey.Schema needs {library}")
    assert last.endswith(": pip install 'perkey[schema]'")
