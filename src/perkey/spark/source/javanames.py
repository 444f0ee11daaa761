"""`kafka.*` options: Java's property names translated to librdkafka's, or refused with the fix.

A job that moves from Spark's own connector uses the Java client's names. Most are the same in
librdkafka; the others are in the tables here. Names in no table go to librdkafka, which refuses
unknown ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from perkey.errors import ConfigError
from perkey.kafka.settings import check_addresses

#: Java name -> librdkafka name; the value is unchanged.
RENAMED: dict[str, str] = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "request.timeout.ms": "socket.timeout.ms",
    "sasl.kerberos.kinit.cmd.path": "sasl.kerberos.kinit.cmd",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}

#: Java name -> (librdkafka name, the value that Java uses for "none" or "default", librdkafka's).
RENAMED_VALUES: dict[str, tuple[str, str, str]] = {
    "receive.buffer.bytes": ("socket.receive.buffer.bytes", "-1", "0"),
    "send.buffer.bytes": ("socket.send.buffer.bytes", "-1", "0"),
    "ssl.endpoint.identification.algorithm": ("ssl.endpoint.identification.algorithm", "", "none"),
    "client.dns.lookup": ("client.dns.lookup", "default", "use_all_dns_ips"),
}

OAUTH = (
    "use kafka.sasl.oauthbearer.method=oidc and its sasl.oauthbearer.* properties, or"
    " kafka.oauth_cb=package.module.factory"
)
PEM = "librdkafka reads PEM files"

#: the reason for a refusal, or what to write instead -> the properties
CURES: dict[str, str] = {
    "use startingOffsets=earliest or latest": "auto.offset.reset",
    "the query's checkpoint keeps the offsets: remove it": """
        enable.auto.commit enable.auto.offset.store auto.commit.interval.ms auto.commit.enable
    """,
    "the source sets it itself: remove it": "enable.partition.eof",
    "keys are binary: cast the column key": "key.deserializer",
    "values are binary: cast the column value": "value.deserializer",
    "it is of a producer: remove it": "key.serializer value.serializer",
    "it is of the Java client alone: remove it": """
        interceptor.classes metric.reporters metrics.num.samples metrics.recording.level
        metrics.sample.window.ms auto.include.jmx.reporter security.providers config.providers
    """,
    "the source assigns partitions itself and joins no consumer group: remove it": """
        session.timeout.ms heartbeat.interval.ms max.poll.interval.ms group.instance.id
        partition.assignment.strategy group.protocol group.protocol.type group.remote.assignor
        internal.leave.group.on.close
    """,
    "use kafkaConsumer.pollTimeoutMs and kafka.socket.timeout.ms": "default.api.timeout.ms",
    "subscribePattern never matches internal topics: remove it": "exclude.internal.topics",
    "use kafka.socket.connection.setup.timeout.ms": "socket.connection.setup.timeout.max.ms",
    OAUTH: """
        sasl.client.callback.handler.class sasl.login.callback.handler.class sasl.login.class
    """,
    "use kafka.sasl.kerberos.min.time.before.relogin": """
        sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
    """,
    "it names a Java class or algorithm; librdkafka uses OpenSSL: remove it": """
        ssl.enabled.protocols ssl.protocol ssl.provider ssl.engine.factory.class
        ssl.keymanager.algorithm ssl.trustmanager.algorithm ssl.secure.random.implementation
    """,
    f"{PEM}, which need no password: remove it": "ssl.truststore.password",
    "it takes a Python object, which an option cannot be: remove it": """
        default.topic.config error_cb logger on_commit on_delivery stats_cb throttle_cb
    """,
}
#: The same by property.
REFUSED = {name: cure for cure, names in CURES.items() for name in names.split()}

Properties = dict[str, str]


def librdkafka_properties(java: Mapping[str, str]) -> Properties:
    """The same properties under librdkafka's names.

    `java` has the names without `kafka.`. Raises ConfigError for a name that has no equivalent,
    where two names mean the same property, and for an address that is none. Only such an address
    appears in an error, unless it holds a password.
    """
    rest = dict(java)
    found: list[tuple[str, str, str]] = []  # (name given, librdkafka's name, its value)
    for take in (take_jaas, take_truststore, take_keystore):
        found += take(rest)
    found += [(name, *renamed(name, value)) for name, value in rest.items()]
    givers: dict[str, str] = {}
    result: Properties = {}
    for given, name, value in found:
        if name in givers:
            raise ConfigError(
                f"options kafka.{givers[name]} and kafka.{given} both set librdkafka's {name}:"
                " give one of them"
            )
        givers[name], result[name] = given, value
    if "bootstrap.servers" in result:
        check_addresses(result, "option kafka.")
    return result


def renamed(name: str, value: str) -> tuple[str, str]:
    """One property with librdkafka's name and value."""
    if name in REFUSED:
        raise refused(name, REFUSED[name])
    if name in RENAMED:
        return RENAMED[name], value
    if name in RENAMED_VALUES:
        target, java_value, own_value = RENAMED_VALUES[name]
        return target, own_value if value.strip() == java_value else value
    return name, value


def refused(name: str, cure: str) -> ConfigError:
    """The error for a property that cannot be passed on."""
    return ConfigError(f"option kafka.{name} is not supported: {cure}")


Found = list[tuple[str, str, str]]

LOGIN_MODULE = re.compile(
    r"^\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*)$", re.DOTALL
)
JAAS_OPTION = re.compile(
    r"""([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))"""
)


def take_jaas(rest: Properties) -> Found:
    """Java's `sasl.jaas.config` with user name and password as librdkafka's two properties."""
    text = rest.pop("sasl.jaas.config", None)
    if text is None:
        return []
    module = LOGIN_MODULE.match(text)
    name = module.group(1).rpartition(".")[2] if module else ""
    if module is None or name not in ("PlainLoginModule", "ScramLoginModule"):
        raise refused("sasl.jaas.config", jaas_cure(name))
    options = {m[1]: unquoted(m) for m in JAAS_OPTION.finditer(module.group(2))}
    if "username" not in options or "password" not in options:
        raise refused("sasl.jaas.config", "it holds no username and password that can be read")
    given = "sasl.jaas.config"
    return [
        (given, "sasl.username", options["username"]),
        (given, "sasl.password", options["password"]),
    ]


def unquoted(option: re.Match[str]) -> str:
    """The value of a JAAS option without its quotes; a backslash takes the next character."""
    quoted = option[2] if option[2] is not None else option[3]
    return option[4] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)


def jaas_cure(module: str) -> str:
    """What to write instead of a login module."""
    if module == "Krb5LoginModule":
        return "use kafka.sasl.kerberos.principal and kafka.sasl.kerberos.keytab"
    if module == "OAuthBearerLoginModule":
        return OAUTH
    return "use kafka.sasl.username and kafka.sasl.password"


def take_truststore(rest: Properties) -> Found:
    """Java's trust store, if it is one PEM file; a Java key store is refused."""
    kind = rest.pop("ssl.truststore.type", None)
    location = rest.pop("ssl.truststore.location", None)
    if location is not None and not is_pem(kind, location):
        raise refused(
            "ssl.truststore.location",
            f"{PEM}: export the certificates with `keytool -exportcert -rfc` and set"
            " kafka.ssl.ca.location",
        )
    return [] if location is None else [("ssl.truststore.location", "ssl.ca.location", location)]


def take_keystore(rest: Properties) -> Found:
    """Java's key store, if it is PEM or PKCS#12; a JKS one is refused."""
    kind = rest.pop("ssl.keystore.type", None)
    location = rest.get("ssl.keystore.location")
    if location is None:
        return []
    if (kind or "").upper() == "JKS" or location.lower().endswith(".jks"):
        raise refused(
            "ssl.keystore.location",
            "librdkafka reads PKCS#12 and PEM: convert it with"
            " `keytool -importkeystore -deststoretype PKCS12`",
        )
    if not is_pem(kind, location):
        return []  # PKCS#12: librdkafka has the same names for the file and its password.
    given = rest.pop("ssl.keystore.location") and "ssl.keystore.location"
    return [(given, "ssl.certificate.location", location), (given, "ssl.key.location", location)]


def is_pem(kind: str | None, location: str) -> bool:
    """Whether a store is PEM: by its type, else by the file's name."""
    return kind.upper() == "PEM" if kind else location.lower().endswith((".pem", ".crt"))
