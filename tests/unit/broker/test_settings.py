"""A local broker's settings: its shape has limits, it listens on loopback, the user's values win."""

from __future__ import annotations

from pathlib import Path

import pytest

from perkey.broker.state import Node, check_config, check_shape, server_properties
from perkey.errors import ConfigError

NODES = [Node(1, 9001, 9101), Node(2, 9002, 9102), Node(3, 9003, 9103)]


def rendered(count=1, config=None, log_dir=Path("/data/log")):
    text = server_properties(NODES[0], NODES[:count], log_dir, config or {})
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_one_to_three_nodes(nodes):
    """A cluster of 1, 2 or 3 nodes is accepted."""
    check_shape(nodes, None)


@pytest.mark.parametrize("nodes", [-1, 0, 4])
def test_other_node_counts_are_refused(nodes):
    """Anything else is refused with the limits named."""
    with pytest.raises(ConfigError, match="1 to 3 nodes"):
        check_shape(nodes, None)


@pytest.mark.parametrize(("nodes", "port"), [(1, 1), (1, 65_535), (3, 65_533)])
def test_ports_up_to_the_last(nodes, port):
    """The nodes' ports follow each other and must all exist."""
    check_shape(nodes, port)


@pytest.mark.parametrize(("nodes", "port"), [(1, 0), (1, 65_536), (3, 65_534), (1, -5)])
def test_ports_beyond_the_last_are_refused(nodes, port):
    """A port that does not exist, also of a further node, is refused."""
    with pytest.raises(ConfigError, match=f"port is {port}"):
        check_shape(nodes, port)


def test_it_listens_on_loopback_only():
    """No listener, advertised or not, leaves this machine."""
    settings = rendered(3)
    for key in ("listeners", "advertised.listeners", "controller.quorum.voters"):
        for one in settings[key].split(","):
            assert "127.0.0.1:" in one


@pytest.mark.parametrize(("count", "in_sync"), [(1, "1"), (2, "1"), (3, "2")])
def test_internal_topics_are_on_all_nodes(count, in_sync):
    """Internal topics have a copy on each node, and three nodes go on without one."""
    settings = rendered(count)
    assert settings["offsets.topic.replication.factor"] == str(count)
    assert settings["transaction.state.log.replication.factor"] == str(count)
    assert settings["transaction.state.log.min.isr"] == in_sync


def test_the_users_settings_win():
    """A broker setting given in `config` replaces the default."""
    assert rendered(config={"log.retention.ms": 1000})["log.retention.ms"] == "1000"


def test_python_values_are_spelled_as_kafka_reads_them():
    """True is `true`, and a backslash survives the properties format."""
    settings = rendered(config={"auto.create.topics.enable": True, "x": "a\\b"})
    assert settings["auto.create.topics.enable"] == "true"
    assert settings["x"] == "a\\\\b"


@pytest.mark.parametrize("key", ["node.id", "listeners", "log.dirs", "process.roles"])
def test_what_perkey_owns_is_refused(key):
    """Settings that make the cluster what it is are refused by name."""
    with pytest.raises(ConfigError, match=key):
        check_config({key: "1"})
