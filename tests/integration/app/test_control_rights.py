"""The control topic on a broker that asks for rights: members and commanders that lack some."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, AclPermissionType, ResourceType
from tests.integration.app.conftest import Kafka
from tests.support.rights import ANYBODY, set_rights
from tests.support.waiting import wait_for

import perkey
from perkey.cli.main import run as command
from perkey.observe.why import why

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(300)]


class Group:
    """A group of one member that follows a control topic with all rights at first."""

    def __init__(self, bootstrap: str) -> None:
        self.kafka = Kafka(bootstrap)
        self.name = f"rights-{uuid.uuid4().hex[:12]}"
        self.topic = f"{self.name}.control"
        self.source = self.kafka.topic()
        self.done: list[bytes] = []
        self.app = self.kafka.app(group=self.name, control=self.topic)

        @self.app.consume(self.source)
        def handler(record: Any) -> None:
            self.done.append(record.value)

        self.run = self.kafka.start(self.app)
        wait_for(lambda: self.app.snapshot()["partitions"])

    def allow(self, *operations: AclOperation) -> None:
        """Everyone may do only this with the control topic."""
        self._rule(AclPermissionType.ALLOW, operations)

    def deny(self, *operations: AclOperation) -> None:
        """No one may do this with it."""
        self._rule(AclPermissionType.DENY, operations)

    def _rule(self, permission: AclPermissionType, operations: Sequence[AclOperation]) -> None:
        at = self.kafka.bootstrap, ResourceType.TOPIC, self.topic
        set_rights(*at, *operations, who=ANYBODY, permission=permission)

    def asked(self, capsys: Any, *words: str, topic: str | None = None) -> tuple[int, str, str]:
        """A command by the control topic: exit code, output, error."""
        capsys.readouterr()
        at = ["--control", topic or self.topic, "--group", self.name, "--json"]
        code = command([*words, "--reason", "a test", *at, "--bootstrap-servers",
                        self.kafka.bootstrap])  # fmt: skip
        out, err = capsys.readouterr()
        return code, out, err

    def refused(self, capsys: Any, *words: str, topic: str | None = None) -> str:
        """The one line of a command that fails."""
        code, out, err = self.asked(capsys, *words, topic=topic)
        assert code in (1, 2)
        assert (out, err.count("\n")) == ("", 1)
        return err

    def unread(self) -> str:
        """What `perkey why` has of the control topic, once it has noticed."""
        return str(wait_for(lambda: unread_of(self.app), 120))


def unread_of(app: Any) -> str:
    """The same of any member; empty while there is nothing."""
    return next((one.text for one in why(app.snapshot()) if one.about == "control"), "")


@pytest.fixture
def group(rights_broker: Any) -> Iterator[Group]:
    """One whose member is stopped at the end."""
    made = Group(rights_broker.broker.bootstrap)
    yield made
    made.run.stop("now")
    made.run.wait(60)


def test_who_may_not_write_commands_nothing(group, capsys):
    """One line, exit code not 0; the member, which may not either, says so and handles on."""
    group.allow(AclOperation.READ, AclOperation.DESCRIBE)
    harmless = ("set", "concurrency=2")  # until the rights are everywhere it is obeyed
    wait_for(lambda: group.asked(capsys, *harmless)[0] != 0)
    line = group.refused(capsys, *harmless)
    assert "authorization" in line.lower()
    assert f"control topic {group.topic} cannot be written to" in line
    assert "authorization" in group.unread().lower()
    group.kafka.fill(group.source, [b"1"])
    wait_for(lambda: group.done == [b"1"])


def test_what_was_in_force_holds_while_the_topic_may_not_be_read(group, capsys):
    """The pause stays, why has the reason, and who asks gets one line."""
    code, out, err = group.asked(capsys, "pause", "--for", "10m")
    assert (code, [row["outcome"] for row in json.loads(out)["answers"]]) == (0, ["done"]), err
    group.allow(AclOperation.DESCRIBE, AclOperation.WRITE)
    assert "authorization" in group.unread().lower()
    group.kafka.fill(group.source, [b"1"])
    wait_for(lambda: sum(row["buffered"] for row in group.app.snapshot()["partitions"]) == 1)
    assert "command" in [halt["cause"] for halt in group.app.snapshot()["halts"]]
    assert group.done == []
    assert f"control topic {group.topic} cannot be read" in group.refused(capsys, "resume")


def test_a_topic_that_is_not_there_is_one_line(group, capsys):
    """With how it is made."""
    line = group.refused(capsys, "pause", topic="no.such.topic")
    assert "control topic no.such.topic does not exist" in line


def test_without_the_right_to_describe_the_topic_it_is_one_line(group, capsys):
    """The member that runs reports it and handles on; a start and a command are refused."""
    group.allow(AclOperation.READ, AclOperation.WRITE)
    group.deny(AclOperation.DESCRIBE)
    harmless = ("set", "concurrency=2")
    wait_for(lambda: group.asked(capsys, *harmless)[0] != 0, 120)
    line = group.refused(capsys, *harmless)
    assert f"cannot describe {group.topic}" in line
    assert "include DESCRIBE, unless that is denied" in line
    assert "authorization" in group.unread().lower()
    group.run.stop("now")
    group.run.wait(60)
    later = group.kafka.app(group=group.name, control=group.topic)
    later.consume(group.source)(lambda record: None)
    with pytest.raises(perkey.ConfigError, match="grant this login READ and WRITE on the topic"):
        later.start()
