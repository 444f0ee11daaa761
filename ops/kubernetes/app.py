"""An app for the manifests in this folder: the same file for all three ways to run it.

Settings come from the environment of the pod, and the password from its Secret. To executors they
travel inside the Spark tasks: their pods need no Secret.
"""

from __future__ import annotations

import os

import perkey


def setting(name: str) -> str:
    """A variable of the pod; one line with the cure where it is not there."""
    if name not in os.environ:
        raise perkey.ConfigError(
            f"{name} is not in this pod's environment: apply common.yaml, whose ConfigMap geofence "
            "and Secret geofence-kafka have it, in the pod's namespace"
        )
    return os.environ[name]


def kafka() -> dict[str, str]:
    """The brokers, and how to log in where the pod's Secret says so."""
    settings = {"bootstrap.servers": setting("KAFKA_BOOTSTRAP")}
    if os.environ.get("KAFKA_USERNAME"):
        settings |= {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": setting("KAFKA_USERNAME"),
            "sasl.password": setting("KAFKA_PASSWORD"),
        }
    return settings


app = perkey.App(group=setting("GROUP"), kafka=kafka(), drain_timeout_s=20)


@app.consume(os.environ["TOPIC"], concurrency=50)
async def handle(record: perkey.Record) -> None:
    """Your work on one record."""


if __name__ == "__main__":
    # Under spark-submit and the operator: they have chosen the master and its executors.
    app.main(engine="spark", members=int(os.environ["MEMBERS"]))
