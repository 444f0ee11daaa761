"""`perkey asyncapi`: what an app reads and writes, as an AsyncAPI document.

The format is AsyncAPI 3.0.0 with the Kafka bindings 0.5.0: https://www.asyncapi.com/docs/reference.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
import sys
import typing
from typing import Annotated, Any

import typer

from perkey._version import __version__
from perkey.cli.load import Target, load_app
from perkey.kafka.properties import canonical
from perkey.kafka.schema import Schema
from perkey.kafka.settings import check_addresses
from perkey.options import HandlerOptions
from perkey.policies import DeadLetter, letters_of
from perkey.signatures import hints_of, members_of
from perkey.types import Produce

if typing.TYPE_CHECKING:
    from perkey.app import App

_SCHEMAS = "#/components/schemas/"
_BINDING = {"bindingVersion": "0.5.0"}
_PLAIN = {
    "bytes": ("application/octet-stream", {"type": "string", "format": "binary"}),
    "str": ("text/plain", {"type": "string"}),
    "json": ("application/json", {}),
}
_LOGINS = {
    "PLAIN": "plain",
    "SCRAM-SHA-256": "scramSha256",
    "SCRAM-SHA-512": "scramSha512",
    "GSSAPI": "gssapi",
}
#: the headers of KIP-1191, which every dead letter has
_LETTER_HEADERS = ("topic", "partition", "offset", "group", "delivery.count", "message")


def asyncapi(
    target: Target,
    as_json: Annotated[bool, typer.Option("--json", help="On one line.")] = False,
) -> None:
    """Print what an app reads and writes as AsyncAPI 3.0 (JSON).

    Topics, consumer group, schemas of values and keys, outputs and dead letters; no secrets. No
    broker is needed. A topic that only perkey.Produce(topic=…) names is not known and not listed.

    Example: perkey asyncapi geofence:app > asyncapi.json
    """
    app = load_app(target)
    module = sys.modules[target.partition(":")[0]]
    version = str(getattr(module, "__version__", "0.0.0"))
    typer.echo(json.dumps(document(app, version), indent=None if as_json else 2))


def document(app: App, version: str) -> dict[str, Any]:
    """The document of an app; `version` is the app's."""
    found = _Document(app)
    for handler in app.handlers:
        found.add(handler)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": app.options.group,
            "version": version,
            "x-generator": f"perkey {__version__}",
        },
        "servers": found.servers,
        "channels": found.channels,
        "operations": found.operations,
        "components": {"schemas": found.schemas, "securitySchemes": found.logins},
    }


class _Document:
    """The parts of one document, filled handler by handler."""

    def __init__(self, app: App) -> None:
        self._group = app.options.group
        self.channels: dict[str, Any] = {}
        self.operations: dict[str, Any] = {}
        self.schemas: dict[str, Any] = {}
        self.logins: dict[str, Any] = {}
        kafka = {canonical(name): str(value) for name, value in app.options.kafka.items()}
        security = kafka.get("security.protocol", "plaintext").lower()
        protocol = "kafka-secure" if security.endswith("ssl") else "kafka"
        self._server: dict[str, Any] = {"protocol": protocol}
        login = _LOGINS.get(kafka.get(canonical("sasl.mechanism"), "").upper())
        if security.startswith("sasl") and login is not None:
            self.logins["login"] = {"type": login}
            self._server["security"] = [{"$ref": "#/components/securitySchemes/login"}]
        check_addresses(app.options.kafka)  # one may hold a password
        hosts = kafka[canonical("bootstrap.servers")].split(",")
        self.servers = {
            "kafka" if not number else f"kafka-{number + 1}": {
                "host": host.strip().rpartition("://")[2],
                **self._server,
            }
            for number, host in enumerate(hosts)
        }

    def add(self, handler: HandlerOptions) -> None:
        """The operations of one handler: what it reads, its output, its dead letters."""
        many = len(handler.topics) > 1
        for topic in handler.topics:
            name = f"{handler.name}.{_id(topic)}" if many else handler.name
            read = self._message(handler.value, handler.key)
            operation = self._operation("receive", name, topic, handler.name, read)
            text = inspect.getdoc(handler.function)
            group = {"type": "string", "enum": [self._group]}
            self.operations[name] = {
                **operation,
                **({"description": text} if text else {}),
                "bindings": {"kafka": {"groupId": group, **_BINDING}},
                # What readers of the results need to know
                "x-perkey": {
                    "ordering": handler.ordering,
                    "delivery": handler.delivery,
                    "attempts": handler.retry.attempts,
                    "timeout_s": handler.timeout_s,
                },
            }
            policy = handler.on_exhausted
            if letters := letters_of(policy, topic):
                names = [f"__dlq.errors.{one}" for one in _LETTER_HEADERS]
                texts = {one: {"type": "string"} for one in names}
                letter = {**read, "headers": {"type": "object", "properties": texts}}
                if isinstance(policy, DeadLetter) and not policy.copy_value:
                    letter["payload"] = {"type": "null"}
                where = f"{name}.dead-letters"
                kind = f"{handler.name}.dead-letter"
                self.operations[where] = self._operation("send", where, letters, kind, letter)
        if handler.output is not None:
            name = f"{handler.name}.output"
            # The one type of value that the handler's annotation names, if there is one
            returned = members_of(hints_of(handler.function).get("return"))
            kinds = [one for one in returned if one not in (type(None), Produce)]
            value: Any = kinds[0] if len(kinds) == 1 and isinstance(kinds[0], type) else None
            plain: dict[Any, str] = {bytes: "bytes", str: "str", dict: "json"}
            message = self._message(plain.get(value, value), handler.key)
            self.operations[name] = self._operation("send", name, handler.output, name, message)

    def _operation(
        self, action: str, name: str, topic: str, kind: str, message: dict[str, Any]
    ) -> dict[str, Any]:
        """An operation on this topic, whose channel gets the message."""
        where = _id(topic)
        if topic.startswith("^"):
            about = f"Topics that match {topic}"
            channel: dict[str, Any] = {"address": None, "description": about, "messages": {}}
        else:
            bindings = {"kafka": {"topic": topic, **_BINDING}}
            channel = {"address": topic, "messages": {}, "bindings": bindings}
        self.channels.setdefault(where, channel)["messages"].setdefault(kind, message)
        at = f"#/channels/{where}"
        return {
            "action": action,
            "channel": {"$ref": at},
            "messages": [{"$ref": f"{at}/messages/{kind}"}],
            "title": name,
        }

    def _message(self, value: Any, key: Any) -> dict[str, Any]:
        """The message with these `value=` and `key=`; None: unknown."""
        binding: dict[str, Any] = {"key": self._schema(key)[1], **_BINDING}
        if isinstance(value, Schema):
            binding |= {"schemaIdLocation": "payload", "schemaIdPayloadEncoding": "confluent"}
            for server in self.servers.values():
                server["bindings"] = {"kafka": {"schemaRegistryUrl": value.url, **_BINDING}}
        content, payload = self._schema(value)
        kind = {"contentType": content} if content else {}
        return {**kind, "payload": payload, "bindings": {"kafka": binding}}

    def _schema(self, kind: Any) -> tuple[str, dict[str, Any]]:
        """Content type and JSON schema of one `value=` or `key=`; both empty if unknown."""
        if isinstance(kind, str):
            return _PLAIN[kind]
        at = f"{_SCHEMAS}{{model}}"
        if hasattr(kind, "model_json_schema"):
            return "application/json", self._defined(kind, kind.model_json_schema(ref_template=at))
        if hasattr(kind, "__pydantic_validator__"):  # a pydantic dataclass
            adapter = importlib.import_module("pydantic").TypeAdapter(kind)
            return "application/json", self._defined(kind, adapter.json_schema(ref_template=at))
        if dataclasses.is_dataclass(kind) or hasattr(kind, "__struct_fields__"):
            msgspec = importlib.import_module("msgspec")
            template = f"{_SCHEMAS}{{name}}"
            (schema,), parts = msgspec.json.schema_components([kind], ref_template=template)
            self.schemas |= parts
            return "application/json", schema
        return "", {}

    def _defined(self, kind: Any, schema: dict[str, Any]) -> dict[str, Any]:
        """Store a model's schema and its parts; returns the reference."""
        self.schemas |= schema.pop("$defs", {})
        self.schemas[kind.__name__] = schema
        return {"$ref": f"{_SCHEMAS}{kind.__name__}"}


def _id(topic: str) -> str:
    """A topic or pattern as a key that a reference can name."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", topic)
