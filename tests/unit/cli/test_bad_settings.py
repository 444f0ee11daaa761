"""`perkey run` and `python app.py` with settings of librdkafka that cannot work: one line each.

Nobody listens at the address, and nobody is asked: all of this is said before anything connects.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from perkey.cli.main import run
from perkey.runtime.run.outside import SOCKET_VARIABLE

SECRET = "canary-0815"
SSL = {"security.protocol": "ssl"}
LOGIN = {"security.protocol": "sasl_plaintext"}
PLAIN = LOGIN | {"sasl.mechanism": "PLAIN"}
OAUTH = LOGIN | {"sasl.mechanism": "OAUTHBEARER"}
NEW = {"group.protocol": "consumer"}

#: the settings, the property that the line must name, and what it says to do
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"bootstrap.servers": "localhost:port"}, "bootstrap.servers", "write host:port"),
    ({"bootstrap.servers": "localhost:99999"}, "bootstrap.servers", "write host:port"),
    ({"bootstrap.servers": 9092}, "bootstrap.servers", "write host:port"),
    ({"bootstrap.servers": "http//x:1"}, "bootstrap.servers", "write host:port"),
    ({"bootstrap.servers": ""}, "bootstrap.servers", "localhost:9092"),
    ({"bootstrap.servers": f"u:{SECRET}@x:1"}, "bootstrap.servers", "sasl.password"),
    ({"boostrap.server": "x:1"}, "boostrap.server", "did you mean bootstrap.servers?"),
    ({"sasl.password": SECRET, "ssl.key.pasword": SECRET}, "ssl.key.pasword", "ssl.key.password?"),
    ({"sasl.jaas.config": f"password={SECRET};"}, "sasl.jaas.config", "sasl.password"),
    ({"security.protocol": "TLS"}, "security.protocol", "sasl_ssl"),
    (LOGIN, "sasl.mechanisms", "set sasl.mechanisms to another one"),
    (LOGIN | {"sasl.mechanism": "GSSAPI"}, "sasl.mechanism", "set sasl.mechanism to another one"),
    (LOGIN | {"sasl.mechanism": "NONE"}, "sasl.mechanism", "set sasl.mechanism to PLAIN"),
    (PLAIN, "sasl.username", "must be set"),
    (PLAIN | {"sasl.password": SECRET}, "sasl.username", "must be set"),
    (OAUTH, "sasl.mechanism", "give oauth_cb"),
    (OAUTH | {"sasl.oauthbearer.config": f"x={SECRET}"}, "sasl.mechanism", "give oauth_cb"),
    (
        OAUTH | {"sasl.oauthbearer.method": "oidc"},
        "sasl.oauthbearer.token.endpoint.url",
        "mandatory",
    ),
    (SSL | {"ssl.ca.location": "/no/ca.pem"}, "ssl.ca.location", "cannot be read"),
    (SSL | {"ssl.crl.location": "/no/crl.pem"}, "ssl.crl.location", "cannot be read"),
    (SSL | {"ssl.key.location": "/no/k"}, "ssl.key.location", "cannot be read"),
    (SSL | {"ssl.keystore.location": "/no/k"}, "ssl.keystore.location", "cannot be read"),
    (SSL | {"ssl.certificate.location": "/no/c"}, "ssl.certificate.location", "cannot be read"),
    (SSL | {"ssl.ca.pem": SECRET}, "ssl.ca.pem", "BEGIN and END"),
    (SSL | {"ssl.key.pem": SECRET}, "ssl.key.pem", "BEGIN and END"),
    (SSL | {"ssl.certificate.pem": SECRET}, "ssl.certificate.pem", "BEGIN and END"),
    (SSL | {"ssl.engine.location": "/no/e.so"}, "ssl.engine.location", "an OpenSSL engine?"),
    (SSL | {"ssl.providers": "none"}, "ssl.providers", "default,legacy"),
    (SSL | {"ssl.cipher.suites": "NONE"}, "ssl.cipher.suites", "`openssl ciphers`"),
    (SSL | {"ssl.curves.list": "none"}, "ssl.curves.list", "X25519:P-256"),
    (SSL | {"ssl.sigalgs.list": "none"}, "ssl.sigalgs.list", "RSA-PSS+SHA256"),
    (SSL | {"enable.ssl.certificate.verification": "no"}, "verification", "true or false"),
    ({"plugin.library.paths": "none"}, "plugin.library.paths", "librdkafka plugins?"),
    ({"partition.assignment.strategy": "fair"}, "partition.assignment.strategy", "roundrobin or"),
    ({"partition.assignment.strategy": ""}, "partition.assignment.strategy", "remove it"),
    ({"partition.assignment.strategy": "range,cooperative-sticky"}, "strategy", "the same"),
    ({"group.instance.id": " "}, "group.instance.id", "remove it"),
    ({"group.protocol": "new"}, "group.protocol", "classic, consumer"),
    (NEW | {"session.timeout.ms": 7_000}, "session.timeout.ms", "omit it"),
    (NEW | {"heartbeat.interval.ms": 7_000}, "heartbeat.interval.ms", "omit it"),
    (NEW | {"partition.assignment.strategy": "range"}, "strategy", "group.remote.assignor"),
    ({"session.timeout.ms": 0}, "session.timeout.ms", "from 1 to 3600000"),
    ({"session.timeout.ms": "10s"}, "session.timeout.ms", "a whole number"),
    ({"session.timeout.ms": None}, "session.timeout.ms", "give a value or remove it"),
    ({"session.timeout.ms": [1]}, "session.timeout.ms", "a list: it takes a whole number"),
    ({"session.timeout.ms": 3_000}, "heartbeat.interval.ms", "set it to a third"),
    ({"heartbeat.interval.ms": "50000"}, "heartbeat.interval.ms", "set it to a third"),
    ({"max.poll.interval.ms": 1_000}, "max.poll.interval.ms", "must be >= session.timeout.ms"),
    ({"auto.offset.reset": "first"}, "auto.offset.reset", "earliest"),
    ({"isolation.level": "dirty"}, "isolation.level", "read_committed"),
    ({"compression.type": "brotli"}, "compression.type", "zstd"),
    ({"acks": 1}, "acks", "must be set to all"),
    ({"max.in.flight": 6}, "max.in.flight", "must be set <= 5"),
    ({"linger.ms": 900, "delivery.timeout.ms": 500}, "delivery.timeout.ms", "greater than"),
    ({"message.max.bytes": 10}, "message.max.bytes", "from 1000"),
    ({"receive.message.max.bytes": 1_000}, "receive.message.max.bytes", "must be >="),
    ({"partitioner": "mine"}, "partitioner", "CONFIGURATION.md"),
    ({"topic.blacklist": "["}, "topic.blacklist", "regular expressions"),
    ({"error_cb": "print"}, "error_cb", "a function"),
    ({"logger": "x"}, "logger", "logging.Logger"),
    ({"rebalance_cb": "x"}, "rebalance_cb", "on_assign="),
    ({"group.id": "x"}, "group.id", "App(group=...)"),
    ({"enable.auto.commit": True}, "enable.auto.commit", "perkey.Commit"),
]


def app_file(folder, kafka) -> None:
    """An app with these settings; it can run as a script, too."""
    given = {"bootstrap.servers": "127.0.0.1:1"} | kafka
    (folder / "bad_app.py").write_text(
        f"import perkey\napp = perkey.App(group='g', kafka={given!r})\n"
        "@app.consume('orders')\ndef handle(record): ...\n"
        "if __name__ == '__main__':\n    app.main()\n"
    )


@pytest.mark.parametrize(("kafka", "name", "cure"), BAD, ids=lambda one: str(one)[:70])
def test_perkey_run_reports_what_is_wrong_and_what_to_do(
    tmp_path, monkeypatch, capfd, kafka, name, cure
):
    """Exit code 2 and one line with the property and the cure; no traceback, no secret."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SOCKET_VARIABLE, "1")
    monkeypatch.setattr(
        "perkey.cli.run.set_up", lambda *_: None
    )  # this process logs as pytest does
    monkeypatch.delitem(sys.modules, "bad_app", raising=False)
    app_file(tmp_path, kafka)
    assert run(["run", "bad_app:app"]) == 2
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert name in said
    assert cure in said
    assert SECRET not in said


@pytest.mark.parametrize("kafka", [OAUTH, SSL | {"ssl.key.pem": SECRET}, {"acks": 1}], ids=str)
@pytest.mark.push
def test_so_does_the_script_itself(tmp_path, kafka):
    """What is refused by us, by OpenSSL and by librdkafka: `python app.py` ends the same way."""
    app_file(tmp_path, kafka)
    done = subprocess.run(
        [sys.executable, "bad_app.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("perkey: kafka: ")
    assert SECRET not in done.stderr + done.stdout
