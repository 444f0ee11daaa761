"""`perkey.Schema`: keys and values in Confluent's wire format, decoded with a schema registry.

Client and deserializers are confluent-kafka's. Perkey only decides which of their errors are failed
attempts, and which end the record.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID

from perkey.errors import ConfigError
from perkey.types import Record

#: length of a schema's id by the magic byte before it: a number, or a GUID
ID_BYTES = {0: 4, 1: 16}
#: Perkey repeats attempts by the handler's `retry`; without a time-out a call could hang forever
CONF = {"timeout": 5, "max.retries": 0}
AUTH = "basic.auth.user.info"
MESSAGE_CHARS = 200
#: by name: httpx is installed under more than one; errors of the registry, wherever raised
_OF_THE_REGISTRY = {"SchemaRegistryError", "OAuthTokenError", "TransportError", "OSError"}


class Schema:
    """For `value=` and `key=`: Avro, JSON Schema or Protobuf, by the id in the payload or a header.

    `conf` takes the options of confluent-kafka's SchemaRegistryClient; `message` is the generated
    class of Protobuf messages.
    """

    def __init__(
        self, url: str, *, conf: Mapping[str, Any] | None = None, message: type | None = None
    ) -> None:
        # The URL, or several with commas, and `user:password` of the first that has them.
        urls: list[str] = []
        user_info: str | None = None
        given_url: object = url  # from untyped code, anything
        for address in given_url.split(",") if isinstance(given_url, str) else [""]:
            try:
                parts = urlsplit(address.strip())
                good = parts.scheme in {"http", "https"} and bool(parts.hostname)
                good = good and not parts.query and not parts.fragment and parts.port != 0
            except ValueError:
                good = False
            if not good:  # without the URL in the message: it may hold a password
                raise ConfigError(
                    "perkey.Schema: give the registry's URL, http://HOST:PORT (several with commas)"
                )
            if user_info is None and parts.username is not None:
                user_info = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            urls.append(
                f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
            )
        self.url = ",".join(urls)
        given = dict(conf or {})
        if "url" in given:
            raise ConfigError("perkey.Schema: the URL is its first argument: remove url from conf")
        if user_info is not None:
            if AUTH in given:
                raise ConfigError(
                    f"perkey.Schema: credentials in the URL and in {AUTH}: remove one"
                )
            given[AUTH] = user_info
        if message is not None and not hasattr(message, "DESCRIPTOR"):
            raise ConfigError("perkey.Schema: message= takes a class that protoc generated")
        self._conf, self._message = {**CONF, **given, "url": self.url}, message
        try:  # raises if something is missing or conf is invalid; it does not connect
            self._made: _Reader | None = _Reader(self._conf, message)
        except ImportError as error:
            text = f"perkey.Schema needs {error.name}: pip install 'perkey[schema]'"
            raise ConfigError(text) from None
        except Exception as error:
            line = _line(error)
            if any(isinstance(held, str) and held in line for held in self._conf.values()):
                line = type(error).__name__  # a value in the message may be a secret
            raise ConfigError(f"perkey.Schema: conf: {line}") from None

    def __call__(self, data: bytes) -> Any:
        """The decoded value: for Avro and JSON mostly a dict, for Protobuf the message."""
        head = _head(data)
        if not head:
            raise ValueError(
                "not in Confluent's wire format: magic byte 0 and a schema id must come first, or "
                "be in the header __value_schema_id (of a key: __key_schema_id)"
            )
        made = self._made
        if made is None or not made.usable:
            made = self._made = _Reader(self._conf, self._message)
        return made.read(head, data)

    @staticmethod
    def __perkey_given__(name: str) -> Callable[[Record], bytes]:
        """For perkey.decoding: a field's bytes, behind the schema id if a header has that.

        The header's value is what serializers otherwise put before the payload: the deserializers
        read both forms from there. The last header counts, as for the Java deserializers.
        """
        header = f"__{name}_schema_id"

        def framed(record: Record) -> bytes:
            payload: bytes = getattr(record, name)
            for key, schema_id in reversed(record.headers):
                if key == header and schema_id is not None:
                    return schema_id + payload
            return payload

        return framed

    def __perkey_waits__(self, data: bytes) -> bool:
        """For perkey.decoding: whether it may query the registry, which blocks an event loop."""
        made = self._made
        if made is None or not made.usable:
            return True
        return _head(data) not in made.at_hand

    def __repr__(self) -> str:
        return f"perkey.Schema({self.url!r})"  # never conf: it holds passwords

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}


class _Reader:
    """The registry's client in one process, with the schemas found by id."""

    def __init__(self, conf: dict[str, Any], message: type | None) -> None:
        from confluent_kafka.schema_registry import SchemaRegistryClient
        from confluent_kafka.schema_registry.avro import AvroDeserializer
        from confluent_kafka.schema_registry.json_schema import JSONDeserializer
        from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer

        self._pid = os.getpid()
        self._spoilt = False
        self._url = conf["url"]
        self._client = SchemaRegistryClient(conf)
        weakref.finalize(self, self._client.close)
        # the client keeps a schema by the GUID of the response, which may have none
        self._client.get_schema_by_guid = cache(self._client.get_schema_by_guid)  # type: ignore[method-assign]  # of this object
        # The id alone names a schema; otherwise it would query the registry for subjects.
        by_id = {"subject.name.strategy": lambda _ctx, _name: None}
        self._by_type: dict[str, Callable[[bytes], Any]] = {
            "AVRO": AvroDeserializer(self._client, conf=by_id),
            "JSON": JSONDeserializer(None, schema_registry_client=self._client, conf=by_id),
        }
        if message is not None:
            self._by_type["PROTOBUF"] = ProtobufDeserializer(message, by_id)
        self._by_head: dict[bytes, Callable[[bytes], Any]] = {}
        #: heads that were read once, with all references; JSON Schema may fetch some later
        self.at_hand: set[bytes] = set()

    @property
    def usable(self) -> bool:
        """A client does not work after a fork, and keeps an answer without a schema."""
        return self._pid == os.getpid() and not self._spoilt

    def read(self, head: bytes, data: bytes) -> Any:
        """The value after the magic byte and the schema id, its `head`."""
        deserialize = self._by_head.get(head) or self._found(head)
        try:
            value = deserialize(data)
        except Exception as error:
            raise self._unreadable(error, _id_of(head)) from None
        if deserialize is not self._by_type["JSON"]:
            self.at_hand.add(head)
        return value

    def _found(self, head: bytes) -> Callable[[bytes], Any]:
        schema_id = _id_of(head)
        try:
            if isinstance(schema_id, int):
                schema = self._client.get_schema(schema_id)
            else:
                schema = self._client.get_schema_by_guid(str(schema_id), None)  # as they call it
        except Exception as error:
            raise self._refusal(error, schema_id) from None
        if not schema.schema_str:
            self._spoilt = True
            line = f"schema registry {self._url}: no schema in the response for schema {schema_id}"
            raise ConnectionError(line)
        kind = schema.schema_type or "AVRO"
        reader = self._by_type.get(kind)
        if reader is None:
            cure = "Perkey reads AVRO, JSON and PROTOBUF"
            if kind == "PROTOBUF":
                cure = "pass its generated class: perkey.Schema(url, message=...)"
            raise ValueError(f"schema {schema_id} is {kind}: {cure}")
        self._by_head[head] = reader
        return reader

    def _refusal(self, error: BaseException, schema_id: int | UUID) -> Exception:
        """The exception if the registry returned no schema: OSErrors are failed attempts."""
        status = getattr(error, "http_status_code", None)
        if status is None:
            return ConnectionError(f"schema registry {self._url}: {_line(error)}")
        line = f"schema registry {self._url}: HTTP {status} for schema {schema_id}"
        code, detail = getattr(error, "error_code", None), getattr(error, "error_message", "")
        if status in {401, 403}:
            return PermissionError(f"{line}: check the credentials in conf and their rights")
        # A registry returns its own error code; a proxy in front of one that is down does not.
        of_registry = isinstance(code, int) and code != -1
        if of_registry and 400 <= status < 500 and status not in {408, 429}:
            return ValueError(f"{line}: {_short(str(detail))}")
        return ConnectionError(line if of_registry else f"{line}, and no registry's error code")

    def _unreadable(self, error: BaseException, schema_id: int | UUID) -> Exception:
        """The exception for unreadable bytes; a schema's references are fetched here."""
        line = _line(error)
        cause: BaseException | None = error
        while cause is not None:
            names = {base.__name__ for base in type(cause).__mro__}
            if names & _OF_THE_REGISTRY:
                return self._refusal(cause, schema_id)
            if "ValidationError" in names:  # its message quotes the value
                line = (
                    f"{getattr(cause, 'json_path', '$')} fails {getattr(cause, 'validator', '')!r}"
                )
            cause = cause.__cause__ or cause.__context__
        return ValueError(f"it does not fit schema {schema_id}: {line}")


def _head(data: bytes) -> bytes:
    """The magic byte with the schema's id; empty if this is not the wire format."""
    size = 1 + ID_BYTES[data[0]] if data and data[0] in ID_BYTES else 0
    return data[:size] if len(data) >= size else b""


def _id_of(head: bytes) -> int | UUID:
    return int.from_bytes(head[1:], "big") if head[0] == 0 else UUID(bytes=head[1:])


def _line(error: BaseException) -> str:
    text = _short(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _short(text: str) -> str:
    return " ".join(text.split())[:MESSAGE_CHARS]
