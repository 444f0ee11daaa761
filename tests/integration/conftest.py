"""Brokers by what they can, one each for a worker's session; the plain one is `kafka_broker`.

One may be killed, one can refuse logins and rights, one is a cluster of three.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from tests.support.rights import RIGHTS

from perkey.broker import LocalBroker, cluster
from perkey.broker.state import free_ports
from perkey.broker.topics import wait_for_groups

#: groups notice a dead member soon; each has its own session, see Chaos
SETTINGS = {
    "group.consumer.max.session.timeout.ms": 300_000,
    "group.consumer.heartbeat.interval.ms": 300,
}
LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
#: a connection logs in again so often
AGAIN_MS = 1_500


class Guarded(NamedTuple):
    """A broker, and the address of its second listener, which asks for a password."""

    broker: LocalBroker
    login: str


@pytest.fixture(scope="session")
def mortal_broker() -> Iterator[LocalBroker]:
    """A broker that tests kill, freeze and start again; each leaves it running."""
    with LocalBroker(config=SETTINGS) as broker:
        wait_for_groups(broker.bootstrap)
        yield broker


@pytest.fixture(scope="session")
def rights_broker() -> Iterator[Guarded]:
    """One node with rights and, at its second address, logins."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    plain = cluster.server_properties

    def with_login(*arguments: Any) -> str:
        lines = plain(*arguments).splitlines()
        more = {"listeners": f",LOGIN://{address}", "advertised.listeners": f",LOGIN://{address}",
                "listener.security.protocol.map": ",LOGIN:SASL_PLAINTEXT"}  # fmt: skip
        lines = [line + more.get(line.partition("=")[0], "") for line in lines]
        lines += [
            "sasl.enabled.mechanisms=SCRAM-SHA-256",
            f"connections.max.reauth.ms={AGAIN_MS}",
            f"listener.name.login.scram-sha-256.sasl.jaas.config={LOGIN}",
        ]
        return "\n".join(lines) + "\n"

    running = LocalBroker(config=RIGHTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "server_properties", with_login)
        running.start()
    with running:
        yield Guarded(running, address)


@pytest.fixture(scope="session")
def three_nodes() -> Iterator[LocalBroker]:
    """Three nodes; one that a test kills is back after it."""
    with LocalBroker(nodes=3) as broker:
        yield broker
