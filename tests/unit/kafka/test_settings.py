"""The user's two dictionaries become the settings of three clients, or one line of error."""

from __future__ import annotations

import logging
import pickle
import socket
import threading

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from perkey.errors import ConfigError
from perkey.kafka.settings import OWNED, ClientSettings, client_settings, with_own_id

SERVERS = {"bootstrap.servers": "localhost:9092"}


def made(kafka=None, producer=None, *, delivery="at_least_once", instance=None, **sizes):
    sizes = {"buffer_records": 50_000, "buffer_bytes": 128 * 2**20} | sizes
    return client_settings(
        SERVERS | (kafka or {}),
        producer or {},
        group="geofence",
        delivery=delivery,
        fleet_instance_id=instance,
        **sizes,
    )


def refusal(kafka=None, producer=None, **more) -> str:
    with pytest.raises(ConfigError) as raised:
        made(kafka, producer, **more)
    message = str(raised.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("kafka", "producer", "expected"),
    [
        ({}, {}, "murmur2_random"),
        ({"partitioner": "consistent"}, {}, "consistent"),
        ({"partitioner": "consistent"}, {"partitioner": "fnv1a"}, "fnv1a"),
    ],
)
def test_keys_go_where_java_sends_them_unless_the_user_sets_a_partitioner(
    kafka, producer, expected
):
    """Java's partitioner by default, in every producer of Perkey's; `producer` wins over `kafka`."""
    assert made(kafka, producer).producer["partitioner"] == expected


def test_each_property_goes_to_the_clients_that_take_it() -> None:
    """The library's table decides: consumer, producer, or everybody (the admin client too)."""
    settings = made({"fetch.min.bytes": 7, "compression.type": "lz4", "client.id": "x"})
    assert [c.get("fetch.min.bytes") for c in configs(settings)] == [7, None, None]
    assert [c.get("compression.type") for c in configs(settings)] == [None, "lz4", None]
    assert [c.get("client.id") for c in configs(settings)] == ["x", "x", "x"]


def configs(settings: ClientSettings):
    return settings.consumer, settings.producer, settings.admin


def test_real_clients_are_made_with_them() -> None:
    """confluent-kafka takes all three dictionaries as they are."""
    settings = made({"log_level": 0})
    Consumer(settings.consumer).close()
    Producer(settings.producer).flush(0)
    AdminClient(settings.admin).poll(0)


def test_defaults_hold_unless_the_user_sets_them() -> None:
    """What Perkey sets for a consumer and a producer."""
    settings = made()
    expected = {
        "auto.offset.reset": "earliest",
        "fetch.queue.backoff.ms": 10,
        "isolation.level": "read_committed",
        "group.id": "geofence",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
    }
    assert expected.items() <= settings.consumer.items()
    assert {"enable.idempotence": True, "linger.ms": 5}.items() <= settings.producer.items()
    assert settings.admin == SERVERS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("auto.offset.reset", "latest"),
        ("fetch.queue.backoff.ms", 500),
        ("isolation.level", "read_uncommitted"),
        ("queued.min.messages", 3),
        ("queued.max.messages.kbytes", 70_000),
        ("fetch.max.bytes", 2_000_000),
        ("max.partition.fetch.bytes", 5_000),
    ],
)
def test_the_user_wins_over_a_default(name, value) -> None:
    """A property that the user gives keeps the user's value."""
    assert made({name: value}).consumer[name] == value


def test_the_user_wins_over_a_default_under_another_name_of_it() -> None:
    """An alias counts as the property: not both are handed to librdkafka."""
    consumer = made({"fetch.message.max.bytes": 5_000}).consumer
    assert "max.partition.fetch.bytes" not in consumer
    assert "linger.ms" not in made({"queue.buffering.max.ms": 1}).producer


def test_producer_properties_win_for_the_producer() -> None:
    """`producer` overrules `kafka`, also where they use two names of one property."""
    settings = made(
        {"linger.ms": 50, "client.id": "a"}, {"queue.buffering.max.ms": 1, "client.id": "b"}
    )
    assert settings.producer["queue.buffering.max.ms"] == 1
    assert "linger.ms" not in settings.producer
    assert (settings.producer["client.id"], settings.consumer["client.id"]) == ("b", "a")


@pytest.mark.parametrize("name", sorted(OWNED))
@pytest.mark.parametrize("option", ["kafka", "producer"])
def test_what_perkey_owns_is_refused_and_its_option_named(name, option) -> None:
    """Owned keys are an error whatever their value, with the option to use instead."""
    message = refusal(**{option: {name: "true"}})
    assert message == f"{option}: {name} is set by Perkey: {OWNED[name]}"


def test_every_key_of_the_contract_is_owned() -> None:
    """The list of section 3.1."""
    assert {
        "group.id",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.partition.eof",
        "enable.idempotence",
        "transactional.id",
    } <= set(OWNED)


def test_a_static_id_is_the_users_alone_and_perkeys_on_a_fleet() -> None:
    """`group.instance.id` passes through; with a fleet it is set, and giving it is an error."""
    assert made({"group.instance.id": "a"}).consumer["group.instance.id"] == "a"
    assert made(instance="g-1-0").consumer["group.instance.id"] == "g-1-0"
    assert "members=" in refusal({"group.instance.id": "a"}, instance="g-1-0")


@pytest.mark.parametrize("level", ["read_uncommitted", "READ_UNCOMMITTED"])
def test_exactly_once_reads_committed_only(level) -> None:
    """Reading uncommitted records contradicts exactly_once; otherwise it is the user's choice."""
    assert "delivery" in refusal({"isolation.level": level}, delivery="exactly_once")
    assert made({"isolation.level": level}).consumer["isolation.level"] == "read_uncommitted"
    made({"isolation.level": "read_committed"}, delivery="exactly_once")


@pytest.mark.parametrize(
    ("name", "value", "spelled"),
    [
        ("auto.offset.reset", "LATEST", "latest"),
        ("auto.offset.reset", " Earliest", "earliest"),
        ("group.protocol", "CONSUMER", "consumer"),
    ],
)
def test_a_value_that_perkey_looks_at_may_be_in_any_case(name, value, spelled):
    """Librdkafka takes it, but `LATEST` ended a run as "error" would, `CONSUMER` as classic."""
    assert made({name: value}).consumer[name] == spelled


@pytest.mark.parametrize("servers", [None, "", " , "])
def test_brokers_must_be_given(servers) -> None:
    """Without an address the message shows how to write one."""
    kafka = {} if servers is None else {"bootstrap.servers": servers}
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is missing: kafka=\{"):
        client_settings(
            kafka,
            {},
            group="g",
            buffer_records=1,
            buffer_bytes=1,
            delivery="at_least_once",
        )


def test_both_names_of_one_property_are_an_error() -> None:
    """The library would let the last one win without a word."""
    assert "are the same property" in refusal({"linger.ms": 1, "queue.buffering.max.ms": 2})


def test_a_consumer_property_does_not_belong_in_producer() -> None:
    """It would be ignored there."""
    assert "put it into kafka" in refusal(producer={"fetch.min.bytes": 1})


@pytest.mark.parametrize("given", [[("sasl.password", "canary")], "canary", None])
@pytest.mark.parametrize("option", ["kafka", "producer"])
def test_what_is_no_dict_is_refused_without_being_shown(given, option) -> None:
    """It may hold a password."""
    arguments = {"kafka": SERVERS, "producer": {}} | {option: given}
    with pytest.raises(ConfigError, match=f"{option} must be a dict") as raised:
        client_settings(
            **arguments, group="g", buffer_records=1, buffer_bytes=1, delivery="at_least_once"
        )
    assert "canary" not in str(raised.value)


@pytest.mark.parametrize("name", ["session.timeout.ms", "heartbeat.interval.ms"])
def test_the_new_group_protocol_refuses_what_the_broker_decides(name) -> None:
    """The library's own rule, before anything runs, with the property's name."""
    assert name in refusal({"group.protocol": "consumer", name: 7_000})


def test_the_new_group_protocol_refuses_a_client_side_assignor() -> None:
    """Assignment is the broker's there."""
    message = refusal({"group.protocol": "consumer", "partition.assignment.strategy": "range"})
    assert "partition.assignment.strategy" in message
    assert "group.remote.assignor" in message


@pytest.mark.parametrize(
    "kafka",
    [
        {"group.protocol": "consumer", "group.instance.id": "a", "group.remote.assignor": "range"},
        {"partition.assignment.strategy": "cooperative-sticky", "session.timeout.ms": 6000},
        {"acks": "all"},
        {"acks": -1},
        {
            "sasl.mechanism": "OAUTHBEARER",
            "security.protocol": "SASL_SSL",
            "enable.sasl.oauthbearer.unsecure.jwt": True,
        },
        {"heartbeat.interval.ms": 44_999},
        {"heartbeat.interval.ms": "2000", "session.timeout.ms": "6000"},
        {"sasl.mechanism": "GSSAPI", "security.protocol": "SASL_PLAINTEXT"},
        {"debug": "cgrp,fetch"},
        {"linger.ms": 2.5},
        {"linger.ms": "2.5"},
        {"check.crcs": True},
        {"check.crcs": "False"},
        {"client.rack": "a"},
    ],
)
def test_what_librdkafka_takes_passes(kafka) -> None:
    """Group protocols, static ids, words and numbers as people write them."""
    settings = made(kafka)
    for name, value in kafka.items():
        assert any(config.get(name) == value for config in configs(settings))


def test_callbacks_and_loggers_pass_untouched() -> None:
    """To consumer and producer; the admin client gets what it needs to log in, and the logger."""
    callbacks = {
        name: lambda *_: None for name in ("error_cb", "throttle_cb", "stats_cb", "oauth_cb")
    }
    given = callbacks | {"logger": logging.getLogger("x"), "statistics.interval.ms": 1000}
    settings = made(given)
    for name, value in given.items():
        passed = settings.consumer[name]
        assert getattr(passed, "args", (passed,))[0] is value  # oauth_cb within what logs for it
        assert settings.producer[name] is passed
    assert set(settings.admin) == {"bootstrap.servers", "oauth_cb", "logger"}


def test_no_callback_is_called_and_nothing_connects_while_checking() -> None:
    """Settings are checked without a network, also with OAuth."""
    called = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        made(
            {
                "bootstrap.servers": address,
                "sasl.mechanism": "OAUTHBEARER",
                "security.protocol": "sasl_plaintext",
                "oauth_cb": lambda _: called.set(),
                "error_cb": lambda _: called.set(),
            }
        )
        with pytest.raises(TimeoutError):
            server.accept()
    assert not called.is_set()


def test_settings_survive_pickling() -> None:
    """Spark's tasks get them with their secrets."""
    settings = made({"sasl.password": "canary-0815"})
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_the_repr_masks_secrets() -> None:
    """It shows what helps, and stars for the rest."""
    shown = repr(made({"sasl.password": "canary-0815", "sasl.username": "canary-user"}))
    assert "canary" not in shown
    assert "'sasl.password': '***'" in shown
    assert "localhost:9092" in shown
    assert str(made({"sasl.password": "canary-0815"})).count("canary") == 0


def test_the_address_is_known_by_either_name() -> None:
    """For messages."""
    assert made().bootstrap == "localhost:9092"
    settings = client_settings(
        {"metadata.broker.list": "kafka:1"},
        {},
        group="g",
        buffer_records=1,
        buffer_bytes=1,
        delivery="at_least_once",
    )
    assert settings.bootstrap == "kafka:1"


def test_a_property_without_effect_is_reported_in_the_log(caplog) -> None:
    """Any property of librdkafka is taken; one that does nothing here is not taken silently."""
    with caplog.at_level(logging.WARNING, "perkey.kafka"):
        made({"auto.commit.interval.ms": 100})
    assert "perkey.Commit(interval_s=...)" in caplog.text


@pytest.mark.parametrize("size_bytes", [1, 2**20, 16 * 2**20, 128 * 2**20, 2**30, 2**40])
@pytest.mark.parametrize("message_bytes", [1000, 1_000_000, 100_000_000])
def test_queues_stay_within_the_budget_and_librdkafkas_rules(size_bytes, message_bytes) -> None:
    """Queue and one response take at most a quarter, unless a single message needs more."""
    settings = made({"message.max.bytes": message_bytes}, buffer_bytes=size_bytes)
    config = settings.consumer
    queue_bytes = config["queued.max.messages.kbytes"] * 1024
    assert queue_bytes <= max(size_bytes // 4, 1024)
    assert config["fetch.max.bytes"] >= message_bytes
    assert queue_bytes + config["fetch.max.bytes"] <= max(
        size_bytes // 4, queue_bytes + max(message_bytes, 1024)
    )
    assert 1 <= config["queued.min.messages"] <= 50_000
    assert settings.producer["queue.buffering.max.kbytes"] * 1024 > 3 * message_bytes


def test_few_records_mean_a_short_queue() -> None:
    """`buffer_records` bounds librdkafka's queue too."""
    assert made(buffer_records=7).consumer["queued.min.messages"] == 7


@pytest.mark.parametrize("receive_bytes", [1_000_512, 2_000_000, 100_000_000])
def test_fetches_fit_the_largest_response_the_user_allows(receive_bytes) -> None:
    """`receive.message.max.bytes` needs room for a fetch and its frame."""
    config = made({"receive.message.max.bytes": receive_bytes}).consumer
    assert config["fetch.max.bytes"] <= receive_bytes - 512


def test_a_response_smaller_than_a_message_is_refused_by_name() -> None:
    """One byte less than the smallest that works."""
    assert "receive.message.max.bytes" in refusal({"receive.message.max.bytes": 1_000_511})


def test_a_classic_member_gets_a_static_id_of_its_own() -> None:
    """Another one each time, so that no two fence each other; the settings keep the user's."""
    one, other = (with_own_id({"group.id": "g"})["group.instance.id"] for _ in range(2))
    assert one != other
    assert one.startswith(socket.gethostname()[:10])


@pytest.mark.parametrize("given", [{"group.instance.id": "mine"}, {"group.protocol": "consumer"}])
def test_no_id_of_its_own_where_the_user_gives_one_or_the_protocol_needs_none(
    given: dict[str, str],
) -> None:
    """KIP-848 members keep their id through an outage, and a static one would hold its place."""
    assert with_own_id(given) == given


def test_what_a_token_callback_raises_is_logged(caplog) -> None:
    """Librdkafka knows only that there is no token; the callback still fails for it."""

    def down(config: str) -> None:
        raise ValueError("no token server")

    oauth = {"sasl.mechanism": "OAUTHBEARER", "security.protocol": "sasl_plaintext"}
    settings = made({**oauth, "oauth_cb": down})
    with pytest.raises(ValueError, match="no token server"):
        settings.consumer["oauth_cb"]("")
    (line,) = caplog.records
    assert line.getMessage() == (
        "oauth_cb raised ValueError: no token server: there is no token, it is called again"
    )
    assert line.exc_info
