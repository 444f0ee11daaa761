"""The table of Kafka errors is total, and says what the rest of Perkey relies on."""

from __future__ import annotations

from typing import get_args

import pytest
from confluent_kafka import KafkaError
from tests.support.cases import each

from perkey.core.events import Verdict
from perkey.kafka.transactions import _why
from perkey.kafka.verdicts import (
    FAMILIES,
    DeliveryVerdict,
    PollVerdict,
    TransactionVerdict,
    commit_verdict,
    delivery_verdict,
    error_text,
    family_of,
    of_content,
    poll_verdict,
    reason,
    table,
    transaction_verdict,
)

CODES = {
    name: value
    for name in dir(KafkaError)
    if isinstance(value := getattr(KafkaError, name), int) and not name.startswith("__")
}
FUTURE = 30_000


def test_the_library_has_as_many_codes_as_we_think() -> None:
    """Guards the test below against an empty list."""
    assert len(CODES) > 180
    assert CODES["_TRANSPORT"] == -195


def test_every_code_has_its_row() -> None:
    """Each code of confluent-kafka stands in one family, with an allowed answer everywhere."""
    each(has_its_row, sorted(CODES))


def has_its_row(name: str) -> None:
    code = CODES[name]
    assert table()[code].name in {n for n, c in CODES.items() if c == code}
    assert commit_verdict(code) in get_args(Verdict)
    assert poll_verdict(code) in get_args(PollVerdict)
    assert delivery_verdict(code) in get_args(DeliveryVerdict)
    assert transaction_verdict(KafkaError(code)) in get_args(TransactionVerdict)
    assert reason(code)


def test_no_code_stands_twice_and_none_is_made_up() -> None:
    """A code in two families would get the answers of the later one."""
    names = [name for family in FAMILIES for name in family.codes.split()]
    assert len(names) == len(set(names)) == len(table())
    assert set(names) <= set(CODES)


@pytest.mark.parametrize("code", [FUTURE, -FUTURE, 99, 101])
def test_a_code_of_the_future_ends_no_run(code) -> None:
    """It is reported; a commit is tried again, a message counts as refused."""
    assert poll_verdict(code) == "report"
    assert commit_verdict(code) == "retry"
    assert delivery_verdict(code) == "refused"
    assert transaction_verdict(KafkaError(code)) == "new_producer"
    assert "not known" in reason(code)


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("NO_ERROR", "stored"),
        ("REBALANCE_IN_PROGRESS", "retry"),
        ("STALE_MEMBER_EPOCH", "retry"),
        ("COORDINATOR_LOAD_IN_PROGRESS", "retry"),
        ("COORDINATOR_NOT_AVAILABLE", "retry"),
        ("NOT_COORDINATOR", "retry"),
        ("REQUEST_TIMED_OUT", "retry"),
        ("_TIMED_OUT", "retry"),
        ("_TRANSPORT", "retry"),
        ("_WAIT_COORD", "retry"),
        ("UNKNOWN_TOPIC_OR_PART", "missing"),
        ("OFFSET_METADATA_TOO_LARGE", "too_large"),
        ("ILLEGAL_GENERATION", "retry"),
        ("UNKNOWN_MEMBER_ID", "gone"),
        ("FENCED_MEMBER_EPOCH", "gone"),
        ("_ASSIGNMENT_LOST", "gone"),
        ("FENCED_INSTANCE_ID", "stop"),
        ("GROUP_AUTHORIZATION_FAILED", "stop"),
        ("TOPIC_AUTHORIZATION_FAILED", "stop"),
    ],
)
def test_commits(name, verdict) -> None:
    """What passes is committed again; what is over is dropped; what needs a person stops."""
    assert commit_verdict(CODES[name]) == verdict


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("_ALL_BROKERS_DOWN", "retry"),
        ("_TRANSPORT", "retry"),
        ("_RESOLVE", "retry"),
        ("UNKNOWN_MEMBER_ID", "retry"),
        ("_MAX_POLL_EXCEEDED", "rejoin"),
        ("UNRELEASED_INSTANCE_ID", "rejoin"),
        ("UNKNOWN_TOPIC_OR_PART", "report"),
        ("_AUTO_OFFSET_RESET", "report"),
        ("_BAD_MSG", "report"),
        ("TOPIC_AUTHORIZATION_FAILED", "stop"),
        ("GROUP_AUTHORIZATION_FAILED", "stop"),
        ("_AUTHENTICATION", "stop"),
        ("FENCED_INSTANCE_ID", "stop"),
        ("UNSUPPORTED_VERSION", "stop"),
        ("INCONSISTENT_GROUP_PROTOCOL", "stop"),
        ("_FATAL", "stop"),
    ],
)
def test_polls(name, verdict) -> None:
    """Only what no waiting can cure ends the run."""
    assert poll_verdict(CODES[name]) == verdict


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("MSG_SIZE_TOO_LARGE", "refused"),
        ("INVALID_RECORD", "refused"),
        ("TOPIC_AUTHORIZATION_FAILED", "refused"),
        ("_UNKNOWN_TOPIC", "refused"),
        ("_UNKNOWN_PARTITION", "refused"),
        ("INVALID_TIMESTAMP", "refused"),
        ("_MSG_TIMED_OUT", "retry"),
        ("_PURGE_INFLIGHT", "retry"),
        ("_INVALID_DIFFERENT_RECORD", "retry"),
        ("NOT_ENOUGH_REPLICAS", "retry"),
        ("OUT_OF_ORDER_SEQUENCE_NUMBER", "fatal"),
        ("CLUSTER_AUTHORIZATION_FAILED", "fatal"),
        ("_FENCED", "fatal"),
    ],
)
def test_deliveries(name, verdict) -> None:
    """A message that can never be stored fails its record; the others are produced again."""
    assert delivery_verdict(CODES[name]) == verdict


def error(name: str, *, fatal=False, retriable=False, abort=False) -> KafkaError:
    return KafkaError(CODES[name], "", fatal, retriable, abort)


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        # As seen on a real broker.
        (error("_FENCED", fatal=True), "fenced"),
        (error("MSG_SIZE_TOO_LARGE", abort=True), "abort"),
        (error("UNKNOWN_MEMBER_ID", abort=True), "abort"),
        (error("_TIMED_OUT", retriable=True), "new_producer"),
        (error("_STATE"), "new_producer"),
        # By librdkafka's flags.
        (error("COORDINATOR_LOAD_IN_PROGRESS", retriable=True), "retry"),
        (error("NOT_COORDINATOR", abort=True), "abort"),
        (error("MSG_SIZE_TOO_LARGE", fatal=True), "new_producer"),
        (error("TOPIC_AUTHORIZATION_FAILED", abort=True), "abort"),
        (error("REQUEST_TIMED_OUT", retriable=True), "new_producer"),
        (error("INVALID_PRODUCER_EPOCH", abort=True), "new_producer"),
        (error("PRODUCER_FENCED", fatal=True), "fenced"),
        (error("FENCED_INSTANCE_ID", abort=True), "fenced"),
        (error("GROUP_AUTHORIZATION_FAILED", abort=True), "fatal"),
        (error("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", fatal=True), "fatal"),
    ],
)
def test_transactions(given, verdict) -> None:
    """In doubt a new producer; fenced is the end; the rest as librdkafka's flags say."""
    assert transaction_verdict(given) == verdict


def test_a_transaction_that_the_broker_timed_out_is_not_taken_for_fencing() -> None:
    """The broker's answer is the same, but nobody else has the id: go on with a new producer."""
    fenced = error("_FENCED", fatal=True)
    assert transaction_verdict(fenced, timed_out=True) == "new_producer"
    member = error("FENCED_INSTANCE_ID", abort=True)
    assert transaction_verdict(member, timed_out=True) == "fenced"


def test_a_former_membership_of_ours_fences_no_producer() -> None:
    """After an outage longer than the session, with an id that no one else has."""
    member = error("FENCED_INSTANCE_ID", abort=True)
    assert transaction_verdict(member, own_id=True) == "abort"
    assert transaction_verdict(error("FENCED_INSTANCE_ID"), own_id=True) == "new_producer"
    assert transaction_verdict(error("_FENCED", fatal=True), own_id=True) == "fenced"


def test_families_read_as_sentences() -> None:
    """A reason stands behind a colon in log lines: small first letter, no full stop."""
    for family in FAMILIES:
        assert family.reason[:2].lower() == family.reason[:2] or family.codes == "_SSL"
        assert not family.reason.endswith(".")
    assert family_of(0).reason == "not an error"


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "WRITE on the transactional id"),
        ("PRODUCER_FENCED", "another producer has started with the same transactional.id"),
    ],
)
def test_the_end_of_transactions_reports_why(name: str, means: str) -> None:
    """A right that was taken away is no other member."""
    text = _why(KafkaError(getattr(KafkaError, name)))
    assert means in text
    assert ("another producer" in text) == (name == "PRODUCER_FENCED")


def test_a_transaction_that_was_open_for_too_long_names_no_other_producer() -> None:
    """A suspended process: the broker answers as if another producer had its id."""
    text = _why(error("_FENCED", fatal=True), timed_out=True)
    assert "another producer" not in text
    assert "longer than its time-out" in text
    text = _why(error("FENCED_INSTANCE_ID", abort=True), own_id=True)
    assert "another member" not in text
    assert "joined again" in text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("TOPIC_AUTHORIZATION_FAILED", True),
        ("UNKNOWN_TOPIC_OR_PART", True),
        ("POLICY_VIOLATION", True),
        ("TRANSACTION_ABORTABLE", True),
        ("UNKNOWN", True),
        ("OFFSET_METADATA_TOO_LARGE", False),
        ("_TRANSPORT", False),
        ("_TIMED_OUT", False),
        ("NOT_COORDINATOR", False),
        ("CONCURRENT_TRANSACTIONS", False),
        ("NOT_LEADER_FOR_PARTITION", False),
        ("REBALANCE_IN_PROGRESS", False),
        ("UNKNOWN_MEMBER_ID", False),
        ("PRODUCER_FENCED", False),
        ("INVALID_TXN_STATE", False),
        ("_PURGE_QUEUE", False),
    ],
)
def test_an_abort_is_laid_to_what_is_in_it_only_where_it_may_lie_there(
    name: str, content: bool
) -> None:
    """What lies with the brokers, the group or the time is no output's fault."""
    assert of_content(CODES[name]) == content


def test_what_ends_a_run_is_reported_with_its_cure() -> None:
    """What passes by itself is not: librdkafka's words are enough."""
    refused = error_text(KafkaError(CODES["TOPIC_AUTHORIZATION_FAILED"]))
    assert refused == f"{KafkaError(29).str()}: {reason(29)}"
    assert "grant READ" in refused
    assert error_text(KafkaError(CODES["_TRANSPORT"])) == KafkaError(CODES["_TRANSPORT"]).str()
