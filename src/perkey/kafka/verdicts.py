"""What each Kafka error means for Perkey: one table with every error code.

The meaning of an error code depends on where it occurs, so there are four questions, one per place.
Codes are grouped in families with the same verdicts; a code that this version of Perkey does not
know gets those of `UNKNOWN`, which never end a run. `docs/kafka_errors.py` makes a page of this
table.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple

from confluent_kafka import KafkaError

from perkey.core.events import Verdict as CommitVerdict

PollVerdict = Literal["retry", "rejoin", "stop", "report"]
DeliveryVerdict = Literal["refused", "retry", "fatal"]
TransactionVerdict = Literal["retry", "abort", "new_producer", "fenced", "fatal"]


class Family(NamedTuple):
    """Errors with the same verdicts, and the reason."""

    #: of an offset commit: stored; retry within the same epoch; missing: the same, but a last
    #: commit does not wait for it; too_large: repeat without the map; gone: the epoch is over;
    #: stop: end the run
    commit: CommitVerdict
    #: of a poll: retry: librdkafka recovers by itself; rejoin: recreate the consumer, after a
    #: pause; report: log it and continue; stop: end the run
    poll: PollVerdict
    #: of a produced message: retry: produce it again; refused: its record's attempt failed;
    #: fatal: the producer cannot be used any more
    delivery: DeliveryVerdict
    #: of a transaction: retry the call; abort and produce again; new_producer: under the same id,
    #: because the outcome is unknown; fenced or fatal: end the run
    transaction: TransactionVerdict
    reason: str
    codes: str


class Row(NamedTuple):
    """One code of the table."""

    code: int
    name: str
    family: Family


UNKNOWN = Family(
    "retry", "report", "refused", "new_producer", "not known to this version of Perkey", ""
)

FAMILIES: tuple[Family, ...] = (
    Family("stored", "report", "retry", "retry", "not an error", "NO_ERROR"),
    Family(
        "retry", "retry", "retry", "new_producer",
        "the broker is unreachable; librdkafka reconnects automatically",
        "_TRANSPORT _ALL_BROKERS_DOWN _RESOLVE _FAIL _NODE_UPDATE _DESTROY_BROKER _UNKNOWN_BROKER "
        "NETWORK_EXCEPTION BROKER_NOT_AVAILABLE REBOOTSTRAP_REQUIRED",
    ),
    Family(
        "retry", "retry", "retry", "new_producer",
        "no response in time; the outcome is unknown",
        "_TIMED_OUT REQUEST_TIMED_OUT _MSG_TIMED_OUT _TIMED_OUT_QUEUE _INTR",
    ),
    Family(
        "retry", "retry", "retry", "retry",
        "the partition's leader or its replicas are changing; temporary",
        "LEADER_NOT_AVAILABLE NOT_LEADER_FOR_PARTITION REPLICA_NOT_AVAILABLE FENCED_LEADER_EPOCH "
        "UNKNOWN_LEADER_EPOCH OFFSET_NOT_AVAILABLE NOT_ENOUGH_REPLICAS "
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND _ISR_INSUFF KAFKA_STORAGE_ERROR LISTENER_NOT_FOUND "
        "STALE_CTRL_EPOCH NOT_CONTROLLER STALE_BROKER_EPOCH PREFERRED_LEADER_NOT_AVAILABLE "
        "ELIGIBLE_LEADERS_NOT_AVAILABLE REASSIGNMENT_IN_PROGRESS UNKNOWN_CONTROLLER_ID",
    ),
    Family(
        "retry", "retry", "retry", "retry",
        "the coordinator is starting or moving, or an earlier request is pending; temporary",
        "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR _WAIT_COORD "
        "CONCURRENT_TRANSACTIONS UNSTABLE_OFFSET_COMMIT THROTTLING_QUOTA_EXCEEDED _WAIT_CACHE "
        "_IN_PROGRESS _PREV_IN_PROGRESS _RETRY _QUEUE_FULL _PARTIAL _OUTDATED "
        "FETCH_SESSION_ID_NOT_FOUND INVALID_FETCH_SESSION_EPOCH",
    ),
    Family(
        "retry", "retry", "retry", "abort",
        "the group is rebalancing; partitions that this member keeps are committed again",
        # ILLEGAL_GENERATION: a cooperative member that keeps its partitions meets it in every
        # rebalance, between its join and its sync. A removed member learns that separately.
        "REBALANCE_IN_PROGRESS ILLEGAL_GENERATION STALE_MEMBER_EPOCH MEMBER_ID_REQUIRED",
    ),
    Family(
        "gone", "retry", "retry", "abort",
        "the group has removed this member; librdkafka rejoins automatically",
        "UNKNOWN_MEMBER_ID FENCED_MEMBER_EPOCH _ASSIGNMENT_LOST "
        "_UNKNOWN_GROUP GROUP_ID_NOT_FOUND",
    ),
    Family(
        "gone", "rejoin", "retry", "abort",
        "no poll for max.poll.interval.ms: the member has left its group",
        "_MAX_POLL_EXCEEDED",
    ),
    Family(
        "gone", "rejoin", "retry", "abort",
        "the group has no place yet: the previous member with this group.instance.id has not "
        "timed out, or the group is full",
        "UNRELEASED_INSTANCE_ID GROUP_MAX_SIZE_REACHED",
    ),
    Family(
        "stop", "stop", "fatal", "fenced",
        "another member has joined with the same group.instance.id: give each its own",
        "FENCED_INSTANCE_ID",
    ),
    Family(
        "stop", "stop", "fatal", "fenced",
        "another producer has started with the same transactional.id",
        "PRODUCER_FENCED _FENCED",
    ),
    Family(
        "retry", "stop", "fatal", "new_producer",
        "the producer's state no longer matches the broker's: Perkey recreates the producer",
        "OUT_OF_ORDER_SEQUENCE_NUMBER UNKNOWN_PRODUCER_ID INVALID_PRODUCER_ID_MAPPING "
        "INVALID_PRODUCER_EPOCH INVALID_TXN_STATE _GAPLESS_GUARANTEE _INCONSISTENT _FATAL "
        "TRANSACTION_COORDINATOR_FENCED",
    ),
    Family(
        "retry", "report", "retry", "abort",
        "its transaction or batch failed, not the message itself",
        "TRANSACTION_ABORTABLE _PURGE_QUEUE _PURGE_INFLIGHT _INVALID_DIFFERENT_RECORD",
    ),
    Family(
        "retry", "report", "retry", "retry",
        "the broker already has this message",
        "DUPLICATE_SEQUENCE_NUMBER",
    ),
    Family(
        "too_large", "report", "refused", "abort",
        "the commit's metadata is larger than the broker's offset.metadata.max.bytes",
        "OFFSET_METADATA_TOO_LARGE INVALID_COMMIT_OFFSET_SIZE",
    ),
    Family(
        "retry", "report", "refused", "abort",
        "this message cannot be stored or read: check its size, its format and the topic's "
        "configuration",
        "MSG_SIZE_TOO_LARGE RECORD_LIST_TOO_LARGE INVALID_RECORD INVALID_MSG INVALID_MSG_SIZE "
        "INVALID_TIMESTAMP POLICY_VIOLATION UNSUPPORTED_COMPRESSION_TYPE "
        "UNSUPPORTED_FOR_MESSAGE_FORMAT INVALID_REQUIRED_ACKS INVALID_REQUEST _BAD_MSG "
        "_BAD_COMPRESSION _UNDERFLOW _KEY_SERIALIZATION _VALUE_SERIALIZATION _KEY_DESERIALIZATION "
        "_VALUE_DESERIALIZATION",
    ),
    Family(
        "missing", "report", "refused", "abort",
        "the topic or the partition does not exist: create it or correct the name",
        "UNKNOWN_TOPIC_OR_PART _UNKNOWN_TOPIC _UNKNOWN_PARTITION UNKNOWN_TOPIC_ID TOPIC_EXCEPTION",
    ),
    Family(
        "gone", "report", "retry", "abort",
        "the topic was deleted and recreated",
        "INCONSISTENT_TOPIC_ID",
    ),
    Family(
        "retry", "report", "refused", "abort",
        "the log does not contain this offset: on_offset_lost decides",
        "OFFSET_OUT_OF_RANGE _AUTO_OFFSET_RESET _LOG_TRUNCATION _NO_OFFSET",
    ),
    Family(
        "stop", "stop", "refused", "abort",
        "this user lacks permission on the topic: grant READ to consume, WRITE to produce; both "
        "include DESCRIBE, unless that is denied",
        "TOPIC_AUTHORIZATION_FAILED",
    ),
    Family(
        "stop", "stop", "fatal", "fatal",
        "this user lacks permission: grant READ on the group, WRITE on the transactional id, "
        "IDEMPOTENT_WRITE on the cluster",
        "GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED "
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED DELEGATION_TOKEN_AUTHORIZATION_FAILED",
    ),
    Family(
        "stop", "stop", "fatal", "fatal",
        "the broker refuses the credentials: check security.protocol and sasl.*",
        "_AUTHENTICATION SASL_AUTHENTICATION_FAILED UNSUPPORTED_SASL_MECHANISM ILLEGAL_SASL_STATE "
        "SECURITY_DISABLED PRINCIPAL_DESERIALIZATION_FAILURE UNACCEPTABLE_CREDENTIAL "
        "INVALID_PRINCIPAL_TYPE DELEGATION_TOKEN_AUTH_DISABLED DELEGATION_TOKEN_NOT_FOUND "
        "DELEGATION_TOKEN_OWNER_MISMATCH DELEGATION_TOKEN_REQUEST_NOT_ALLOWED "
        "DELEGATION_TOKEN_EXPIRED",
    ),
    Family(
        "retry", "report", "retry", "new_producer",
        "no TLS connection: check ssl.* and that the address is a TLS listener's",
        "_SSL",
    ),
    Family(
        "stop", "stop", "fatal", "fatal",
        "the configuration cannot work with this cluster or this group",
        "UNSUPPORTED_VERSION UNSUPPORTED_ASSIGNOR INVALID_GROUP_ID "
        "INVALID_SESSION_TIMEOUT INVALID_REGULAR_EXPRESSION INVALID_CONFIG "
        "INVALID_TRANSACTION_TIMEOUT UNSUPPORTED_ENDPOINT_TYPE MISMATCHED_ENDPOINT_TYPE "
        "_UNSUPPORTED_FEATURE _UNKNOWN_PROTOCOL _NOT_IMPLEMENTED _NOT_CONFIGURED _INVALID_ARG "
        "_INVALID_TYPE _EXISTING_SUBSCRIPTION _CONFLICT _CRIT_SYS_RESOURCE _FS",
    ),
    Family(
        "stop", "stop", "fatal", "fatal",
        "other members of the group assign partitions in another way: give all of them the same "
        "group.protocol and partition.assignment.strategy (a fleet takes cooperative-sticky, one "
        "process range), or stop them first; a killed one stays until its session.timeout.ms",
        "INCONSISTENT_GROUP_PROTOCOL",
    ),
    Family(
        "gone", "report", "retry", "new_producer",
        "the client is closed, or was called out of order",
        "_DESTROY _STATE _APPLICATION",
    ),
    Family(
        "retry", "report", "retry", "retry",
        "an event, not a failure",
        "_PARTITION_EOF _ASSIGN_PARTITIONS _REVOKE_PARTITIONS _NOOP _NOENT _READ_ONLY",
    ),
    Family(
        "retry", "report", "retry", "new_producer", "the broker gave no reason", "UNKNOWN"
    ),
    Family(
        "retry", "report", "refused", "abort",
        "a response to administration, share groups, Streams or between brokers: Perkey sends "
        "no such request here",
        "TOPIC_ALREADY_EXISTS INVALID_PARTITIONS INVALID_REPLICATION_FACTOR "
        "INVALID_REPLICA_ASSIGNMENT OPERATION_NOT_ATTEMPTED LOG_DIR_NOT_FOUND NON_EMPTY_GROUP "
        "TOPIC_DELETION_DISABLED ELECTION_NOT_NEEDED NO_REASSIGNMENT_IN_PROGRESS "
        "GROUP_SUBSCRIBED_TO_TOPIC RESOURCE_NOT_FOUND DUPLICATE_RESOURCE INCONSISTENT_VOTER_SET "
        "INVALID_UPDATE_VERSION FEATURE_UPDATE_FAILED UNKNOWN_SUBSCRIPTION_ID TELEMETRY_TOO_LARGE "
        "INVALID_REGISTRATION INVALID_RECORD_STATE SHARE_SESSION_NOT_FOUND "
        "INVALID_SHARE_SESSION_EPOCH SHARE_SESSION_LIMIT_REACHED FENCED_STATE_EPOCH "
        "INVALID_VOTER_KEY DUPLICATE_VOTER VOTER_NOT_FOUND STREAMS_INVALID_TOPOLOGY "
        "STREAMS_INVALID_TOPOLOGY_EPOCH STREAMS_TOPOLOGY_FENCED",
    ),
)  # fmt: skip


@cache
def table() -> dict[int, Row]:
    """Every code of this confluent-kafka that is in a family, by number."""
    rows = {}
    for family in FAMILIES:
        for name in family.codes.split():
            code = getattr(KafkaError, name, None)  # An older or newer version may not have it.
            if code is not None:
                rows[code] = Row(code, name, family)
    return dict(sorted(rows.items()))


def family_of(code: int) -> Family:
    """The family of a code; `UNKNOWN` for one that is not in the table."""
    row = table().get(code)
    return row.family if row else UNKNOWN


def commit_verdict(code: int) -> CommitVerdict:
    """What to do about an offset commit that returned this code."""
    return family_of(code).commit


def poll_verdict(code: int) -> PollVerdict:
    """What to do about a poll that returned this code."""
    return family_of(code).poll


def delivery_verdict(code: int) -> DeliveryVerdict:
    """What to do about a produced message that failed with this code."""
    return family_of(code).delivery


def transaction_verdict(
    error: KafkaError, *, timed_out: bool = False, own_id: bool = False
) -> TransactionVerdict:
    """What to do about an error of a transaction.

    If the outcome is in doubt, the table overrides librdkafka's "retriable": a
    request that is sent again late can end a later transaction (Jepsen, bufstream 0.1.0).
    `timed_out`: the transaction was open for `transaction.timeout.ms` or longer. The broker then
    has ended it itself, and responds as if another producer had taken the id.
    `own_id`: no other member has the `group.instance.id`, so a former membership of this run is
    fenced, not the producer.
    """
    if own_id and error.code() == KafkaError.FENCED_INSTANCE_ID:
        return "abort" if error.txn_requires_abort() else "new_producer"
    verdict = family_of(error.code()).transaction
    if verdict == "fenced" and timed_out and error.code() != KafkaError.FENCED_INSTANCE_ID:
        return "new_producer"
    if verdict in {"fenced", "fatal", "new_producer"}:
        return verdict
    if error.fatal():
        return "new_producer"
    if error.txn_requires_abort():
        return "abort"
    return "retry" if error.retriable() else verdict


def of_content(code: int) -> bool:
    """Whether the content of a transaction may be the reason that it was aborted with this code.

    Not for temporary causes: unavailable brokers, moving coordinators, a rebalance. A map that is
    too large is not a message's fault either.
    """
    if maps_too_large(code):
        return False
    family = family_of(code)
    return family.delivery == "refused" or code in {
        KafkaError.TRANSACTION_ABORTABLE,
        KafkaError.UNKNOWN,
    }


def refuses_login(code: int) -> bool:
    """Whether the brokers refuse the credentials."""
    return family_of(code) is family_of(KafkaError._AUTHENTICATION)  # noqa: SLF001  # public constant


def maps_too_large(code: int) -> bool:
    """Whether a transaction failed because its metadata is too large for the broker."""
    return family_of(code).commit == "too_large"


def reason(code: int) -> str:
    """The reason for the verdict, for the log and the last line of a run that stops."""
    return family_of(code).reason


def transaction_reason(error: KafkaError, *, timed_out: bool = False, own_id: bool = False) -> str:
    """The same for an error of a transaction; for the options see `transaction_verdict`."""
    looks_fenced = family_of(error.code()).transaction == "fenced"
    if not looks_fenced or (
        transaction_verdict(error, timed_out=timed_out, own_id=own_id) == "fenced"
    ):
        return reason(error.code())
    if error.code() == KafkaError.FENCED_INSTANCE_ID:
        return "this member has joined again since"
    return "it was open for longer than its time-out, so the broker has ended it"


def error_text(error: KafkaError) -> str:
    """The text of a client error, with the fix if it ends the run."""
    stops = poll_verdict(error.code()) == "stop"
    return f"{error.str()}: {reason(error.code())}" if stops else str(error.str())
