"""The probes of docs/observability.md as Kubernetes calls them, on a run as the manifest starts it."""

from __future__ import annotations

import contextlib
import copy
import http.client
import random
import re
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it has no types
import pytest
import yaml  # type: ignore[import-untyped]  # it has no types of its own
from tests.support.waiting import wait_for

pytestmark = pytest.mark.broker

ROOT = Path(__file__).parents[3]
#: a pod's own address, which the kubelet calls: not loopback, and no name of ours
POD = "10.244.1.7"

APP = """
import perkey
from pathlib import Path
import time

app = perkey.App(group={group!r}, kafka={{"bootstrap.servers": {bootstrap!r}}})

@app.consume({topic!r})
def check(record):
    Path("begun").touch()
    while not Path("go").exists():
        time.sleep(0.01)
"""


def container() -> dict[str, Any]:
    """What the docs put into a container."""
    text = (ROOT / "docs" / "observability.md").read_text()
    (block,) = [one for one in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "Probe" in one]
    parsed: dict[str, Any] = yaml.safe_load(block)
    return parsed


def test_the_container_is_kubernetes():
    """In a Deployment it passes the strict schema; a misspelt field does not."""
    deployment, *_ = yaml.safe_load_all((ROOT / "ops/kubernetes/deployment.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    pod["containers"][0] |= container()
    pod["volumes"] = [{"name": "perkey-token", "secret": {"secretName": "perkey-token"}}]
    kubernetes_validate.validate(deployment, "1.31", strict=True)
    wrong = copy.deepcopy(deployment)
    wrong["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["httpget"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.31", strict=True)


def free_port() -> int:
    """One that nobody is given who asks for any, before the container has it."""
    for port in random.SystemRandom().sample(range(10_000, 30_000), 100):
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("0.0.0.0", port))  # as the manifest listens
            return port
    raise AssertionError("no port is free")


class Pod:
    """A container as the manifest starts it, but for its port and where its token is."""

    def __init__(self, folder: Path, token: str) -> None:
        self.spec = container()
        self.port = free_port()
        (folder / "token").write_text(token)
        words = [
            word.replace(":8080", f":{self.port}").replace(
                "/etc/perkey/token", str(folder / "token")
            )
            for word in self.spec["args"]
        ]
        assert words != self.spec["args"]
        command = [sys.executable, "-m", "perkey.cli.main", *words]
        self.process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE)

    def probe(self, name: str) -> tuple[int, str]:
        """The probe's GET, as the kubelet does it: by the pod's address, without a token."""
        get = self.spec[name]["httpGet"]
        (port,) = [one["containerPort"] for one in self.spec["ports"] if one["name"] == get["port"]]
        assert port == 8080
        return self.get(get["path"])

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Status and body; (0, …) where nobody listens."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            line.request("GET", path, headers={"Host": f"{POD}:8080", **headers})
            answer = line.getresponse()
            return answer.status, answer.read().decode()
        except OSError as error:
            return 0, str(error)
        finally:
            line.close()


def test_probes_of_the_manifest(kafka, tmp_path):
    """Startup and liveness from the first, ready with the assignment, unready while it drains."""
    topic, token = kafka.topic(), secrets.token_hex(16)
    kafka.fill(topic, [b"x"])
    text = APP.format(group=kafka.name("g"), bootstrap=kafka.bootstrap, topic=topic)
    (tmp_path / "shop.py").write_text(text)
    pod = Pod(tmp_path, token)
    try:
        wait_for(lambda: pod.probe("startupProbe")[0] == 200, 60)
        assert pod.probe("livenessProbe") == (200, "ok\n")
        wait_for(lambda: pod.probe("readinessProbe") == (200, "ok\n"), 60)
        assert pod.get("/snapshot")[0] == 401  # all else needs the token
        given = {"Authorization": f"Bearer {token}"}
        assert pod.get("/snapshot", **given)[0] == 200
        wait_for((tmp_path / "begun").exists)  # a stop withdraws a call that is only granted
        pod.process.send_signal(signal.SIGTERM)
        wait_for(lambda: pod.probe("readinessProbe") == (503, "stopping\n"))
        assert pod.probe("livenessProbe")[0] == 200  # else it would be killed while it drains
        (tmp_path / "go").touch()
        assert pod.process.wait(60) == 0
    finally:
        pod.process.kill()
        _, err = pod.process.communicate()
    assert token not in err.decode()
