"""The files in ops/kubernetes: manifests against Kubernetes' schemas, and with each other.

There is no cluster here. `kubernetes-validate` brings the schemas of Kubernetes itself; the
operator's resource has none there, so its fields are compared with a list.
"""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it has no types
import pytest
import yaml  # type: ignore[import-untyped]  # it has no types of its own

from perkey.cli.run import properties_of
from perkey.spark.fleet.settings import OURS, fleet_settings

FOLDER = Path(__file__).parents[3] / "ops" / "kubernetes"
VERSIONS = ("1.31", "1.37")
IMAGE = "registry.example/geofence:1"
#: Of kubeflow's v1beta2.
OPERATOR_FIELDS = {
    "spec": {
        "type", "pythonVersion", "mode", "image", "mainApplicationFile", "sparkVersion",
        "restartPolicy", "sparkConf", "driver", "executor",
    },
    "driver": {"cores", "memory", "serviceAccount", "envFrom", "terminationGracePeriodSeconds"},
    "executor": {"instances", "cores", "memory", "memoryOverhead"},
}  # fmt: skip


def documents(name: str) -> list[dict[str, Any]]:
    """The resources in a file."""
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


MANIFESTS = [
    (path.name, one)
    for path in sorted(FOLDER.glob("*.yaml"))
    for one in documents(path.name)
    if one["kind"] != "SparkApplication"
]


def named(kind: str, name: str) -> dict[str, Any]:
    """One resource."""
    found = [one for _, one in MANIFESTS if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("file", "one"), MANIFESTS, ids=lambda it: str(it)[:30])
def test_manifests_are_kubernetes(file, one, version) -> None:
    """Each resource passes the strict schema of its kind, of an old and a new Kubernetes."""
    kubernetes_validate.validate(one, version, strict=True)


def test_the_schemas_see_a_mistake() -> None:
    """A misspelt field is red: the check can fail."""
    wrong = copy.deepcopy(named("Deployment", "geofence"))
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 45
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


@pytest.mark.parametrize("name", ["geofence", "geofence-driver"])
def test_pods_have_time_to_drain(name) -> None:
    """A pod is not killed before its drain time-out and the goodbye are over; names exist."""
    deployment = named("Deployment", name)
    pod = deployment["spec"]["template"]
    (drain,) = re.findall(r"drain_timeout_s=(\d+)", (FOLDER / "app.py").read_text())
    assert pod["spec"]["terminationGracePeriodSeconds"] >= int(drain) + 15
    assert deployment["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    container = pod["spec"]["containers"][0]
    assert container["image"] == IMAGE
    for source in container["envFrom"]:
        ((kind, reference),) = source.items()
        named({"configMapRef": "ConfigMap", "secretRef": "Secret"}[kind], reference["name"])


def test_the_driver_is_called_with_what_it_takes() -> None:
    """Its options are Perkey's own, its ports those of the Service, its image that of executors."""
    pod = named("Deployment", "geofence-driver")["spec"]["template"]["spec"]
    words = pod["containers"][0]["args"]
    assert words[:3] == ["perkey", "run", "app:app"]
    options = dict(
        word.removeprefix("--").split("=", 1) for word in words[3:] if "conf" not in word
    )
    conf = properties_of([w.removeprefix("--conf=") for w in words if w.startswith("--conf=")])
    assert conf is not None
    settings = fleet_settings(int(options["members"]), options["master"], None, conf)
    assert settings.wait_s == 300
    service = named("Service", conf["spark.driver.host"])
    ports = {one["name"]: one["port"] for one in service["spec"]["ports"]}
    wanted = ("spark.driver.port", "spark.blockManager.port", "perkey.control.port")
    assert [str(ports[name]) for name in ("driver", "blocks", "control")] == [
        conf[name] for name in wanted
    ]
    assert conf["spark.kubernetes.container.image"] == IMAGE
    slots = int(conf["spark.executor.instances"]) * int(conf["spark.executor.cores"])
    assert slots >= settings.members
    named("ServiceAccount", pod["serviceAccountName"])


def test_the_operators_resource_has_its_fields() -> None:
    """Only fields that v1beta2 has, settings that are text, and slots for the members."""
    (one,) = documents("operator.yaml")
    spec = one["spec"]
    for part, fields in OPERATOR_FIELDS.items():
        assert set(spec if part == "spec" else spec[part]) <= fields
    assert all(type(value) is str for value in spec["sparkConf"].values())
    members = int(named("ConfigMap", "geofence")["data"]["MEMBERS"])
    assert spec["executor"]["instances"] * spec["executor"]["cores"] >= members
    assert (spec["image"], spec["mainApplicationFile"]) == (IMAGE, "local:///app/app.py")
    named("ServiceAccount", spec["driver"]["serviceAccount"])


def test_the_image_has_what_it_copies() -> None:
    """Every file that the Dockerfile copies exists, and Perkey is installed with Spark's packages."""
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    sources = [word for one in lines if one.startswith("COPY") for word in one.split()[1:-1]]
    root = FOLDER.parents[1]
    assert sources and all((root / one).exists() for one in sources)
    assert any("/src[spark" in one for one in lines)


EXECUTOR = {
    "SPARK_JAVA_OPT_0": "-Dspark.driver.port=7078",
    "SPARK_JAVA_OPT_1": "-Dtwo words",
    "SPARK_EXECUTOR_MEMORY": "1g",
    "SPARK_DRIVER_URL": "spark://d:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "app-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.9",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "pod-3",
}


def entrypoint(tmp_path: Path, *arguments: str, **env: str) -> list[str]:
    """What the entry point becomes: words of the command, by a java and spark-submit of our own."""
    show = '#!/bin/sh\nprintf \'%s\\n\' "${0##*/}" "$@"\n'
    (tmp_path / "bin").mkdir()
    for name in ("java", "spark-submit"):
        program = tmp_path / "bin" / name
        program.write_text(show)
        program.chmod(0o755)
    done = subprocess.run(
        [str(FOLDER / "entrypoint.sh"), *arguments], capture_output=True, text=True, check=True,
        env={**os.environ, "JAVA_HOME": str(tmp_path), "SPARK_HOME": str(tmp_path), **env},
        timeout=60,
    )  # fmt: skip
    return done.stdout.splitlines()


def test_the_entry_point_starts_an_executor(tmp_path) -> None:
    """As Spark's own image does it: options one a variable, and the backend's arguments."""
    words = entrypoint(tmp_path, "executor", **EXECUTOR)
    assert words[:5] == ["java", "-Dspark.driver.port=7078", "-Dtwo words", "-Xms1g", "-Xmx1g"]
    backend = words.index("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend")
    assert words[backend + 1 :] == [
        "--driver-url", "spark://d:7078", "--executor-id", "3", "--cores", "2", "--app-id", "app-1",
        "--hostname", "10.0.0.9", "--resourceProfileId", "0", "--podName", "pod-3",
    ]  # fmt: skip


def test_the_entry_point_starts_a_driver_or_a_command(tmp_path) -> None:
    """In cluster mode Spark calls it with `driver` and the rest of spark-submit's arguments."""
    words = entrypoint(
        tmp_path, "driver", "local:///app/app.py", SPARK_DRIVER_BIND_ADDRESS="10.0.0.8"
    )
    assert words == [
        "spark-submit", "--conf", "spark.driver.bindAddress=10.0.0.8", "--deploy-mode", "client",
        "local:///app/app.py",
    ]  # fmt: skip
    done = subprocess.run(
        [str(FOLDER / "entrypoint.sh"), "echo", "x y"], capture_output=True, text=True, check=True,
        timeout=60,
    )  # fmt: skip
    assert done.stdout == "x y\n"


def test_scripts_are_shell() -> None:
    """`sh -n` reads them, and submit.sh names no secret's value."""
    for script in FOLDER.glob("*.sh"):
        subprocess.run(["sh", "-n", str(script)], check=True, timeout=60)
        assert os.access(script, os.X_OK)
    text = (FOLDER / "submit.sh").read_text()
    secret = named("Secret", "geofence-kafka")["stringData"]
    assert all(f"$(secret {name})" in text for name in secret)
    assert not any(value in text for value in secret.values() if value != "geofence")
    assert set(OURS) >= {"perkey.control.port", "perkey.control.wait_s"}


def test_a_pod_without_its_secret_reports_it() -> None:
    """One line that names the variable and where it comes from, exit code 2."""
    given = {"KAFKA_BOOTSTRAP": "h:1", "KAFKA_USERNAME": "u", "GROUP": "g"}
    done = subprocess.run(
        [sys.executable, "-m", "perkey", "run", "app:app"], cwd=FOLDER, capture_output=True, text=True,
        timeout=100, check=False, env={"PATH": os.environ["PATH"], **given},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("perkey: KAFKA_PASSWORD is not in this pod's environment: apply ")
    assert done.stderr.count("\n") == 1
