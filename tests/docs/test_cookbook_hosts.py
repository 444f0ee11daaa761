"""The recipes of docs/cookbook about where an app runs: its program, its unit, its image, its pods.

What is not run: FastAPI, Django and Airflow are not installed, so stubs of what they call stand in;
no image is built, and no cluster applies the manifests: their fields are checked.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import types
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it has no types
import pytest
import uvicorn
import yaml  # type: ignore[import-untyped]  # it has no types of its own
from tests.support.command import perkey as command
from tests.support.waiting import wait_for

from perkey.broker.state import free_ports
from perkey.cli.cluster import properties_of
from perkey.kafka.group_lag import PartitionLag
from perkey.observe.lag_server import LagBoard, app_of
from perkey.observe.serving import Serving, listening

ROOT = Path(__file__).parents[2]
COOKBOOK = ROOT / "docs" / "cookbook"
OPS = ROOT / "ops" / "kubernetes"


def blocks(page: str, language: str = "python") -> list[str]:
    """The blocks of a recipe."""
    text = (COOKBOOK / f"{page}.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def pasted(name: str, code: str, bootstrap: str = "") -> types.ModuleType:
    """The block as a module, with this broker."""
    module = types.ModuleType(name)
    code = code.replace("localhost:9092", bootstrap)
    exec(compile(code, name, "exec", dont_inherit=True), module.__dict__)
    return module


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Callable[..., types.ModuleType]:
    """Puts a module of a package that is not installed into place, and its parents."""

    def put(name: str, **names: Any) -> types.ModuleType:
        parts = name.split(".")
        for end in range(1, len(parts)):
            parent = ".".join(parts[:end])
            if parent not in sys.modules:
                monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
        module = types.ModuleType(name)
        module.__dict__.update(names)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return put


# -- inside another program ------------------------------------------------------------------------


def test_a_web_server_consumes_beside_its_requests(memory_broker) -> None:
    """A real server opens the lifespan; its stop finishes, commits and leaves."""
    memory_broker.create_topic("orders", 1)
    for cents in (5, 20):
        memory_broker.produce("orders", json.dumps({"cents": cents}), "ada")
    page = pasted("web", blocks("web-frameworks")[0], memory_broker.bootstrap)
    (port,) = free_ports(1)
    config = uvicorn.Config(page.web, host="127.0.0.1", port=port, log_config=None)
    server = uvicorn.Server(config)

    def total() -> int:
        try:
            url = f"http://127.0.0.1:{port}/customers/ada"
            with urllib.request.urlopen(url, timeout=20) as answer:
                return int(json.load(answer)["cents"])
        except urllib.error.URLError:
            return 0

    async def served() -> None:
        serving = asyncio.create_task(server.serve())
        await asyncio.to_thread(wait_for, lambda: total() == 25)
        server.should_exit = True
        await serving

    asyncio.run(served())
    assert memory_broker.committed("billing", "orders", 0).frontier == 2


def test_a_consumer_that_fails_ends_the_web_server(memory_broker, monkeypatch) -> None:
    """The process gets the signal with which a supervisor stops it."""
    memory_broker.create_topic("orders", 1)
    memory_broker.produce("orders", b'{"cents": 5}', "ada")
    memory_broker.crash_at("before_handler")
    page = pasted("web", blocks("web-frameworks")[0], memory_broker.bootstrap)
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(page.os, "kill", lambda *given: killed.append(given))

    async def served() -> None:
        async with page.lifespan(page.web):
            await asyncio.to_thread(wait_for, lambda: killed)

    asyncio.run(served())
    assert killed == [(os.getpid(), signal.SIGTERM)]


def test_a_management_command_consumes_until_it_is_stopped(memory_broker, stub) -> None:
    """Its exit code is the run's; a stub stands in for Django's classes and for the model."""
    memory_broker.create_topic("orders", 1)
    memory_broker.produce("orders", b'{"cents": 5}', "ada")
    rows: dict[str, dict] = {}
    closed: list[int] = []

    class Objects:
        def update_or_create(self, source: str, defaults: dict) -> None:
            rows[source] = defaults
            page.app.stop()  # as SIGTERM does

    stub("django.core.management.base", BaseCommand=object)
    stub("django.db", close_old_connections=lambda: closed.append(1))
    stub("billing.models", Invoice=type("Invoice", (), {"objects": Objects()}))
    page = pasted("consume", blocks("web-frameworks")[1], memory_broker.bootstrap)
    with pytest.raises(SystemExit) as ended:
        page.Command().handle()
    assert ended.value.code == 0
    assert rows == {"0-0": {"cents": 5}}
    assert len(closed) == 2
    assert memory_broker.committed("billing", "orders", 0).frontier == 1


def test_a_notebook_samples_a_topic(memory_broker) -> None:
    """The second cell ends with 100 rows, a failed record among them; the third one stops."""
    memory_broker.create_topic("orders", 1)
    for number in range(100):
        cents = -1 if number == 50 else number
        memory_broker.produce("orders", json.dumps({"cents": cents}), f"customer {number}")
    page = pasted("notebook", "\n".join(blocks("notebook")), memory_broker.bootstrap)
    rows = {row["offset"]: row for row in page.rows}
    assert rows[7] == {"offset": 7, "customer": "customer 7", "outcome": "done", "cents": 7}
    assert (rows[50]["outcome"], rows[50]["cents"]) == ("parked", -1)
    assert page.handle.wait().exit_code == 0
    assert memory_broker.committed("notebook-ada", "orders", 0).not_done == (50,)


class AirflowFailException(Exception):
    """Airflow's: no retry."""


@pytest.fixture
def airflow(stub) -> None:
    """Airflow's decorators, as far as a DAG file uses them: its tasks run when they are called."""

    def decorator(**options: Any) -> Callable[[Any], Any]:
        assert set(options) <= {
            "schedule", "start_date", "catchup", "max_active_runs", "retries", "retry_delay",
        }  # fmt: skip
        return lambda function: function

    stub("airflow.sdk", dag=decorator, task=decorator)
    stub("airflow.exceptions", AirflowFailException=AirflowFailException)


@pytest.mark.parametrize(
    ("cents", "crash", "error", "message"),
    [
        ([1, 2], None, None, ""),
        ([1, -2], None, AirflowFailException, "parked"),
        ([1, 2], "before_handler", RuntimeError, "killed"),
    ],
    ids=["drained", "parked", "failed"],
)
def test_an_airflow_task_ends_as_its_run(
    memory_broker, monkeypatch, airflow, cents, crash, error, message
) -> None:
    """0 is success, 3 fails for good, 1 is retried."""
    memory_broker.create_topic("orders", 1)
    for number, amount in enumerate(cents):
        memory_broker.produce("orders", json.dumps({"cents": amount}), f"k{number}")
    if crash:
        memory_broker.crash_at(crash)
    code, dag = blocks("airflow")
    monkeypatch.setitem(sys.modules, "billing", pasted("billing", code, memory_broker.bootstrap))
    if error is None:
        pasted("dag", dag)
        assert memory_broker.committed("billing", "orders", 0).frontier == 2
    else:
        with pytest.raises(error, match=message):
            pasted("dag", dag)


# -- as a service ----------------------------------------------------------------------------------


def unit() -> str:
    """The systemd unit."""
    (text,) = blocks("systemd", "ini")
    return text


def service() -> dict[str, str]:
    """The settings of its section Service."""
    parsed = ConfigParser(interpolation=None)
    parsed.optionxform = str  # type: ignore[method-assign,assignment]  # as its documentation does
    parsed.read_string(unit())
    assert parsed.sections() == ["Unit", "Service", "Install"]
    return dict(parsed["Service"])


def complaints(folder: Path, text: str) -> str:
    """What systemd has against a unit; its command is that of this environment."""
    perkey_here = Path(sys.executable).with_name("perkey")
    path = folder / "billing@1.service"
    path.write_text(re.sub(r"(?m)^(ExecStart=)\S+", rf"\g<1>{perkey_here}", text))
    verify = ["systemd-analyze", "verify", "--man=no", str(path)]
    ran = subprocess.run(verify, check=False, capture_output=True, text=True, timeout=60)
    return ran.stdout + ran.stderr


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path) -> None:
    """Without a word; a misspelt key is named."""
    assert complaints(tmp_path, unit()) == ""
    assert "TimeoutStop'" in complaints(tmp_path, unit().replace("TimeoutStopSec", "TimeoutStop"))


def test_systemd_gives_the_app_time_to_drain() -> None:
    """And does not restart bad input; a second SIGTERM is no failure."""
    settings = service()
    page = pasted("billing", blocks("systemd")[0])
    assert int(settings["TimeoutStopSec"]) >= page.app.options.drain_timeout_s + 15
    assert settings["RestartPreventExitStatus"] == "2"
    assert settings["SuccessExitStatus"] == "143"
    assert command("run", "nothing_like_that:app").returncode == 2


#: instruction -> a form that it has
INSTRUCTIONS = {
    "FROM": r"\S+:\S+",
    "RUN": r".+",
    "COPY": r"\S+ /\S*/",
    "USER": r"\d+",
    "WORKDIR": r"/\S*",
    "STOPSIGNAL": r"SIGTERM",
    "HEALTHCHECK": r"(--\w[\w-]*=\w+ )+CMD \[.+\]",
    "ENTRYPOINT": r"\[.+\]",
}


def image() -> dict[str, str]:
    """The instructions of the Dockerfile, in their order."""
    (text,) = blocks("docker", "dockerfile")
    lines = re.sub(r" *\\\n *", " ", text).splitlines()
    return dict(line.split(" ", 1) for line in lines if line)


def test_the_image_is_a_service_without_rights() -> None:
    """Its instructions have their forms, its user is set before its command, in exec form."""
    said = image()
    wrong = [name for name, text in said.items() if not re.fullmatch(INSTRUCTIONS[name], text)]
    assert wrong == []
    assert list(said).index("USER") < list(said).index("ENTRYPOINT")
    assert int(said["USER"]) > 0
    assert said["COPY"].split()[0] == "billing.py"
    assert "`billing.py`" in (COOKBOOK / "docker.md").read_text()


def test_docker_gives_the_app_time_to_drain() -> None:
    """--stop-timeout, and what Compose has, exceed drain_timeout_s."""
    text = (COOKBOOK / "docker.md").read_text()
    page = pasted("billing", blocks("docker")[0])
    seconds = re.findall(r"--stop-timeout (\d+)|stop_grace_period: (\d+)s", text)
    assert len(seconds) == 2
    for one, other in seconds:
        assert int(one or other) >= page.app.options.drain_timeout_s + 15


def entry(page: str) -> list[str]:
    """The command of a service, after `perkey`."""
    if page == "systemd":
        return shlex.split(service()["ExecStart"].replace("%i", "1"))[1:]
    words: list[str] = json.loads(image()["ENTRYPOINT"])
    assert words[0] == "perkey"
    return words[1:]


@pytest.mark.broker
@pytest.mark.parametrize("page", ["systemd", "docker"])
def test_a_service_is_ready_and_drains(page, kafka_broker, tmp_path) -> None:
    """Its command serves the probes, and exits with 0 on SIGTERM; so does the HEALTHCHECK."""
    (tmp_path / "billing.py").write_text(blocks(page)[0])
    words, (port,) = entry(page), free_ports(1)
    at = words.index("--http") + 1
    shown, words[at] = words[at].rpartition(":")[2], f"127.0.0.1:{port}"
    create = command("topics", "create", "orders", "--bootstrap-servers", kafka_broker.bootstrap)
    assert create.returncode == 0, create.stderr

    def ready() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    with subprocess.Popen(
        [Path(sys.executable).with_name("perkey"), *words],
        cwd=tmp_path,
        env=os.environ | {"KAFKA": kafka_broker.bootstrap},
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            wait_for(ready, what=lambda: f"{words}: {process.poll()}")
            if page == "docker":
                probe = json.loads(image()["HEALTHCHECK"].partition("CMD ")[2])
                code = probe[2].replace(f":{shown}/", f":{port}/")
                subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


# -- on Kubernetes ---------------------------------------------------------------------------------


def manifests() -> dict[str, Any]:
    """The resources of the recipe by their kind."""
    (text,) = blocks("kubernetes-keda", "yaml")
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def applied(file: str) -> Iterator[dict[str, Any]]:
    """The resources of a file in ops/kubernetes."""
    yield from yaml.safe_load_all((OPS / file).read_text())


@pytest.mark.parametrize("kind", ["Secret", "Deployment", "Service"])
def test_the_manifests_are_kubernetes(kind) -> None:
    """Each passes the strict schema of its kind; a misspelt field does not."""
    manifest = manifests()[kind]
    kubernetes_validate.validate(manifest, "1.31", strict=True)
    wrong = copy.deepcopy(manifest)
    wrong["metadata"]["label"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.31", strict=True)


def test_keda_scales_the_deployment_of_ops() -> None:
    """By fields that a ScaledObject of KEDA 2 has; its own schema is not in the packages."""
    scaled = manifests()["ScaledObject"]
    assert scaled["apiVersion"] == "keda.sh/v1alpha1"
    assert set(scaled["spec"]) == {
        "scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval",
        "cooldownPeriod", "fallback", "triggers", "advanced",
    }  # fmt: skip
    assert set(scaled["spec"]["fallback"]) == {"failureThreshold", "replicas"}
    (trigger,) = scaled["spec"]["triggers"]
    assert set(trigger["metadata"]) == {"url", "valueLocation", "targetValue"}
    assert all(isinstance(value, str) for value in trigger["metadata"].values())
    target, *_ = applied("deployment.yaml")
    assert scaled["spec"]["scaleTargetRef"] == {"name": target["metadata"]["name"]}
    behavior = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    autoscaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "keda-hpa-geofence"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "geofence"},
            "maxReplicas": scaled["spec"]["maxReplicaCount"],
            "behavior": behavior,
        },
    }
    kubernetes_validate.validate(autoscaler, "1.31", strict=True)


def test_the_lag_pod_is_called_with_what_it_takes() -> None:
    """Its options are those of `perkey lag`, its variables those of the ConfigMap."""
    pod = manifests()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    called, *options = container["args"][1:]
    settings = {
        each["metadata"]["name"]: each.get("data", {})
        for each in applied("common.yaml")
        if each["kind"] == "ConfigMap"
    }[container["envFrom"][0]["configMapRef"]["name"]]
    options = [re.sub(r"\$\((\w+)\)", lambda match: settings[match[1]], each) for each in options]
    listed = command(called, "--help").stdout
    assert [each for each in options if each.partition("=")[0] not in listed] == []
    images = [each["spec"]["template"]["spec"]["containers"][0]["image"] for each in
              applied("deployment.yaml") if each["kind"] == "Deployment"]  # fmt: skip
    assert [container["image"]] == images


def test_the_lag_pod_can_log_in_and_listen(tmp_path) -> None:
    """Its Secret is the file that --config reads, in words of librdkafka; its image has the server."""
    found = manifests()
    pod = found["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (volume,), (mount,) = pod["volumes"], container["volumeMounts"]
    ((name, text),) = found["Secret"]["stringData"].items()
    assert volume["secret"] == {"secretName": found["Secret"]["metadata"]["name"]}
    assert (volume["name"], mount["readOnly"]) == (mount["name"], True)
    assert f"--config={mount['mountPath']}/{name}" in container["args"]
    (tmp_path / name).write_text(text)
    given = properties_of(None, tmp_path / name)
    assert set(given) == {
        "security.protocol", "sasl.mechanism", "sasl.username", "sasl.password",
    }  # fmt: skip
    extras = re.findall(r"'/src\[(.+?)\]'", (OPS / "Dockerfile").read_text())
    assert "http" in extras[0].split(",")


def test_keda_reads_a_number_from_the_lag_server() -> None:
    """The trigger's path and field are served on the ports that the manifests connect."""
    found = manifests()
    (trigger,) = found["ScaledObject"]["spec"]["triggers"]
    host, port, path = re.fullmatch(
        r"http://([\w-]+):(\d+)(/\w+)", trigger["metadata"]["url"]
    ).groups()
    served = found["Service"]
    pod = found["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert served["metadata"]["name"] == host
    assert served["spec"]["selector"] == pod["metadata"]["labels"]
    assert served["spec"]["ports"][0]["port"] == int(port)
    assert container["ports"][0]["containerPort"] == int(port)
    assert f"--listen=0.0.0.0:{port}" in container["args"]
    assert container["readinessProbe"]["httpGet"]["path"] == path
    row = PartitionLag("t", 0, 458, 100, 347, 11, 100, 12.5, 80, None, holes=11)
    board = LagBoard(lambda: [row], "geofence", 5.0)
    board.look()
    server = Serving(app_of(board), listening("--listen", "127.0.0.1", 0))
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=20) as answer:
            assert json.load(answer)[trigger["metadata"]["valueLocation"]] == 11
    finally:
        server.close()


# -- telemetry -------------------------------------------------------------------------------------

TELEMETRY = """
import functools, json, sys
import sentry_sdk
from opentelemetry import trace
from opentelemetry.sdk.trace import export
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sentry_sdk.transport import Transport

events, spans = [], InMemorySpanExporter()

class Kept(Transport):
    def capture_envelope(self, envelope):
        event = envelope.get_event()
        if event is not None:
            errors = [error["type"] for error in event["exception"]["values"]]
            events.append([event["level"], errors, event.get("tags", {})])

sentry_sdk.init = functools.partial(sentry_sdk.init, transport=Kept)
export.ConsoleSpanExporter = lambda: spans
import recipe
from perkey.testing import run

recipe.observe()
results = run(recipe.app, [("ada", {"cents": 5}), ("bob", {"cents": -5})])
sentry_sdk.flush()
trace.get_tracer_provider().shutdown()
print(json.dumps({
    "outcomes": [result.outcome for result in results],
    "events": events,
    "spans": [
        [span.name, span.resource.attributes["service.name"], span.status.status_code.name,
         format(span.parent.span_id, "x") if span.parent else "",
         format(span.context.span_id, "x")]
        for span in spans.get_finished_spans()
    ],
}))
"""


def observed(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the recipe sends, and its log, from a process: the tools patch theirs for good."""
    (code,) = blocks("telemetry")
    (folder / "recipe.py").write_text(code)
    (folder / "main.py").write_text(TELEMETRY)
    ran = subprocess.run(
        [sys.executable, "main.py"],
        cwd=folder,
        env=os.environ | {"SENTRY_DSN": "https://key@localhost/1"},
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout), [json.loads(line) for line in ran.stderr.splitlines()]


@pytest.mark.push  # a process
def test_telemetry_has_the_failed_record(tmp_path) -> None:
    """Sentry has each attempt with its tags, the log its fields, the traces each call."""
    sent, log = observed(tmp_path)
    assert sorted(sent["outcomes"]) == ["dead_lettered", "done"]
    assert {tuple(errors) for _, errors, _ in sent["events"]} == {("ValueError",)}
    attempts = sorted(tags["attempt"] for *_, tags in sent["events"] if "attempt" in tags)
    assert attempts in ([1], [1, 2])  # the last one is reported by the log, too
    (lost,) = [line for line in log if line["event"] == "record dead-lettered"]
    assert (lost["topic"], lost["offset"], lost["level"]) == ("orders", 1, "error")
    assert "a negative amount" in lost["exception"]
    calls = {own: status for name, _, status, _, own in sent["spans"] if name == "process orders"}
    assert sorted(calls.values()) == ["ERROR", "ERROR", "UNSET"]
    charges = [parent for name, _, _, parent, _ in sent["spans"] if name == "charge"]
    assert sorted(charges) == sorted(calls)
    assert {service for _, service, *_ in sent["spans"]} == {"billing"}
