"""A command to a whole group by its control topic, and the members' answers from there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import partial
from typing import Any

from perkey.cli import cluster
from perkey.cli.dlq_box import connected
from perkey.cli.topics import check_topic
from perkey.errors import ConfigError, FatalError
from perkey.kafka.connect import Connection, WordsPort
from perkey.kafka.ports import AdminPort, Delivery, OutMessage, Word
from perkey.observe import local
from perkey.observe.group_orders import (
    ANSWER,
    BEAT,
    COMMAND,
    SILENT_S,
    answer_of,
    command_key,
    ends,
    kind_of,
    lasts,
    left_s,
    of_now,
    packed,
    unpacked,
)
from perkey.observe.orders import RECORD_ACTIONS, Order, what

#: limit for answers; a skip is answered when its commit is stored, which may take 10 s
ANSWERS_S = 10.0
RECORDS_ANSWERS_S = 20.0
#: how long answers are awaited to a command that a later one replaced
REPLACED_S = 1.0
LOOK_S = 0.05

Row = dict[str, Any]


class ByTopic:
    """The members of a group that follow a control topic."""

    def __init__(self, topic: str, group: str, kafka: cluster.Cluster) -> None:
        check_topic(topic)
        self._topic, self._group, self._bootstrap = topic, group, kafka.bootstrap_servers
        self._connection: Connection = connected(kafka, group)
        self._reason = ""
        #: its members on this machine that cannot answer -> their process
        self._suspended: dict[str, str] = {}
        #: records of a control topic, and others
        self._ours = self._others = False

    def asked(self, given: Order) -> tuple[list[Row], list[Row]]:
        """The answers, and member and detail of each missing answer.

        Raises ConfigError for a topic or group that does not exist, FatalError if no broker
        answers.
        """
        with cluster.answering(), closing(self._connection.admin()) as admin:
            self._check_topic(admin)
            state, members = admin.group_state(self._group, cluster.ANSWER_S)
            if state == "DEAD":
                raise ConfigError(f"group {self._group} does not exist at {self._bootstrap}")
        place = command_key(self._group, given)

        def wanted(key: bytes) -> bool:
            kind, group, what = self._kind_of(key)
            mine = kind == BEAT or (kind == ANSWER and what[:1] == (given.id,))
            return key == place or (group == self._group and mine)

        with closing(self._words(wanted)) as words:
            self._wait_read(words)
            message = OutMessage(self._topic, packed(given), place)
            found: list[Delivery] = []
            producer = self._connection.producer(lambda: None, self._failed)
            try:
                producer.send(message, found.append)
                producer.flush(ANSWERS_S)
            finally:
                producer.close(1.0)
            sent, error = found[0][:2] if found else (None, None)
            if sent is None:
                reason = self._reason or "no answer" if error is None else error.line
                raise FatalError(f"control topic {self._topic} cannot be written to: {reason}")
            limit_s = RECORDS_ANSWERS_S if given.action in RECORD_ACTIONS else ANSWERS_S
            self._suspended = local.suspended(self._group)
            asked = partial(self._missing, words, members, limit_s, later=lasts(given))

            def all_came() -> bool:
                return all(one["member"] in self._suspended for one in asked())

            later = partial(self._replaced_by, words, place, sent.offset)
            if members or _following(words):  # one that starts beats before it joins the group
                _within(limit_s, lambda: all_came() or bool(later()))
                if later():  # members that obeyed it before that have their answers on the way
                    _within(REPLACED_S, all_came)
            missing = [{**one, "detail": later() or one["detail"]} for one in asked()]
            return [answer for _, answer in _answers(words.last())], missing

    def log(self) -> list[Row]:
        """The commands in the topic with their answers, oldest first; raises as `asked`.

        `until`: UNIX seconds for those in force; else None.
        """
        with cluster.answering(), closing(self._connection.admin()) as admin:
            self._check_topic(admin)

        def wanted(key: bytes) -> bool:
            kind, group, _ = self._kind_of(key)
            return group == self._group and kind in (COMMAND, ANSWER)

        with closing(self._words(wanted)) as words:
            self._wait_read(words)
            now, found = words.now(), words.last()
        commands: dict[str, Row] = {}
        for key, word in sorted(found.items(), key=lambda one: one[1].at):
            if (kind_of(key) or ("",))[0] != COMMAND or not word.value:
                continue
            try:
                given = unpacked(self._group, key, word.value)
            except ConfigError:
                continue  # the members count and log it
            until = None
            if lasts(given) and not ends(given) and left_s(given, now - word.at) > 0:
                until = round(word.at + given.for_s, 3)
            row = {"at": round(word.at, 3), **given.row(), "about": what(given), "until": until}
            commands[given.id] = {**row, "answers": []}
        for order_id, answer in _answers(found):
            if order_id in commands:
                commands[order_id]["answers"].append(answer)
        for one in commands.values():
            if one["answers"] and {a["outcome"] for a in one["answers"]} == {"refused"}:
                one["until"] = None
        return list(commands.values())

    def _check_topic(self, admin: AdminPort) -> None:
        if not admin.describe([self._topic], cluster.ANSWER_S):
            raise ConfigError(
                f"control topic {self._topic} does not exist at {self._bootstrap}: a member "
                f"with App(control={self._topic!r}) makes it when it starts"
            )

    def _kind_of(self, key: bytes) -> tuple[str, str, tuple[Any, ...]]:
        found = kind_of(key)
        self._ours, self._others = self._ours or found is not None, self._others or found is None
        return found or ("", "", ())

    def _words(self, wanted: Callable[[bytes], bool]) -> WordsPort:
        topic = self._topic
        return self._connection.last_words(topic, wanted, self._failed, whole=True, of_now=of_now)

    def _wait_read(self, words: WordsPort) -> None:
        if not _within(ANSWERS_S, words.is_read):
            raise FatalError(
                f"control topic {self._topic} cannot be read: {self._reason or 'no answer'}"
            )
        words.last()
        if self._others and not self._ours:  # a command would be a record for its consumers
            raise ConfigError(
                f"topic {self._topic} is no control topic: no record of it is a command, and it "
                "has others; --control takes the topic of App(control=…)"
            )

    def _missing(
        self, words: WordsPort, members: int, limit_s: float, *, later: bool = False
    ) -> list[Row]:
        answered = {answer["member"] for _, answer in _answers(words.last())}
        here = _following(words) | self._suspended.keys()
        silent = f"it follows {self._topic} and has not answered in {limit_s:g} s"
        why = {name: local.suspended_text(pid) for name, pid in self._suspended.items()}
        missing = [
            {"member": name, "detail": why.get(name, silent)} for name in sorted(here - answered)
        ]
        if (more := members - len(here | answered)) > 0:
            verb = "does" if more == 1 else "do"
            detail = (
                f"{more:,} of {members:,} members {verb} not follow {self._topic}: killed a moment "
                "ago (the group forgets it after session.timeout.ms), without "
                f"App(control={self._topic!r}), or unable to read it (`perkey why` there has why)"
            )
            missing.append({"member": f"group {self._group}", "detail": detail})
        if not members and not here:
            then = "members that start before it expires obey it" if later else "nothing was done"
            missing.append({"member": f"group {self._group}", "detail": f"no member runs: {then}"})
        return missing

    def _replaced_by(self, words: WordsPort, place: bytes, offset: int) -> str:
        """The later command for the same target; members obey the last one only. "" if none."""
        word = words.last().get(place)
        if word is None or word.offset <= offset:
            return ""
        by = "the deletion of its record"
        if word.value:
            by = "a later command for the same target"
            with suppress(ConfigError):
                order = unpacked(self._group, place, word.value)
                by = f"{order.action} {what(order)} of {order.claimed_by or '?'} ({order.reason})"
        return f"replaced before it was obeyed, by {by}: give it again if it is still meant"

    def _failed(self, reason: str) -> None:
        self._reason = reason


def _following(words: WordsPort) -> set[str]:
    """The members that beat."""
    now = words.now()
    return {
        str(what[0])
        for key, word in words.last().items()
        for kind, _, what in [kind_of(key) or ("", "", ())]
        if kind == BEAT and what and word.value and now - word.at < SILENT_S
    }


def _answers(words: Mapping[bytes, Word]) -> list[tuple[str, Row]]:
    """The members' answers, each with the id of its command."""
    found = []
    for key, word in words.items():
        kind, _, what_ = kind_of(key) or ("", "", ())
        if kind == ANSWER and word.value:
            try:
                answer = answer_of(word.value)
            except ConfigError:
                continue  # that member has not answered
            if what_[1:] == (answer.member,):
                found.append((str(what_[0]), answer.row()))
    return found


def _within(limit_s: float, what: Callable[[], bool]) -> bool:
    """Whether it became true in time."""
    deadline = time.monotonic() + limit_s
    while not (found := what()) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return found
