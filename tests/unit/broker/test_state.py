"""What a data folder remembers, and the choice of ports."""

from __future__ import annotations

import socket

import pytest

from perkey.broker.state import (
    ClusterState,
    Node,
    choose_nodes,
    default_data_dir,
    is_free,
    load_state,
    new_state,
    save_state,
)
from perkey.errors import ConfigError


def test_what_is_saved_is_read_back(tmp_path):
    """Ids, ports and pids survive."""
    state = ClusterState("abc", [Node(1, 9001, 9101), Node(2, 9002, 9102)], {1: 77})
    save_state(tmp_path, state)
    assert load_state(tmp_path) == state


def test_an_empty_folder_remembers_nothing(tmp_path):
    """No cluster was started there."""
    assert load_state(tmp_path) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "[]",
        "{}",
        '{"cluster_id": "a", "nodes": [1], "pids": {}}',
        '{"cluster_id": "a", "nodes": [], "pids": {"x": 1}}',
        '{"cluster_id": "a", "nodes": [], "pids": {}}',
        '{"cluster_id": "a", "pids": {}, "nodes": ['
        + ",".join(['{"id": 1, "port": 1, "controller_port": 2}'] * 4)
        + "]}",
    ],
)
def test_an_unreadable_state_names_the_folder_and_the_cure(tmp_path, text):
    """A state file that is damaged is one line that says what to delete."""
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(ConfigError, match=r"delete .* to start over") as caught:
        load_state(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_taken_port_is_refused_by_number():
    """A chosen port that somebody holds is an error that names it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use"):
            choose_nodes(1, port)


def test_a_held_port_is_not_free():
    """A port is free after its listener has closed, and not before."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert not is_free(port)
    assert is_free(port)


def test_all_ports_of_a_cluster_differ():
    """Clients' and controllers' ports are all different, chosen or free."""
    nodes = choose_nodes(3, None)
    assert len({port for n in nodes for port in (n.port, n.controller_port)}) == 6


def test_further_nodes_take_the_next_ports():
    """With a chosen port, node 2 listens on the next one."""
    start = choose_nodes(1, None)[0].port
    start = start if start < 65_000 else start - 1_000
    assert [node.port for node in choose_nodes(2, start)] == [start, start + 1]


def test_each_new_cluster_has_its_own_id():
    """A cluster id is 22 characters, as Kafka wants it, and new each time."""
    first, second = new_state(1, None), new_state(1, None)
    assert len(first.cluster_id) == 22
    assert first.cluster_id != second.cluster_id


def test_the_default_folder_is_the_users_state_folder(monkeypatch, tmp_path):
    """XDG_STATE_HOME moves it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_data_dir() == tmp_path / "perkey" / "broker"
