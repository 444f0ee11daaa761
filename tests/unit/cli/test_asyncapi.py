"""`perkey asyncapi`: the document of an app."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import Any

import pydantic
import pytest

import perkey
from perkey.cli.asyncapi import document
from perkey.cli.main import run as command

SECURE = {
    "bootstrap.servers": "a.example:9093, SASL_SSL://b.example:9093",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "u",
    "sasl.password": "hunter2",
}


class Line(pydantic.BaseModel):
    """A part of an order."""

    sku: str


class Order(pydantic.BaseModel):
    """A value."""

    lines: list[Line]


@dataclasses.dataclass
class Position:
    """A value read by msgspec."""

    lat: float


def made(kafka: Any = None, **options: Any) -> tuple[perkey.App, dict[str, Any]]:
    """An app with one handler with these options, and its document."""
    app = perkey.App("shop", kafka or {"bootstrap.servers": "localhost:9092"})

    def handler(record: perkey.Record[Any]) -> None:
        """Handle it."""

    app.consume(options.pop("topics", "orders"), **options)(handler)
    return app, document(app, "1.2.3")


def references(part: Any) -> Iterator[str]:
    """Every `$ref` of a document."""
    if isinstance(part, dict):
        for name, value in part.items():
            yield from [value] if name == "$ref" else references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def resolved(doc: Any, reference: str) -> Any:
    """What a reference names."""
    for step in reference.removeprefix("#/").split("/"):
        doc = doc[step]
    return doc


def test_a_handler_is_an_operation_on_its_topic():
    """With the group, its text and what its readers need to know."""
    _, doc = made()
    operation = doc["operations"]["handler"]
    assert operation["action"] == "receive"
    assert resolved(doc, operation["channel"]["$ref"])["address"] == "orders"
    assert operation["description"] == "Handle it."
    assert operation["bindings"]["kafka"]["groupId"]["enum"] == ["shop"]
    assert operation["x-perkey"]["ordering"] == "key"
    assert doc["info"]["version"] == "1.2.3"


@pytest.mark.parametrize(
    "letters", [perkey.DeadLetter("{topic}.dlq"), perkey.Park(dead_letter="{topic}.dlq")]
)
def test_outputs_and_dead_letters_are_sent(letters):
    """Each on its own topic; dead letters have the headers of KIP-1191."""
    _, doc = made(output="priced", on_exhausted=letters, topics=["orders", "returns"])
    sent = {
        resolved(doc, one["channel"]["$ref"])["address"]
        for one in doc["operations"].values()
        if one["action"] == "send"
    }
    assert sent == {"priced", "orders.dlq", "returns.dlq"}
    (letter,) = doc["channels"]["orders.dlq"]["messages"].values()
    assert "__dlq.errors.offset" in letter["headers"]["properties"]


def test_a_letter_without_its_value_has_no_payload():
    """`copy_value=False`."""
    _, doc = made(value=Order, on_exhausted=perkey.DeadLetter("bad", copy_value=False))
    (letter,) = doc["channels"]["bad"]["messages"].values()
    assert letter["payload"] == {"type": "null"}


@pytest.mark.parametrize("kind", [Order, Position, "json", "str", "bytes", lambda data: data])
def test_every_reference_resolves(kind):
    """Also those inside of the schemas of models."""
    _, doc = made(value=kind, on_exhausted=perkey.DeadLetter("bad"))
    found = list(references(doc))
    assert found
    for one in found:
        assert resolved(doc, one) is not None


def test_a_model_has_its_schema():
    """With the models that it is made of."""
    _, doc = made(value=Order)
    assert doc["components"]["schemas"].keys() == {"Order", "Line"}


def test_an_output_has_the_type_that_the_handler_returns():
    """As far as its annotation names one."""
    app = perkey.App("shop", {"bootstrap.servers": "localhost:9092"})

    @app.consume("orders", output="priced")
    async def price(record: perkey.Record[bytes]) -> Order | None: ...

    (message,) = document(app, "1")["channels"]["priced"]["messages"].values()
    assert message["payload"] == {"$ref": "#/components/schemas/Order"}


def test_a_pattern_has_no_address():
    """It names the pattern instead, under a key that a reference can name."""
    _, doc = made(topics=r"^gps\..*")
    (channel,) = doc["channels"].values()
    assert (channel["address"], channel["description"]) == (None, r"Topics that match ^gps\..*")


def test_a_schema_registry_is_named_without_its_password():
    """As the bindings have it."""
    _, doc = made(value=perkey.Schema("http://me:secret@registry:8081"))
    server = doc["servers"]["kafka"]
    assert server["bindings"]["kafka"]["schemaRegistryUrl"] == "http://registry:8081"
    assert "secret" not in json.dumps(doc)


def test_servers_have_the_login_and_no_secret():
    """One for each address."""
    _, doc = made(SECURE)
    hosts = [one["host"] for one in doc["servers"].values()]
    assert hosts == ["a.example:9093", "b.example:9093"]
    assert {one["protocol"] for one in doc["servers"].values()} == {"kafka-secure"}
    assert doc["components"]["securitySchemes"] == {"login": {"type": "scramSha512"}}
    assert "hunter2" not in json.dumps(doc)


def test_a_password_in_an_address_is_refused():
    """As a run refuses it; it would stand in the document."""
    with pytest.raises(
        perkey.ConfigError, match="has a user or a password in an address"
    ) as refused:
        made({"bootstrap.servers": "me:hunter2@h:9092"})
    assert "hunter2" not in str(refused.value)


def test_the_command_prints_it(tmp_path, monkeypatch, capsys):
    """With the version of the app's module."""
    (tmp_path / "shop_of_api.py").write_text(
        "import perkey\n__version__ = '4.5'\napp = perkey.App('shop', {'bootstrap.servers': 'h:1'})\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert command(["asyncapi", "shop_of_api:app"]) == 0
    assert json.loads(capsys.readouterr().out)["info"]["version"] == "4.5"
    assert command(["asyncapi", "shop_of_api:app", "--json"]) == 0
    line = capsys.readouterr().out
    assert (line.count("\n"), json.loads(line)["info"]["version"]) == (1, "4.5")
