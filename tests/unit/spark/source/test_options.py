"""The options of the source: what is accepted, what is refused, and what the refusal says."""

from __future__ import annotations

import re

import pytest

from perkey.errors import ConfigError
from perkey.spark.source.options import COLUMNS, POLL_RECORDS_MAX, source_options

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "gps"}


def options(**more: str):
    return source_options({**BASE, **{k.replace("__", "."): v for k, v in more.items()}})


def without(name: str, **more: str):
    return source_options({k: v for k, v in {**BASE, **more}.items() if k != name})


def refused(pattern: str):
    return pytest.raises(ConfigError, match=pattern)


def test_defaults_are_those_of_sparks_connector():
    """Without options of its own a source reads every column, fails on lost data, all in one go."""
    found = options()
    assert found.subscription.topics == ("gps",)
    assert found.columns == COLUMNS
    assert found.fail_on_data_loss
    assert (found.max_offsets, found.min_offsets, found.min_partitions) == (None, None, None)
    assert found.for_batch().starting.kind == "earliest"
    assert found.for_batch().ending.kind == "latest"
    assert found.for_stream().starting.kind == "latest"


def test_names_are_read_in_any_case():
    """Spark hands names over in lower case; people write them in theirs."""
    assert options(STARTINGOFFSETS="Earliest", minpartitions="7").min_partitions == 7


@pytest.mark.parametrize(
    ("level", "committed"), [("READ_COMMITTED", True), ("read_committed", True), ("", False)]
)
def test_the_isolation_level_is_read_in_any_case(level, committed):
    """As librdkafka reads it: a range that ended at the wrong end waited for an open transaction."""
    assert options(**{"kafka.isolation.level": level}).reads_committed is committed


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("startingOfsets", "did you mean startingOffsets"),
        ("bootstrap.servers", "write kafka.bootstrap.servers"),
        ("path", "no path"),
        ("zebra", "there are subscribe, "),
    ],
)
def test_an_unknown_option_is_named_with_the_nearest_known(name, says):
    """An option in no table is an error that helps to find the right one."""
    with refused(re.escape(says)) as caught:
        source_options({**BASE, name: "1"})
    assert name == "path" or name.lower() in str(caught.value)


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({"assign": '{"gps":[0]}'}, ("subscribe", "assign")),
        ({"subscribePattern": "g.*"}, ("subscribe", "subscribePattern")),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, ("startingOffsets", "startingTimestamp")),
        ({"endingOffsets": "latest", "endingTimestamp": "1"}, ("endingOffsets", "endingTimestamp")),
        ({"groupIdPrefix": "a", "kafka.group.id": "b"}, ("groupIdPrefix", "kafka.group.id")),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, ("minOffsetsPerTrigger=5", "maxOffsetsPerTrigger=4")),
        ({"includeHeaders": "true", "columns": "value"}, ("includeHeaders", "columns")),
    ],
)  # fmt: skip
def test_contradictory_options_are_both_named(more, names):
    """Two options that cannot both hold are an error naming both."""
    with refused("contradict") as caught:
        source_options({**BASE, **more})
    assert all(name in str(caught.value) for name in names)


def test_least_and_most_of_a_trigger_may_be_equal():
    """The limit itself is no contradiction."""
    found = options(minOffsetsPerTrigger="4", maxOffsetsPerTrigger="4")
    assert (found.min_offsets, found.max_offsets) == (4, 4)


@pytest.mark.parametrize("name", ["subscribe", "kafka.bootstrap.servers"])
def test_a_missing_necessity_is_named(name):
    """Without topics or without brokers there is nothing to read."""
    with refused(name):
        without(name)


def test_an_option_without_effect_is_refused():
    """An option that needs another one is not accepted and ignored."""
    with refused("maxTriggerDelay does nothing without minOffsetsPerTrigger"):
        options(maxTriggerDelay="1m")
    with refused("does nothing without startingTimestamp or startingOffsetsByTimestamp"):
        options(startingOffsetsByTimestampStrategy="latest", startingOffsets="latest")


@pytest.mark.parametrize(
    "more",
    [
        {"startingOffsets": "{bad"},
        {"startingOffsets": "[]"},
        {"startingOffsets": "{}"},
        {"startingOffsets": '{"gps": 4}'},
        {"startingOffsets": '{"gps": {"x": 4}}'},
        {"startingOffsets": '{"gps": {"-1": 4}}'},
        {"startingOffsets": '{"gps": {"0": -3}}'},
        {"startingOffsets": '{"gps": {"0": 1.5}}'},
        {"startingOffsets": '{"gps": {"0": true}}'},
        {"startingOffsets": '{"gps": {"0": 1, "0": 2}}'},
        {"startingOffsets": '{"gps": {"0": 9223372036854775808}}'},
        {"startingOffsets": "[" * 100_000},
        {"startingOffsetsByTimestamp": '{"gps": {"0": -1}}'},
        {"startingTimestamp": "yesterday"},
        {"startingTimestamp": "-1"},
        {"startingTimestamp": "9223372036854775808"},
        {"endingOffsets": "soon"},
        {"maxOffsetsPerTrigger": "0"},
        {"maxOffsetsPerTrigger": "many"},
        {"minPartitions": "-1"},
        {"maxRecordsPerPartition": "0"},
        {"failOnDataLoss": "maybe"},
        {"includeHeaders": "1"},
        {"groupIdPrefix": " "},
        {"kafka.group.id": " "},
        {"columns": "value,nothing"},
        {"columns": "value,value"},
        {"columns": ","},
        {"columns": "headers"},
        {"kafkaConsumer.pollTimeoutMs": "0"},
        {"fetchOffset.numRetries": "x"},
        {"kafka.max.poll.records": "0"},
        {"minOffsetsPerTrigger": "1", "maxTriggerDelay": "5 weeks"},
        {"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "newest"},
    ],
    ids=lambda more: " ".join(f"{k}={v}" for k, v in more.items())[:60],
)
def test_a_malformed_value_is_one_line_naming_the_option(more):
    """Whatever cannot be read is told with its option, in one short line."""
    name = list(more)[-1]
    with refused(re.escape(name.split("=")[0])) as caught:
        source_options({**BASE, **more})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_offsets_beyond_and_at_their_limits():
    """-2 is the lowest offset, 2**63 - 1 the highest."""
    found = options(startingOffsets='{"gps": {"0": -2, "1": 9223372036854775807}}')
    assert found.starting.by_partition == {("gps", 0): -2, ("gps", 1): 2**63 - 1}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15m", 900), ("10s", 10), ("500ms", 0.5), ("2h", 7200), ("1d", 86400), ("250", 0.25), ("1 min", 60)],
)  # fmt: skip
def test_delays_are_read_in_sparks_units(text, seconds):
    """A time has one of Spark's units; a bare number is milliseconds."""
    assert options(minOffsetsPerTrigger="1", maxTriggerDelay=text).max_trigger_delay_s == seconds


def test_topics_are_split_trimmed_and_kept_once():
    """`subscribe` is a list with commas."""
    assert options(subscribe=" a, b ,,a").subscription.topics == ("a", "b")
    for bad in (" , ", "a,b c", "a,..", "x" * 250):
        with refused("subscribe"):
            options(subscribe=bad)


def test_assign_is_read_and_checked():
    """`assign` is JSON of lists of partitions."""
    found = without("subscribe", assign='{"b":[1,0],"a":[2]}')
    assert found.subscription.assigned == (("a", 2), ("b", 0), ("b", 1))
    for bad in (
        "a",
        '{"a":0}',
        '{"a":[]}',
        '{"a":[-1]}',
        '{"a":["0"]}',
        '{"a":[0,0]}',
        '{"a":[2147483648]}',
        '{"a b":[0]}',
    ):
        with refused("assign"):
            without("subscribe", assign=bad)


def test_a_pattern_is_checked():
    """A pattern that Python cannot compile is told at once."""
    assert without("subscribe", subscribePattern="gps\\..*").subscription.pattern == "gps\\..*"
    for bad in ("(", " "):
        with refused("subscribePattern"):
            without("subscribe", subscribePattern=bad)


def test_columns_are_read_in_the_order_given():
    """`columns` chooses and orders; names are found in any case."""
    assert options(columns="offset, VALUE").columns == ("offset", "value")
    assert options(includeHeaders="true").columns == (*COLUMNS, "headers")
    assert options(includeHeaders="true", columns="headers").columns == ("headers",)


def test_streaming_options_are_refused_in_a_batch():
    """A batch has no triggers."""
    with refused("maxOffsetsPerTrigger is for streaming"):
        options(maxOffsetsPerTrigger="5").for_batch()


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_ends_are_refused_in_a_stream(name):
    """A stream has no end."""
    value = {"endingOffsets": "latest", "endingTimestamp": "5"}.get(name, '{"gps":{"0":5}}')
    with refused(f"{name} is for batch reads"):
        options(**{name: value}).for_stream()


@pytest.mark.parametrize(
    "more",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"gps":{"0":-1}}'},
        {"endingOffsets": "earliest"},
        {"endingOffsets": '{"gps":{"0":-2}}'},
    ],
)
def test_a_batch_that_can_hold_nothing_is_refused(more):
    """Starting at the end and ending at the start are mistakes."""
    with refused("reads nothing"):
        options(**more).for_batch()


@pytest.mark.parametrize(
    "more",
    [
        {"startingOffsets": '{"gps":{"0":5}}', "endingOffsets": '{"gps":{"0":4}}'},
        {"startingTimestamp": "5", "endingTimestamp": "4"},
        {"startingOffsets": '{"gps":{"0":5}}', "endingOffsets": '{"gps":{"1":9}}'},
    ],
)
def test_an_end_before_its_start_is_refused(more):
    """The user's own numbers must be in order and of the same partitions."""
    with refused("starting"):
        options(**more).for_batch()


def test_an_end_at_its_start_is_an_empty_read():
    """Equal numbers are no mistake."""
    same = '{"gps":{"0":5}}'
    assert options(startingOffsets=same, endingOffsets=same).for_batch()


def test_secrets_are_not_in_the_repr():
    """Options end up in logs; passwords and addresses of the brokers do not."""
    found = options(kafka__sasl__password="hunter2-secret")
    assert "hunter2" not in repr(found)


def test_javas_poll_size_is_the_sources_own():
    """`max.poll.records` sets how many records one call takes, up to a limit."""
    assert options(kafka__max__poll__records="7").poll_records == 7
    for asked in (POLL_RECORDS_MAX - 1, POLL_RECORDS_MAX, POLL_RECORDS_MAX + 1):
        found = options(kafka__max__poll__records=str(asked))
        assert found.poll_records == min(asked, POLL_RECORDS_MAX)
        assert "max.poll.records" not in found.kafka


def test_a_reference_becomes_what_it_names(monkeypatch, tmp_path):
    """From the driver's environment or from a file; a file's last line end is not part of it."""
    (tmp_path / "key").write_text("the key\n")
    monkeypatch.setenv("WHO", "me")
    found = options(
        kafka__ssl__key__pem=f"${{file:{tmp_path}/key}}", kafka__sasl__username="${env:WHO}"
    )
    assert (found.kafka["ssl.key.pem"], found.kafka["sasl.username"]) == ("the key", "me")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("${env:NOT_THERE}", "the environment of the driver has no NOT_THERE"),
        ("${file:/no/such}", "cannot read /no/such: No such file"),
        ("in clear", "holds a secret in clear"),
        ("${env:", "holds a secret in clear"),
    ],
)
def test_a_reference_that_leads_nowhere_is_reported(value, says):
    """One line with the option's name."""
    with refused(re.escape(says)) as caught:
        options(kafka__ssl__key__pem=value)
    assert "kafka.ssl.key.pem" in str(caught.value)


def test_a_stream_waits_for_brokers_and_a_batch_does_not():
    """`reconnectTimeout` is for streams, some minutes by default; a task waits as long."""
    stream = options().for_stream()
    assert (stream.reconnect_s, stream.poll_timeout_s) == (600, 600)
    assert options(reconnectTimeout="20s").for_stream().poll_timeout_s == 120
    given = options(**{"kafkaConsumer.pollTimeoutMs": "5000"}).for_stream()
    assert (given.reconnect_s, given.poll_timeout_s) == (600, 5)
    assert options().for_batch().reconnect_s == 0
    with refused("reconnectTimeout is for streaming"):
        options(reconnectTimeout="20s").for_batch()
