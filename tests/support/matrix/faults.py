"""The faults of the matrix: how each strikes, how it is healed, and what the contract says of it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tests.support.matrix.cell import Cell

from perkey.broker.java import find_java
from perkey.broker.process import kafka_command

WAIT_S = 60.0
STRUCK = 1  # the partition that is struck; the other one goes on
SLOW_CLIENT = "matrix-slow"
USER = "app"
ANYBODY = "User:ANONYMOUS"


@dataclass(frozen=True)
class Fault:
    """One line of the table."""

    name: str
    #: in the middle of the work
    strike: Callable[[Cell], None]
    heal: Callable[[Cell], None]
    #: before the first start
    prepare: Callable[[Cell], None] = lambda _: None
    #: while it lasts: what must go on
    meanwhile: Callable[[Cell], None] = lambda _: None
    #: words of the reason with which it ends the run; "" when the run goes on
    ends: str = ""
    #: words that the log must have
    says: str = ""
    #: a cluster of three, of which it kills one
    cluster: bool = False


def _await(futures: dict[Any, Future[Any]]) -> None:
    for future in futures.values():
        future.result(WAIT_S)


def others_go_on(cell: Cell) -> None:
    """What comes to the partition that is not struck is handled before the fault is over."""
    before = set(cell.lived.produced)
    cell.produce(40, but=STRUCK)
    cell.until_done(cell.lived.produced.keys() - before, "the other partition goes on")


# -- who may do what -------------------------------------------------------------------------------


def deny(admin: AdminClient, topic: str, operation: AclOperation) -> None:
    """Nobody may do this with the topic."""
    _rule(admin, topic, operation, AclPermissionType.DENY)


def permit(admin: AdminClient, topic: str, operation: AclOperation) -> None:
    """Everybody may do this with the topic, and nothing that no other rule permits."""
    _rule(admin, topic, operation, AclPermissionType.ALLOW)


def _rule(
    admin: AdminClient, topic: str, operation: AclOperation, permission: AclPermissionType
) -> None:
    what = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL)
    _await(admin.create_acls([AclBinding(*what, ANYBODY, "*", operation, permission)]))


def allow(cell: Cell) -> None:
    """As before."""
    what = (ResourceType.TOPIC, cell.topic, ResourcePatternType.LITERAL)
    ours = AclBindingFilter(*what, None, None, AclOperation.ANY, AclPermissionType.ANY)
    _await(cell.admin.delete_acls([ours]))


# -- quota -----------------------------------------------------------------------------------------


def set_quota(bootstrap: str, client: str, **rates: int) -> None:
    """The broker slows down the clients of this client.id; rates in bytes/s. It lasts."""
    command = kafka_command(find_java(), Path())[:-2]
    change = ["--bootstrap-server", bootstrap, "--alter", "--entity-type", "clients"]
    config = ",".join(f"{name}={rate}" for name, rate in rates.items())
    which = ["--entity-name", client, "--add-config", config]
    command += ["kafka.admin.ConfigCommand", *change, *which]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def slow_client(cell: Cell) -> None:
    """A client of its own, which hears when it is slowed down."""
    cell.kafka |= {
        "client.id": f"{SLOW_CLIENT}-{cell.topic}",
        "throttle_cb": cell.throttled.append,
    }


def slow_down(cell: Cell) -> None:
    """In the middle of the work."""
    client = cell.kafka["client.id"]
    set_quota(cell.broker.bootstrap, client, consumer_byte_rate=25_000, producer_byte_rate=1_500)


def is_slowed_down(cell: Cell) -> None:
    """It goes on; the broker has told the client to wait."""
    cell.produce(300)
    cell.until(lambda: cell.throttled, "the broker slows it down")


# -- the partition ---------------------------------------------------------------------------------


def take_offline(cell: Cell) -> None:
    """Its only replica is killed."""
    cell.down = cell.leader(STRUCK)
    cell.broker.kill(cell.down - 1)
    cell.until(lambda: cell.leader(STRUCK) == -1, "it has no leader")


def bring_back(cell: Cell) -> None:
    """The broker is started again."""
    cell.broker.restart(cell.down - 1)
    cell.until(lambda: cell.leader(STRUCK) > 0, "it has a leader")


def make_again(cell: Cell) -> None:
    """Deleted, and made again under its name."""
    ids = cell.runs[-1].member.config.topic_ids
    cell.until(lambda: len(ids._ids) == 2, "the app knows the topic's id")  # as any app that runs
    cell.lived.spared |= set(cell.lived.produced)
    cell.broker.delete_topic(cell.topic)
    cell.broker.create_topic(cell.topic, 2)
    cell.made_again()


def hold(cell: Cell) -> None:
    """Most records wait for the fault: a busy machine strikes late, and all would be fetched."""
    cell.held = True


def delete_records(cell: Cell) -> None:
    """Most of what is not fetched yet."""
    at = {offset: name for name, (one, offset) in cell.offsets.items() if one == STRUCK}
    end = max(at) - 20
    cell.lived.spared |= {name for offset, name in at.items() if offset < end}
    gone = TopicPartition(cell.topic, STRUCK, end)
    _await(cell.admin.delete_records([gone]))
    cell.released.touch()


def open_transaction(cell: Cell) -> None:
    """Somebody's transaction: what is behind it waits for it."""
    writer = Producer(
        {"bootstrap.servers": cell.broker.bootstrap, "transactional.id": cell.topic, "log_level": 0}
    )
    writer.init_transactions(WAIT_S)
    writer.begin_transaction()
    for _ in range(5):
        writer.produce(cell.topic, b"9 9 aborted", b"k1", STRUCK)
    assert writer.flush(WAIT_S) == 0
    cell.writer = writer


def abort_transaction(cell: Cell) -> None:
    """Nothing of it counts."""
    assert cell.writer is not None
    cell.writer.abort_transaction(WAIT_S)


# -- the login -------------------------------------------------------------------------------------


def set_password(admin: AdminClient, user: str, password: str) -> None:
    """Its password is this from now on."""
    kind = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    change = UserScramCredentialUpsertion(user, kind, password.encode())
    _await(admin.alter_user_scram_credentials([change]))


def log_in(cell: Cell) -> None:
    """The app has a login of its own."""
    user = f"app-{cell.topic}"
    set_password(cell.admin, user, "first-secret")
    cell.kafka |= {
        "bootstrap.servers": cell.login,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": "first-secret",
    }
    if cell.kafka["group.protocol"] == "classic":
        # It cannot say goodbye; its successor waits for the end of its session.
        cell.kafka["session.timeout.ms"] = 15_000


def change_password(cell: Cell, password: str) -> None:
    """The next login is refused, or taken again."""
    set_password(cell.admin, cell.kafka["sasl.username"], password)


def nothing(_: Cell) -> None:
    """It is over by itself."""


FAULTS = (
    Fault(
        "ACL denied",
        lambda cell: deny(cell.admin, cell.topic, AclOperation.READ),
        allow,
        ends="topic authorization failed",
        says="grant READ",
    ),
    Fault(
        "quota",
        slow_down,
        nothing,
        slow_client,
        is_slowed_down,
        says="the broker throttles this client by a quota",
    ),
    Fault(
        "partition offline",
        take_offline,
        bring_back,
        meanwhile=others_go_on,
        says="Connection refused",
        cluster=True,
    ),
    Fault("topic made again", make_again, nothing, says="topic was recreated"),
    Fault(
        "DeleteRecords",
        delete_records,
        nothing,
        hold,
        meanwhile=others_go_on,
        says="records were deleted before they were read",
    ),
    Fault("open transaction", open_transaction, abort_transaction, meanwhile=others_go_on),
    Fault(
        "login refused",
        partial(change_password, password="second-secret"),
        partial(change_password, password="first-secret"),
        log_in,
        ends="authenticat",
        says="check security.protocol and sasl.*",
    ),
)
