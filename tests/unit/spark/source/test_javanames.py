"""Java's property names: translated, passed on, or refused with the cure."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer

from perkey.errors import ConfigError
from perkey.spark.source.fetch import FetchSettings, check_consumer
from perkey.spark.source.javanames import (
    REFUSED,
    RENAMED,
    RENAMED_VALUES,
    librdkafka_properties,
)

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.mark.parametrize(("java", "own"), sorted(RENAMED.items()))
def test_a_renamed_property_keeps_its_value(java, own):
    """What librdkafka spells differently is translated."""
    assert librdkafka_properties({java: "7"}) == {own: "7"}


@pytest.mark.parametrize(("java", "row"), sorted(RENAMED_VALUES.items()))
def test_javas_word_for_none_is_translated_too(java, row):
    """Some values differ: -1 and the empty string mean something else to librdkafka."""
    own, java_value, own_value = row
    assert librdkafka_properties({java: java_value}) == {own: own_value}
    assert librdkafka_properties({java: "64"}) == {own: "64"}


@pytest.mark.parametrize(
    ("servers", "why"),
    [
        ("http://h:9092", "is not the address of a broker"),
        ("h:99999", "is not an address"),
        ("h:9092,me:hunter2@h:9093", "has a user or a password in an address"),
    ],
)
def test_an_invalid_address_is_refused_before_a_job_starts(servers, why):
    """Librdkafka would look for such a host until its time-out; a password is not shown."""
    with pytest.raises(ConfigError, match=f"option kafka.bootstrap.servers .*{why}") as refused:
        librdkafka_properties({"bootstrap.servers": servers})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refused_property_is_named_with_a_cure(name):
    """No property is accepted and ignored: the error names it and says what to do."""
    with pytest.raises(ConfigError, match=f"kafka.{name} is not supported: .+"):
        librdkafka_properties({name: "x"})


def test_every_translation_is_a_property_that_librdkafka_knows():
    """The right-hand sides of the tables are checked against the library itself."""
    values = {
        "ssl.endpoint.identification.algorithm": "none",
        "client.dns.lookup": "use_all_dns_ips",
        "fetch.wait.max.ms": "10",
        "socket.timeout.ms": "10000",
    }
    plain = {"sasl.kerberos.kinit.cmd": "kinit"}
    for own in [*RENAMED.values(), *(row[0] for row in RENAMED_VALUES.values())]:
        if own.endswith("pem"):
            continue  # These are parsed at once: a certificate would be needed.
        value = plain.get(own, values.get(own, "65536"))
        Consumer({"group.id": "g", own: value}).close()


@pytest.mark.parametrize("name", ["linger.ms", "check.crcs", "isolation.level", "client.id"])
def test_what_is_in_no_table_is_passed_on(name):
    """Librdkafka's own names and those that both have go through."""
    assert librdkafka_properties({name: "x"}) == {name: "x"}


def test_two_names_for_one_property_are_refused():
    """Java's and librdkafka's name of one property contradict each other."""
    with pytest.raises(ConfigError, match=r"fetch\.wait\.max\.ms and kafka\.fetch\.max\.wait\.ms"):
        librdkafka_properties({"fetch.wait.max.ms": "1", "fetch.max.wait.ms": "2"})


@pytest.mark.parametrize(
    "text",
    [
        f'{PLAIN} required username="ann" password="p w;=\\"1";',
        f"{SCRAM}   required\n username='ann'\n password='p w;=\"1';",
        f'{PLAIN} required password="p w;=\\"1" username=ann ;',
    ],
)
def test_jaas_with_user_and_password_is_translated(text):
    """Quotes, escapes, order and line breaks are Java's."""
    found = librdkafka_properties({"sasl.jaas.config": text, "sasl.mechanism": "PLAIN"})
    assert found == {
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": 'p w;="1',
    }


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("com.sun.security.auth.module.Krb5LoginModule required x=hunter2;", "keytab"),
        ("a.b.OAuthBearerLoginModule required secret=hunter2;", "oauthbearer.method"),
        (f"{PLAIN} required user=hunter2;", "no username and password"),
        ("hunter2", "sasl.username"),
    ],
)
def test_other_jaas_is_refused_without_showing_it(text, cure):
    """The error tells librdkafka's way and nothing of the secret."""
    with pytest.raises(ConfigError, match=cure) as caught:
        librdkafka_properties({"sasl.jaas.config": text})
    assert "hunter2" not in str(caught.value)


def test_jaas_beside_librdkafkas_own_names_is_refused():
    """The password would be given twice."""
    jaas = f"{PLAIN} required username=a password=b;"
    with pytest.raises(ConfigError, match="both set") as caught:
        librdkafka_properties({"sasl.jaas.config": jaas, "sasl.password": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_pem_stores_are_translated():
    """PEM is what both clients read."""
    found = librdkafka_properties(
        {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "/ca",
            "ssl.keystore.type": "pem",
            "ssl.keystore.location": "/me",
            "ssl.key.password": "k",
        }
    )
    assert found == {
        "ssl.ca.location": "/ca",
        "ssl.certificate.location": "/me",
        "ssl.key.location": "/me",
        "ssl.key.password": "k",
    }


def test_pkcs12_key_stores_pass():
    """Librdkafka has Java's names for a PKCS#12 file and its password."""
    store = {"ssl.keystore.location": "/me.p12", "ssl.keystore.password": "k"}
    assert librdkafka_properties({**store, "ssl.keystore.type": "PKCS12"}) == store


@pytest.mark.parametrize(
    "store",
    [
        {"ssl.truststore.location": "/t.jks"},
        {"ssl.truststore.location": "/t.p12", "ssl.truststore.type": "PKCS12"},
        {"ssl.keystore.location": "/k.jks"},
        {"ssl.keystore.location": "/k", "ssl.keystore.type": "JKS"},
    ],
)
def test_javas_stores_are_refused_with_the_conversion(store):
    """A JKS store cannot be read; keytool makes something that can."""
    with pytest.raises(ConfigError, match="keytool"):
        librdkafka_properties(store)


def check_properties(kafka):
    """What `load()` does with the properties."""
    check_consumer(FetchSettings(kafka, "group", True, 1.0, 500))


def test_librdkafka_refuses_what_it_does_not_know():
    """The last table is librdkafka's own."""
    with pytest.raises(ConfigError, match=r"unknown option kafka\.no\.such"):
        check_properties({"bootstrap.servers": "x:1", "no.such": "1"})


def test_librdkafkas_refusal_shows_no_value():
    """Its text quotes values; ours does not."""
    with pytest.raises(ConfigError, match="refuses") as caught:
        check_properties({"bootstrap.servers": "x:1", "security.protocol": "hunter2-secret"})
    assert "hunter2" not in str(caught.value)


def test_properties_of_consumers_are_accepted():
    """The check makes the consumer that the tasks will make."""
    check_properties({"bootstrap.servers": "x:1", "fetch.min.bytes": "1", "check.crcs": "true"})


@pytest.mark.parametrize(
    "kafka",
    [
        {"fetch.min.bytes": "-1"},
        {"fetch.max.bytes": "1024", "message.max.bytes": "4096"},
    ],
    ids=lambda kafka: next(iter(kafka)),
)
def test_values_that_do_not_fit_together_are_refused_immediately(kafka):
    """What only a consumer checks is told before the job starts, too."""
    with pytest.raises(ConfigError):
        check_properties({"bootstrap.servers": "x:1", **kafka})
