"""Secrets in options are in no event log; what Spark would not mask is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

#: A job as a user writes it, with an event log and with everything that was seen to leak:
#: a temporary view, a failing action, a plan that is printed.
JOB = """
import sys
from pyspark.sql import SparkSession
from perkey.spark import KafkaSource

spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.eventLog.enabled", "true").config("spark.eventLog.compress", "false")
    .config("spark.eventLog.dir", "file://" + sys.argv[1]).getOrCreate())
spark.sparkContext.setLogLevel("OFF")
spark.dataSource.register(KafkaSource)
df = spark.read.format("perkey").options(**{
    "kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t",
    "kafka.request.timeout.ms": "500", "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.jaas.config":
        'org.apache.kafka.common.security.plain.PlainLoginModule required '
        'username="me" password="planted-jaas";',
    "kafka.ssl.key.password": "planted-password",
    "kafka.ssl.certificate.pem": "${file:" + sys.argv[2] + "}",
    "kafka.sasl.oauthbearer.config": "${env:PLANTED}",
    "kafka.sasl.oauthbearer.client.secret": "planted-client",
}).load()
df.createOrReplaceTempView("positions")
df.explain(extended=True)
for action in (spark.table("positions").count, spark.sql("select * from positions").collect):
    try:
        action()
    except Exception as error:
        print(error)
spark.stop()
"""


@pytest.mark.long
def test_no_event_log_and_no_error_holds_a_secret(tmp_path):
    """Passwords are masked by Spark, references are shown as references, values nowhere."""
    logs, pem = tmp_path / "events", tmp_path / "cert.pem"
    logs.mkdir()
    pem.write_text("planted-pem\n")
    env = os.environ | {
        "PLANTED": "principal=planted-env",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(logs), str(pem)],
        env=env, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    written = "".join(path.read_text() for path in logs.rglob("*") if path.is_file())
    assert "${env:PLANTED}" in written, "the options are not in the event log any more"
    assert "did not answer" in done.stdout or "refuses" in done.stdout
    # Nobody listens at that port: it is told, and not twenty times a second.
    assert done.stderr.count("Connection refused") < 10, done.stderr[-2000:]
    for text in (written, done.stdout, done.stderr):
        assert "planted-" not in text.replace(str(Path(tmp_path)), "")


@pytest.mark.parametrize(
    "name",
    ["kafka.ssl.key.pem", "kafka.ssl.keystore.key", "kafka.sasl.oauthbearer.config"],
)
def test_a_secret_that_spark_would_show_is_refused(spark, name):
    """At `load()`, with the cure, without the value."""
    reader = spark.read.format("perkey").option("kafka.bootstrap.servers", "127.0.0.1:1")
    with pytest.raises(Exception, match="holds a secret in clear") as caught:
        reader.option("subscribe", "t").option(name, "planted").load()
    assert "${file:" in str(caught.value)
    assert "planted" not in str(caught.value)
