"""Export by a button of the page: records with their values, as lines of JSON for a file.

Read from Kafka by separate clients, on the request's thread: the engine takes no part. An answer
has a size limit, as it is built in memory; the command has none, as it streams.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from perkey.account.shown import counted
from perkey.errors import ConfigError, PerkeyError
from perkey.kafka.connect import Connection
from perkey.kafka.group_rider import GroupRider, Kept
from perkey.kafka.log_reader import Place
from perkey.kafka.ports import KafkaUnavailable
from perkey.observe.kept_records import KEPT_FIELDS, chosen, line_of
from perkey.observe.orders import EXPORT, Answer, Order, order_of
from perkey.where import parse

RECORDS_MAX = 10_000
BYTES_MAX = 16 * 2**20
#: most places that an answer names
NAMED_MAX = 5

#: creates clients of the app's cluster under this group's name
Connect = Callable[[str], Connection]
#: records a command and its answer, and logs it
Note = Callable[[Order, Answer], None]


class Exports:
    """Answers export requests, one at a time. Thread-safe."""

    def __init__(
        self,
        connect: Connect,
        group: str,
        member: Callable[[], str],
        check: Callable[[str], object],
        note: Note,
    ) -> None:
        """`check` raises ConfigError for a topic that the app does not read; `note`: see `Note`."""
        self._connect, self._group, self._member = connect, group, member
        self._check, self._note = check, note
        self._busy = threading.Lock()

    def answered(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """An answer like a command's, with `lines` unless it is a dry run; raises ConfigError."""
        order = order_of(given, (EXPORT,))
        member, lines = self._member(), ""
        if not self._busy.acquire(blocking=False):
            answer = Answer(member, "refused", "another export runs: ask again when it has ended")
        else:
            try:
                self._check(str(order.topic))
                with GroupRider(self._connect(self._group), self._group) as source:
                    lines, answer = self._exported(source, order, member)
            except (PerkeyError, KafkaUnavailable) as error:
                answer = Answer(member, "refused", str(error))
            finally:
                self._busy.release()
        self._note(order, answer)
        return {
            "group": self._group, "answers": [answer.row()], "members": [member],
            "lines": "" if order.dry_run else lines,
        }  # fmt: skip

    def _exported(self, source: GroupRider, order: Order, member: str) -> tuple[str, Answer]:
        places, problem = _meant(source, order)
        if len(places) > RECORDS_MAX:
            raise ConfigError(
                f"{len(places):,} records are more than the {RECORDS_MAX:,} of one export here: "
                f"use {_command(order, self._group)}"
            )
        lines, found, size = [], set(), 0
        for record in source.records(set(places)):
            place = (record.topic, record.partition, record.offset)
            line = json.dumps(line_of(record, places[place]))
            size += len(line) + 1
            if size > BYTES_MAX:
                raise ConfigError(
                    f"these {len(places):,} records are more than the {BYTES_MAX // 2**20} MiB of "
                    f"one export here: use {_command(order, self._group)}"
                )
            lines.append(line)
            found.add(place)
        if not places:
            detail = "export 0 records: none of these is parked or held in the group's commits"
            return "", Answer(member, "unchanged", detail + problem)
        gone = len(places) - len(found)
        detail = (
            f"export {counted(len(found), 'record')} with their values: {_named(sorted(found))}"
        )
        if gone:
            detail += f"; {counted(gone, 'record')} deleted from the topic meanwhile"
        if not found:
            return "", Answer(member, "refused", f"not in the topic (any more): {_named(places)}")
        outcome = "would" if order.dry_run else "done"
        return "".join(f"{line}\n" for line in lines), Answer(member, outcome, detail + problem)


def _meant(source: GroupRider, order: Order) -> tuple[dict[Place, Kept | None], str]:
    """The selected places with what is remembered of each, and what may be missing and why."""
    topic = str(order.topic)
    if order.records:
        for partition in sorted({partition for partition, _ in order.records}):
            source.check(topic, partition)
        return dict.fromkeys((topic, *one) for one in order.records), ""
    condition = None
    if order.key is not None:
        condition = parse(f"key == {json.dumps(order.key, ensure_ascii=False)}", KEPT_FIELDS)
    parts = source.read(topic)
    found = chosen(source, parts, None, condition)
    short = next((one for one in parts if one.problem), None)
    problem = "" if short is None else f"; {short.topic}[{short.partition}]: {short.problem}"
    return {one.place: one for one in found}, problem


def _command(order: Order, group: str) -> str:
    return f"`perkey parked export {order.topic} --group {group}`"


def _named(places: Any) -> str:
    shown = [f"{topic}[{partition}] {offset:,}" for topic, partition, offset in places]
    more = len(shown) - NAMED_MAX
    return ", ".join(shown[:NAMED_MAX]) + (f" and {more:,} more" if more > 0 else "")
