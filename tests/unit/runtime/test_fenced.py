"""exactly_once: a producer that was fenced can commit nothing, so its member leaves."""

from __future__ import annotations

from tests.support.waiting import wait_for

import perkey
from perkey.kafka.ports import TransactionEnd
from perkey.runtime.member import member, transactor
from perkey.testing import MemoryKafka
from perkey.testing.memory_producer import MemoryTransactions

HOUR_S, LIMIT_S = 3_600.0, 60.0


def test_a_fenced_member_leaves_without_repeating_its_transaction(monkeypatch):
    """It ends with exit code 1; the limits for a last transaction and for the drain do not count."""
    monkeypatch.setattr(member, "LAST_TRANSACTION_S", HOUR_S)
    fenced = TransactionEnd("fenced", [None], "another producer")
    monkeypatch.setattr(MemoryTransactions, "transact", lambda *_: fenced)
    with MemoryKafka() as kafka:
        kafka.create_topic("orders")
        kafka.create_topic("out")
        kafka.produce("orders", "1")
        app = perkey.App(
            group="g", kafka={"bootstrap.servers": kafka.bootstrap}, drain_timeout_s=HOUR_S
        )
        app.consume("orders", delivery="exactly_once", output="out")(lambda record: record.value)
        report = app.start().wait(LIMIT_S)
    assert (report.exit_code, report.reason) == (1, "transaction: another producer")


def test_an_unknown_outcome_is_logged_until_it_is_known(monkeypatch, caplog):
    """Its coordinator answers but does not end it: the member waits, and logs the reason."""
    unknown = TransactionEnd("unknown", [None], "ongoing")
    with MemoryKafka() as kafka:
        for topic in ("orders", "out"):
            kafka.create_topic(topic)
        kafka.produce("orders", "1")
        app = perkey.App(group="g", kafka={"bootstrap.servers": kafka.bootstrap})
        app.consume("orders", delivery="exactly_once", output="out")(lambda record: record.value)
        with monkeypatch.context() as patches:
            patches.setattr(MemoryTransactions, "transact", lambda *_: unknown)
            patches.setattr(transactor.Transactor, "_find_out", lambda _self, end, *_: end)
            run = app.start(until="drained")
            wait_for(lambda: "outcome of a transaction is unknown" in caplog.text, LIMIT_S)
        assert run.wait(LIMIT_S).exit_code == 0
    assert caplog.text.count("outcome of a transaction is unknown") == 1
    assert "reason=ongoing" in caplog.text
