"""`perkey.Schema`: keys and values in Confluent's wire format, decoded with a schema registry.

Client and deserializers are confluent-kafka's. Perkey only decides which of their errors are failed
attempts, and which end the record.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from perkey.errors import ConfigError

HEADER_BYTES = 5  # magic byte 0, then the schema's id in four bytes
#: Perkey repeats attempts by the handler's `retry`; without a time-out a call could hang forever
CONF = {"timeout": 5, "max.retries": 0}
AUTH = "basic.auth.user.info"
MESSAGE_CHARS = 200
#: by name: httpx is installed under more than one; errors of the registry, wherever raised
_OF_THE_REGISTRY = {"SchemaRegistryError", "OAuthTokenError", "TransportError", "OSError"}


class Schema:
    """For `value=` and `key=`: Avro, JSON Schema or Protobuf, by the schema id in the payload.

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
        for one in given_url.split(",") if isinstance(given_url, str) else [""]:
            try:
                parts = urlsplit(one.strip())
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
        if len(data) < HEADER_BYTES or data[0] != 0:
            raise ValueError(
                "not in Confluent's wire format: magic byte 0 and a schema id must come first"
            )
        made = self._made
        if made is None or not made.usable:
            made = self._made = _Reader(self._conf, self._message)
        return made.read(int.from_bytes(data[1:HEADER_BYTES], "big"), data)

    def __perkey_waits__(self, data: bytes) -> bool:
        """For perkey.decoding: whether it may query the registry, which blocks an event loop."""
        made = self._made
        if made is None or not made.usable:
            return True
        return int.from_bytes(data[1:HEADER_BYTES], "big") not in made.at_hand

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
        # The id alone names a schema; otherwise it would query the registry for subjects.
        by_id = {"subject.name.strategy": lambda _ctx, _name: None}
        self._by_type: dict[str, Callable[[bytes], Any]] = {
            "AVRO": AvroDeserializer(self._client, conf=by_id),
            "JSON": JSONDeserializer(None, schema_registry_client=self._client, conf=by_id),
        }
        if message is not None:
            self._by_type["PROTOBUF"] = ProtobufDeserializer(message, by_id)
        self._by_id: dict[int, Callable[[bytes], Any]] = {}
        #: ids that were read once, with all references; JSON Schema may fetch some later
        self.at_hand: set[int] = set()

    @property
    def usable(self) -> bool:
        """A client does not work after a fork, and keeps an answer without a schema."""
        return self._pid == os.getpid() and not self._spoilt

    def read(self, schema_id: int, data: bytes) -> Any:
        """The value after the header."""
        deserialize = self._by_id.get(schema_id) or self._found(schema_id)
        try:
            value = deserialize(data)
        except Exception as error:
            raise self._unreadable(error, schema_id) from None
        if deserialize is not self._by_type["JSON"]:
            self.at_hand.add(schema_id)
        return value

    def _found(self, schema_id: int) -> Callable[[bytes], Any]:
        try:
            schema = self._client.get_schema(schema_id)
        except Exception as error:
            raise self._refusal(error, schema_id) from None
        if not schema.schema_str:
            self._spoilt = True
            line = f"schema registry {self._url}: no schema in the response for schema {schema_id}"
            raise ConnectionError(line)
        kind = schema.schema_type or "AVRO"
        found = self._by_type.get(kind)
        if found is None:
            cure = "Perkey reads AVRO, JSON and PROTOBUF"
            if kind == "PROTOBUF":
                cure = "pass its generated class: perkey.Schema(url, message=...)"
            raise ValueError(f"schema {schema_id} is {kind}: {cure}")
        self._by_id[schema_id] = found
        return found

    def _refusal(self, error: BaseException, schema_id: int) -> Exception:
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

    def _unreadable(self, error: BaseException, schema_id: int) -> Exception:
        """The exception for unreadable bytes; a schema's references are fetched here."""
        line = _line(error)
        one: BaseException | None = error
        while one is not None:
            names = {base.__name__ for base in type(one).__mro__}
            if names & _OF_THE_REGISTRY:
                return self._refusal(one, schema_id)
            if "ValidationError" in names:  # its message quotes the value
                line = f"{getattr(one, 'json_path', '$')} fails {getattr(one, 'validator', '')!r}"
            one = one.__cause__ or one.__context__
        return ValueError(f"it does not fit schema {schema_id}: {line}")


def _line(error: BaseException) -> str:
    text = _short(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _short(text: str) -> str:
    return " ".join(text.split())[:MESSAGE_CHARS]
