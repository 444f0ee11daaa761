"""`app.pause()` and `app.resume()` before the start: the last word holds from the first record."""

from __future__ import annotations

from typing import Any

import pytest

import perkey
from perkey.runtime.member.member import Member
from perkey.runtime.run.run import Run
from perkey.testing import MemoryKafka


@pytest.fixture
def app(memory_broker: MemoryKafka) -> perkey.App:
    """One that handles the topic t."""
    memory_broker.create_topic("t")
    app = perkey.App(group="g", kafka={"bootstrap.servers": memory_broker.bootstrap})
    app.consume("t")(print)
    return app


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> list[set[str | None]]:
    """What is paused when a member is about to join."""
    start, found = Member.start, []

    def noted(member: Member) -> None:
        found.append(set(member.engine.paused))
        start(member)

    monkeypatch.setattr(Member, "start", noted)
    return found


def ran(app: perkey.App) -> None:
    """Start it and end it."""
    run = app.start()
    run.stop()
    run.wait(60)


def test_what_was_paused_is_so_before_the_member_joins(app, paused):
    """Not a moment later: a record that was quick would have been handled."""
    app.pause("t")
    ran(app)
    assert paused == [{"t"}]


def test_what_is_resumed_during_the_start_is_not_paused(app, paused, monkeypatch):
    """`app.start()` looks at the cluster first; what is said meanwhile counts."""
    check = Run._check

    def resumed(run: Run, admin: Any) -> Any:
        app.resume("t")
        return check(run, admin)

    monkeypatch.setattr(Run, "_check", resumed)
    app.pause("t")
    ran(app)
    assert paused == [set()]
