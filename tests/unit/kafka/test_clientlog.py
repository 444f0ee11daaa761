"""librdkafka's log lines: no secrets, no floods, the levels of Python."""

from __future__ import annotations

import logging

import pytest

from perkey.kafka import clientlog
from perkey.kafka.clientlog import NAME, ClientLog, with_client_log


def test_lines_alike_come_once_with_their_count_later(caplog, monkeypatch):
    """They differ in numbers alone; ten seconds later the next says how many were left out."""
    now = [100.0]
    monkeypatch.setattr(clientlog.time, "monotonic", lambda: now[0])
    log = ClientLog({})
    for n in range(5):
        log.log(logging.ERROR, "%s [%s] %s", "FAIL", "c-1", f"refused after {n} ms")
    log.log(logging.WARNING, "another")
    now[0] += clientlog.ALIKE_EVERY_S
    log.log(logging.ERROR, "%s [%s] %s", "FAIL", "c-1", "refused after 9 ms")
    assert [record.getMessage() for record in caplog.records] == [
        "FAIL [c-1] refused after 0 ms",
        "another",
        "FAIL [c-1] refused after 9 ms (4 similar lines omitted)",
    ]
    assert caplog.records[0].levelno == logging.ERROR


def test_secrets_of_the_configuration_are_masked(caplog):
    """Whatever librdkafka says of them."""
    ClientLog({"sasl.password": "hunter-2"}).log(logging.WARNING, "login with hunter-2 failed")
    assert caplog.messages == ["login with *** failed"]


def test_debug_lines_all_come(caplog):
    """Who asks for them wants them all."""
    caplog.set_level(logging.DEBUG, NAME)
    for n in range(3):
        ClientLog({}).log(logging.DEBUG, f"line {n}")
    assert len(caplog.records) == 3


def test_a_muted_log_is_silent(caplog):
    """Its client was left behind."""
    log = ClientLog({})
    log.muted = True
    log.log(logging.CRITICAL, "anything")
    assert not caplog.records


@pytest.mark.parametrize("given", [{}, {"logger": logging.getLogger("mine")}])
def test_a_logger_of_the_users_own_wins(given):
    """Ours takes the place of none."""
    made = with_client_log(given)["logger"]
    assert made is given.get("logger") or isinstance(made, ClientLog)


def test_kinds_are_bounded(monkeypatch):
    """A log of ever new lines does not grow the memory."""
    monkeypatch.setattr(clientlog, "KINDS_MAX", 5)
    kinds = clientlog.Sparse()
    assert all(kinds.left_out(f"kind {chr(97 + n)}") == 0 for n in range(20))
    assert len(kinds._alike) <= 5
