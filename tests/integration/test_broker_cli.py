"""`perkey broker` as a user runs it: processes of their own, a real Kafka behind them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

import pytest
from confluent_kafka.admin import AdminClient
from tests.support.waiting import wait_for

from perkey.broker.topics import create_topic

pytestmark = [pytest.mark.broker]


@pytest.fixture
def perkey(tmp_path):
    """Run `perkey` with a state folder of its own; whatever it started is taken down."""
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}

    def run(*arguments, check=True):
        return subprocess.run(
            [sys.executable, "-m", "perkey.cli.main", *arguments],
            capture_output=True,
            text=True,
            env=env,
            check=check,
            timeout=110,
        )

    yield run
    for folder in ([], ["--data", str(tmp_path / "data")]):
        run("broker", "down", *folder)


def up(perkey, *arguments):
    printed = perkey("broker", "up", *arguments)
    return printed.stdout.strip()


def status(perkey, *arguments):
    return json.loads(perkey("broker", "status", "--json", *arguments).stdout)


def nodes_listed(bootstrap):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return {f"{one.host}:{one.port}" for one in admin.list_topics(timeout=60).brokers.values()}


@pytest.mark.long
def test_up_prints_the_address_of_a_broker_that_answers(perkey):
    """`up` prints the address alone; it outlives the command and is idempotent; `down` ends it."""
    printed = perkey("broker", "up")
    address = printed.stdout.strip()
    assert printed.stdout == f"{address}\n"
    assert nodes_listed(address) == {address}
    assert up(perkey) == address
    found = status(perkey)
    assert (found["state"], found["bootstrap"]) == ("up", address)
    perkey("broker", "down")
    assert status(perkey)["state"] == "down"
    host, port = address.split(":")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, int(port)), timeout=5)


@pytest.mark.long
def test_a_data_folder_keeps_its_records_and_survives_a_stale_pid(perkey, tmp_path):
    """After kill -9 the pid in the folder is stale, maybe somebody else's: `up` starts it again."""
    data = ["--data", str(tmp_path / "data")]
    first = up(perkey, *data)
    admin = AdminClient({"bootstrap.servers": first})
    create_topic(first, "kept", partitions=2, replication=1, config=None)
    pid = status(perkey, *data)["nodes"][0]["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: status(perkey, *data)["state"] == "down", 60)
    state_file = tmp_path / "data" / "cluster.json"
    state = json.loads(state_file.read_text())
    state["pids"] = {"1": os.getpid()}  # The number was given to another process: to us.
    state_file.write_text(json.dumps(state))
    second = up(perkey, *data)
    assert second == first
    assert len(admin.list_topics(timeout=60).topics["kept"].partitions) == 2


@pytest.mark.long
def test_each_data_folder_is_a_cluster_of_its_own(perkey, tmp_path):
    """Two folders are two clusters; a running one refuses another shape or port."""
    data = ["--data", str(tmp_path / "data")]
    one, other = up(perkey), up(perkey, *data)
    assert one != other
    refused = perkey("broker", "up", "--nodes", "2", *data, check=False)
    assert refused.returncode == 2
    assert "holds a cluster of 1 node(s), not 2" in refused.stderr
    refused = perkey("broker", "up", "--port", "1999", *data, check=False)
    assert refused.returncode == 2
    assert "not 1999" in refused.stderr


@pytest.mark.long
def test_commands_at_the_same_time_start_one_broker(tmp_path):
    """Three `up` at once on one folder print one address."""
    command = [sys.executable, "-m", "perkey.cli.main", "broker"]
    data = ["--data", str(tmp_path / "data")]
    started = [
        subprocess.Popen([*command, "up", *data], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    try:
        assert len({one.communicate(timeout=100)[0] for one in started}) == 1
    finally:
        subprocess.run([*command, "down", *data], check=True, timeout=60, stderr=subprocess.DEVNULL)


@pytest.mark.long
def test_three_nodes_and_one_is_brought_back(perkey, tmp_path):
    """Three nodes listen on ports in a row; a dead one is `partial`, and `up` completes it."""
    data = ["--data", str(tmp_path / "data")]
    address = up(perkey, "--nodes", "3", *data)
    assert nodes_listed(address) == set(address.split(","))
    os.kill(status(perkey, *data)["nodes"][1]["pid"], signal.SIGKILL)
    wait_for(lambda: status(perkey, *data)["state"] == "partial", 60)
    assert up(perkey, *data) == address
    assert status(perkey, *data)["state"] == "up"
