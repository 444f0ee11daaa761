"""A group's lag over HTTP: what is told, and what is not told to a scaler."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request

import pytest

from perkey.app_options import address, is_loopback
from perkey.errors import ConfigError, FatalError
from perkey.kafka.group_lag import PartitionLag
from perkey.observe import lag_server, serving
from perkey.observe.lag_server import LagBoard, LettersBoard, app_of
from perkey.observe.serving import Serving, listening

ROW = PartitionLag("t", 0, 458, 100, 347, 11, 100, 12.5, 80, None, holes=11)


def get(port, path):
    """Status and body."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def serve():
    """Serve a board; the port."""
    open_ones = []

    def start(board):
        server = Serving(app_of(board), listening("--listen", "127.0.0.1", 0))
        open_ones.append(server)
        return server.port

    yield start
    for server in open_ones:
        server.close()


def test_lag_as_json_and_as_metrics(serve):
    """/lag is what `perkey lag --json` prints; /metrics has a gauge for each of its numbers."""
    board = LagBoard(lambda: [ROW], "g", 5.0)
    port = serve(board)
    status, body = get(port, "/lag")
    assert (status, json.loads(body)["error"]) == (503, "not measured yet")
    board.look()
    status, body = get(port, "/lag")
    assert (status, json.loads(body)) == (
        200, {"group": "g", "remaining": 11, "partitions": [ROW.row()]},
    )  # fmt: skip
    _, text = get(port, "/metrics")
    assert 'perkey_group_remaining_records{group="g",partition="0",topic="t"} 11.0' in text
    assert 'perkey_group_up{group="g"} 1.0' in text
    for name, _, _ in lag_server.GAUGES:
        assert f"# TYPE {name} gauge" in text


def test_letters_as_json_and_as_metrics(serve):
    """A type is as hostile as its writer: it is one label's value, and nothing more."""
    board = LettersBoard(lambda: {"other": 0, 'T"\n\\': 3}, "orders.dlq", 5.0)
    port = serve(board)
    assert get(port, "/letters") == (503, '{"topic":"orders.dlq","error":"not measured yet"}')
    assert 'perkey_dead_letters_up{topic="orders.dlq"} 0.0' in get(port, "/metrics")[1]
    board.look()
    assert json.loads(get(port, "/letters")[1]) == {
        "topic": "orders.dlq", "not_back": {"other": 0, 'T"\n\\': 3},
    }  # fmt: skip
    _, text = get(port, "/metrics")
    escaped = r'perkey_dead_letters_not_back{topic="orders.dlq",type="T\"\n\\"} 3.0'
    assert escaped in text
    assert 'perkey_dead_letters_up{topic="orders.dlq"} 1.0' in text


def test_only_get(serve):
    """Nothing can be sent to it."""
    port = serve(LagBoard(lambda: [ROW], "g", 5.0))
    request = urllib.request.Request(f"http://127.0.0.1:{port}/lag", data=b"x")
    with pytest.raises(urllib.error.HTTPError, match="405") as refused:
        urllib.request.urlopen(request, timeout=20)
    refused.value.close()


def test_a_broker_that_is_away_is_reported_to_be(serve, monkeypatch):
    """An old figure scales nobody: after a minute there is none, with the reason."""
    rows = [[ROW]]

    def measure():
        if not rows:
            raise FatalError("no broker answered")
        return rows.pop()

    board = LagBoard(measure, "g", 5.0)
    board.look()
    board.look()
    port = serve(board)
    assert get(port, "/lag")[0] == 200
    monkeypatch.setattr(lag_server, "FRESH_S", -1.0)
    assert get(port, "/lag") == (503, '{"group":"g","error":"no broker answered"}')
    assert 'perkey_group_up{group="g"} 0.0' in get(port, "/metrics")[1]


def test_parked_records_scale_no_one_up(monkeypatch):
    """What stands in front of done records for a minute is not work for more members."""
    more = PartitionLag("t", 1, 1_000, 0, 0, 1_000, 0, 5.0, 0, None)
    board = LagBoard(lambda: [ROW, more], "g", 5.0)
    board.look()
    assert board.scale() == {"group": "g", "value": 1_011, "standing": 0}
    monkeypatch.setattr(lag_server, "STANDING_S", 0.0)
    board.look()
    assert board.scale() == {"group": "g", "value": 1_000, "standing": 11}


def test_what_waits_behind_a_full_map_scales_no_one_up(monkeypatch):
    """One record blocks 61,622: none of them can start, however many members there are."""
    row = PartitionLag("t", 0, 90_000, 100, 28_278, 61_622, 100, 600.0, 28, None, 53, full=True)
    board = LagBoard(lambda: [row], "g", 5.0)
    board.look()
    assert board.scale() == {"group": "g", "value": 61_622, "standing": 0}
    monkeypatch.setattr(lag_server, "STANDING_S", 0.0)
    assert board.scale() == {"group": "g", "value": 0, "standing": 61_622}


@pytest.mark.parametrize("moves", [True, False])
def test_a_blocked_partition_is_no_work_while_the_group_works_elsewhere(monkeypatch, moves):
    """In a group of which nothing moves all is counted: its members may be dead."""
    blocked = PartitionLag("t", 0, 61_722, 100, 0, 61_622, 100, 600.0, 0, None)
    at = [0]

    def measure():
        at[0] += moves
        return [blocked, PartitionLag("t", 1, 1_000, at[0], 0, 1_000 - at[0], at[0], 1.0, 0, None)]

    board = LagBoard(measure, "g", 5.0)
    now = [1_000.0]
    monkeypatch.setattr(lag_server.time, "monotonic", lambda: now[0])
    for _ in range(62):
        board.look()
        now[0] += 5.0
    assert board.scale()["standing"] == (61_622 if moves else 0)


def test_a_frontier_that_moves_does_not_stand(monkeypatch):
    """It is work, however slow."""
    rows = [[ROW], [PartitionLag("t", 0, 458, 101, 347, 10, 101, 1.0, 80, None, holes=10)]]
    board = LagBoard(lambda: rows.pop(0), "g", 5.0)
    board.look()
    board.look()
    assert board.scale()["standing"] == 0


@pytest.mark.parametrize("given", ["", "8080", ":80", "host:", "host:x", "host:65536", 7, "[::1"])
def test_addresses_that_are_none(given):
    """One line that says how to write it."""
    with pytest.raises(ConfigError, match="write HOST:PORT"):
        address("--listen", given)


def test_addresses():
    """Names, numbers, IPv6 in brackets, port 0 for any."""
    assert address("x", "localhost:0") == ("localhost", 0)
    assert address("x", "[::1]:65535") == ("::1", 65_535)
    assert [is_loopback(host) for host in ("127.0.0.9", "::1", "localhost", "0.0.0.0", "box")] == [
        True, True, True, False, False,
    ]  # fmt: skip


def test_a_port_in_use_is_one_line():
    """Who holds it is not known, but which it is."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            listening("--http", "127.0.0.1", port)


def test_without_the_extra_the_line_reports_what_to_install(monkeypatch):
    """Not a traceback."""
    monkeypatch.setitem(__import__("sys").modules, "starlette", None)
    with pytest.raises(ConfigError, match=r"pip install 'perkey\[http\]'"):
        serving.need_http("--listen")
