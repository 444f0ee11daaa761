"""What librdkafka refuses is one line that names the option and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from perkey.errors import ConfigError
from perkey.kafka.connect import connect

PASSWORD = "hunter2"


def refused(**properties: str) -> str:
    """The line for these properties of a client."""
    given = {name.replace("_", "."): value for name, value in properties.items()}
    with pytest.raises(ConfigError) as raised:
        connect(
            {"bootstrap.servers": "localhost:1", "security.protocol": "ssl", **given},
            {},
            group="g",
            buffer_records=1_000,
            buffer_bytes=2**20,
            delivery="at_least_once",
        ).admin()
    line = str(raised.value)
    assert "\n" not in line
    assert PASSWORD not in line
    return line


@pytest.fixture
def garbage(tmp_path: Path) -> str:
    """A file that holds no key and no certificate."""
    path = tmp_path / "garbage.pem"
    path.write_text("garbage\n")
    return str(path)


@pytest.mark.parametrize(
    "name", ["ssl_ca_location", "ssl_certificate_location", "ssl_key_location", "ssl_crl_location"]
)
def test_a_file_that_is_not_there(name):
    """OpenSSL says "BIO lib"."""
    line = refused(**{name: "/nowhere/at-all.pem"})
    assert f"{name.replace('_', '.')} names cannot be read: No such file or directory" in line


def test_a_file_that_is_no_certificate(garbage):
    """OpenSSL says "PEM lib"."""
    assert "is the file that ssl.ca.location names a PEM file?" in refused(ssl_ca_location=garbage)


def test_a_key_that_cannot_be_opened(garbage):
    """Another file, or another password: librdkafka cannot tell."""
    line = refused(ssl_key_location=garbage, ssl_key_password=PASSWORD)
    assert "ssl.key.location names a PEM file, and is ssl.key.password right?" in line
    line = refused(ssl_keystore_location=garbage, ssl_keystore_password=PASSWORD)
    assert "names a PKCS#12 file, and is ssl.keystore.password right?" in line


def test_a_text_that_is_no_certificate():
    """The text itself may be a secret: it is not shown."""
    assert "the whole text, with its BEGIN and END lines" in refused(ssl_certificate_pem=PASSWORD)


@pytest.mark.parametrize(
    ("mechanism", "cure"), [("FOO", "to PLAIN, SCRAM-SHA-256"), ("GSSAPI", "to another one")]
)
def test_a_login_that_librdkafka_does_not_have(mechanism, cure):
    """Misspelt, or not built in."""
    line = refused(
        security_protocol="sasl_plaintext",
        sasl_mechanism=mechanism,
        sasl_username="u",
        sasl_password=PASSWORD,
    )
    assert f"set sasl.mechanism {cure}" in line
