"""A replay: reads the letters, scans their source, and sends the chosen ones.

Each transaction has records and the progress over them. A killed replay left either both or
neither, and the next one under the same group continues after it; a second concurrent one fences
the first.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

from perkey.dlq.letters import REPLAY, Letter, Place, homeward, letter_of, without
from perkey.dlq.plan import Guard, Plan, Progress, Rules, make_plan
from perkey.errors import ConfigError, FatalError, Reject
from perkey.kafka.connect import Connection
from perkey.kafka.log_reader import fetch_stored
from perkey.kafka.ports import Delivery, OutMessage, ToCommit
from perkey.types import Record, Sent, TopicPartition
from perkey.where import Condition

ANSWER_S = 10.0
LOOK_UP_S = 30.0
#: reads of the group's offsets wait for a killed replay's open transaction, which ends after 10 s
PROGRESS_S = 20.0
#: size of one transaction, which has ten seconds
TRANSACTION_RECORDS_MAX = 500
TRANSACTION_BYTES_MAX = 4 * 2**20
#: limit of what is in memory
BATCH_RECORDS_MAX = 5_000
BATCH_BYTES_MAX = 32 * 2**20
#: interval of scans for new records of the source
LOOK_AGAIN_S = 5.0
ATTEMPTS = 5

#: takes the original record, returns the record to send; None: it is left out
Repair = Callable[[Record[Any]], Record[Any] | None]
#: (what, done, total), for a progress bar
OnProgress = Callable[[str, int, int], None]
_T = TypeVar("_T")
#: a letter, its original record, and the message to send
_Made = tuple[Letter, Record[Any], OutMessage]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The caller's request."""

    topic: str
    #: instead of the letters' own topic
    to: str | None = None
    where: Condition | None = None
    rules: Rules = field(default_factory=Rules)
    rate_per_s: float | None = None
    repair: Repair | None = None


@dataclass(slots=True)
class Outcome:
    """What was sent."""

    sent: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    #: known only if outcomes are awaited: letters that failed again, those without an outcome in
    #: time, and those left out behind either
    again: int = 0
    unknown: int = 0
    behind: int = 0


def group_of(topic: str, to: str | None) -> str:
    """The group that keeps the progress of replays of a topic."""
    return f"perkey-replay.{topic}" + (f".to.{to}" if to else "")


class Box:
    """The dead-letter topic, read once: letters without their values."""

    def __init__(
        self,
        connection: Connection,
        topic: str,
        on_progress: OnProgress = lambda *_: None,
    ) -> None:
        self._on_progress = on_progress
        self.topic = topic
        self.admin = connection.admin()
        self.reader = connection.log_reader()
        facts = self.admin.describe([topic], ANSWER_S)
        if topic not in facts:
            raise ConfigError(f"topic {topic} does not exist at {connection.described()}")
        self.partitions = range(facts[topic].partitions)
        self.progress: dict[TopicPartition, Progress] = {}
        self.letters: list[Letter] = []

    def close(self) -> None:
        """Close both clients."""
        self.reader.close()
        self.admin.close()

    def ranges(self, topic: str) -> dict[TopicPartition, tuple[int, int]]:
        """The offsets of the topic's logs, up to the oldest open transaction."""
        starts = self.admin.starts([topic], timeout_s=ANSWER_S)
        ends = self.admin.ends([topic], committed=True, timeout_s=ANSWER_S)
        return {where: (start, ends[where]) for where, start in starts.items()}

    def read(self, group: str, keep: Callable[[Record[Any]], None] = lambda _: None) -> None:
        """Read every present letter, and the group's progress."""
        ranges = self.ranges(self.topic)
        total = sum(end - start for start, end in ranges.values())
        held = self.reader.committed(list(ranges), PROGRESS_S)
        for where, (start, end) in ranges.items():
            self.progress[where] = Progress(where, start, end)
            self.progress[where].restore(group, *held.get(where, (None, "")))
        for records in self.reader.read(ranges):
            for record in records:
                self.progress[record.topic, record.partition].seen(record.offset)
                self.letters.append(letter_of(record))
                keep(record)
            self._on_progress(f"reading {self.topic}", len(self.letters), total)
        self.letters.sort(key=lambda letter: letter.at)

    def fetch(self, places: Collection[Place]) -> Iterator[Record[Any]]:
        """The records at these places that still exist."""
        known = self.admin.describe(sorted({place.topic for place in places}), ANSWER_S)
        here = {place for place in places if place.topic in known}
        yield from fetch_stored(self.admin, self.reader, here, ANSWER_S)

    def progress_after(self, letters: Sequence[Letter]) -> bool:
        """Whether commits can record that all these were sent."""
        after = copy.deepcopy(self.progress)
        for letter in letters:
            after[letter.at[:2]].done(letter.at.offset)
        return all(progress.commit()[1] for progress in after.values())

    def is_brought(self, letter: Letter) -> bool:
        """Whether it was replayed, by the group's progress."""
        return self.progress[letter.at[:2]].has(letter.at.offset)


class Replay:
    """One call of `perkey dlq replay`; close it."""

    def __init__(
        self,
        connection: Connection,
        wanted: Wanted,
        group: str,
        on_progress: OnProgress = lambda *_: None,
    ) -> None:
        """`on_progress` may raise between two batches to end the replay."""
        self._wanted, self._group = wanted, group
        self._on_progress = on_progress
        self.box = Box(connection, wanted.topic, on_progress)
        self._transactions = connection.transactions(group)
        self._meant: set[str] = set()
        self._guard = Guard(())
        #: the offsets of the source's logs up to which they were scanned
        self._looked: dict[TopicPartition, int] = {}
        self._looked_at = 0.0
        self._pace = _Pace(wanted.rate_per_s)

    def close(self) -> None:
        """Close every client."""
        self._transactions.close()
        self.box.close()

    def begin(self) -> None:
        """Fence an earlier replay that still runs: its later sends are refused.

        Called before `look`, so that an open transaction of a killed one is ended, and visible.
        """
        self._transactions.open()

    def look(self) -> None:
        """Read the letters, check their targets, and scan their source."""
        self.box.read(self._group)
        where = self._wanted.where
        self._meant = {
            str(letter.at)
            for letter in self.box.letters
            if where is None or where.matches(letter.field)
        }
        pending = [
            letter
            for letter in self.box.letters
            if letter.source and not self.box.is_brought(letter)
        ]
        # ConfigError unless each letter's own partition exists in its target
        letters = [letter for letter in pending if str(letter.at) in self._meant]
        sources = {letter.source.topic for letter in letters if letter.source}
        names = sources | {self._topic_of(letter) for letter in letters}
        facts = self.box.admin.describe(sorted(names), ANSWER_S)
        for letter in letters:
            topic, source = self._topic_of(letter), letter.source
            assert source is not None
            if topic not in facts:
                cure = "create it" if self._wanted.to else "give --to another, or --where"
                raise ConfigError(
                    f"topic {topic}, where letter {letter.at} belongs, does not exist: {cure}"
                )
            count = facts[topic].partitions
            home = facts[source.topic].partitions if source.topic in facts else count
            if count != home:
                raise ConfigError(
                    f"topic {topic} has {count} partitions and {source.topic} has {home}: a letter "
                    "goes to its own partition, so give --to a topic with as many"
                )
            if source.partition >= count:
                raise ConfigError(
                    f"letter {letter.at} is of partition {source.partition}, and topic {topic} has "
                    f"{count}: was it recreated? Leave it out with --where, or give --to"
                )
        self._guard = Guard(pending, home=self._wanted.to is None)
        self._look_on()
        for letter in filter(self._guard.is_brought, pending):
            self.box.progress[letter.at[:2]].done(letter.at.offset)

    def plan(self, rules: Rules | None = None) -> Plan:
        """The current plan."""
        chosen = rules or self._wanted.rules
        return make_plan(self.box.letters, self._meant, self.box.progress, self._guard, chosen)

    def decide(self, rules: Rules) -> None:
        """Set choices that were not made yet."""
        self._wanted = replace(self._wanted, rules=rules)

    def _topic_of(self, letter: Letter) -> str:
        assert letter.source is not None
        return self._wanted.to or letter.source.topic

    def targets(self, plan: Plan) -> list[str]:
        """The target topics; if no letter goes, those of all letters."""
        letters = plan.going or [letter for letter in self.box.letters if letter.source is not None]
        return sorted({self._topic_of(letter) for letter in letters})

    def readers(self, topics: Sequence[str]) -> dict[str, list[str]]:
        """The groups that read these topics."""
        facts = self.box.admin.describe(topics, ANSWER_S)
        return {
            topic: self.box.admin.groups_reading(topic, facts[topic].partitions, LOOK_UP_S)
            for topic in topics
            if topic in facts
        }

    def other_groups(self, plan: Plan, readers: Mapping[str, Sequence[str]]) -> list[str]:
        """The readers that would get the records besides the letters' own group."""
        ours = {letter.group for letter in plan.going}
        if len(set().union(*readers.values())) <= 1:
            return []
        return sorted({group for names in readers.values() for group in names if group not in ours})

    def _look_on(self) -> None:
        """Scan the source from the end of the last scan; at first, from the oldest letter."""
        starts = self._guard.starts
        topics = sorted({topic for topic, _ in starts})
        if not topics:
            return
        here = self.box.admin.describe(topics, ANSWER_S)
        ranges = {}
        for topic in here:
            for where, (start, end) in self.box.ranges(topic).items():
                if where in starts:
                    ranges[where] = (self._looked.get(where, max(start, starts[where])), end)
        total, seen = sum(max(0, end - start) for start, end in ranges.values()), 0
        for records in self.box.reader.read(ranges):
            self._guard.look(records)
            seen += len(records)
            self._on_progress("looking for newer records", seen, total)
        self._looked |= {where: end for where, (_, end) in ranges.items()}
        self._looked_at = time.monotonic()

    # -- sending -----------------------------------------------------------------------------------

    def examples(
        self, plan: Plan, count: int, outcome: Outcome
    ) -> list[tuple[Record[Any], OutMessage]]:
        """The first few that --map changes: the original record, and the message to send.

        `outcome` gets the letters before them that it leaves out.
        """
        made = self._made(plan.going[: 20 * count], outcome)
        changed = (
            (record, message) for _, record, message in made if message.value != record.value
        )
        return list(islice(changed, count))

    def check(self, plan: Plan) -> None:
        """ConfigError if the progress over letters for another topic would be too large to keep."""
        if self._wanted.to is None:
            return  # the log itself shows which were sent
        whole = self.box.progress_after(plan.going)
        if not whole:
            raise ConfigError(
                f"which of these {len(plan.going):,} letters went cannot be kept in a commit of "
                f"group {self._group}: make it fewer with --limit, or leave --where out"
            )

    def send(self, plan: Plan, outcome: Outcome | None = None) -> Outcome:
        """Send the chosen letters, in order, in transactions with the progress.

        A given `outcome` is updated continuously, for callers that need it if this raises.
        """
        outcome = outcome or Outcome()
        taken = 0
        for batch in _pieces(
            plan.going, lambda letter: letter.size, self._pace.at_a_time, BATCH_BYTES_MAX
        ):
            self.send_some(plan, batch, outcome)
            taken += len(batch)
            self._on_progress("sending", taken, len(plan.going))
        return outcome

    def send_some(
        self, plan: Plan, letters: Sequence[Letter], outcome: Outcome
    ) -> list[tuple[Letter, Sent]]:
        """Send these; returns their new places. Letters that became stale are left out."""
        if time.monotonic() - self._looked_at > LOOK_AGAIN_S:
            self._look_on()
        if self._wanted.rules.stale != "replay":
            late = {candidate.at for candidate in letters if self._guard.is_stale(candidate)}
            if late:
                _count(outcome, "older than newer records of their key", len(late))
                letters = [candidate for candidate in letters if candidate.at not in late]
        went: list[tuple[Letter, Sent]] = []
        for part in _pieces(
            self._made(letters, outcome),
            lambda sending: len(sending[2].value or b""),
            self._pace.at_once,
            TRANSACTION_BYTES_MAX,
        ):
            self._pace.wait(len(part))
            deliveries = self._transact(plan, part)
            outcome.sent += len(part)
            went += [
                (letter, delivery.sent)
                for (letter, _, _), delivery in zip(part, deliveries, strict=True)
                if delivery is not None and delivery.sent is not None
            ]
        return went

    def _made(self, letters: Sequence[Letter], outcome: Outcome) -> Iterator[_Made]:
        """Letters with their original records, and the messages to send."""
        # Letter -> the original record; for cut ones from the source, if it still has them
        wanted: dict[Place, list[Letter]] = {}
        for cut_letter in letters:
            place = cut_letter.source if cut_letter.is_cut and cut_letter.source else cut_letter.at
            wanted.setdefault(place, []).append(cut_letter)
        records: dict[Place, Record[Any]] = {}
        for source_record in self.box.fetch(wanted):
            for letter in wanted[
                Place(source_record.topic, source_record.partition, source_record.offset)
            ]:
                assert letter.source is not None
                # Of a cut letter it is the source's record, which may be a replayed one.
                headers = letter.own_headers
                if letter.is_cut:
                    headers = without(source_record.headers, (REPLAY,))
                records[letter.at] = Record(
                    *letter.source,
                    source_record.timestamp_ms,
                    source_record.key,
                    source_record.value,
                    headers,
                )
        for letter in letters:
            record = records.get(letter.at)
            if record is None:
                problem = "cut, and gone from their source" if letter.is_cut else "gone meanwhile"
                _count(outcome, problem)
                continue
            repaired: Record[Any] | None = record
            if self._wanted.repair is not None:
                try:
                    repaired = self._wanted.repair(record)
                except Reject as error:
                    _count(outcome, f"rejected by --map: {error.reason:.80}")
                    continue
            if repaired is None:
                _count(outcome, "left out by --map")
                continue
            yield letter, record, homeward(letter, self._topic_of(letter), repaired)

    def _transact(self, plan: Plan, part: Sequence[_Made]) -> Sequence[Delivery | None]:
        """One transaction; FatalError if it fails."""
        touched = set()
        for letter, _, _ in part:
            assert letter.source is not None
            for twin in (letter, *plan.twins.get(letter.source, ())):
                self.box.progress[twin.at[:2]].done(twin.at.offset)
                touched.add(twin.at[:2])
        offsets = [self.box.progress[where].commit()[0] for where in sorted(touched)]
        messages = [message for _, _, message in part]
        for attempt in range(1, ATTEMPTS + 1):
            membership = self.box.reader.membership()
            try:
                end = self._transactions.transact(messages, offsets, membership, self._read_back)
            finally:
                membership.close()
            if end.outcome == "committed":
                return end.deliveries
            for (letter, _, message), delivery in zip(part, end.deliveries, strict=False):
                if delivery and delivery.error and self._transactions.is_refusal(delivery):
                    raise FatalError(
                        f"the broker refuses letter {letter.at} in {message.topic}: "
                        f"{delivery.error.message}; leave it out with --where"
                    )
            if end.outcome in ("fenced", "unknown") or attempt == ATTEMPTS:
                words = {
                    "fenced": "another replay of this topic has started, or rights are missing",
                    "unknown": "the brokers are away: it is not known whether the last letters "
                    "went",
                }.get(end.outcome, "nothing of the last transaction went")
                why = f"{words} ({end.reason or end.outcome}); start it again, it continues where "
                why += "it was"
                raise FatalError(why)
            time.sleep(0.1 * 2**attempt)
        raise AssertionError  # the last attempt has raised or returned

    def _read_back(self, offsets: Sequence[ToCommit]) -> list[tuple[int | None, str]] | None:
        where = [(offset.topic, offset.partition) for offset in offsets]
        held = self.box.reader.committed(where, ANSWER_S)
        return [held[place] for place in where]


def _count(outcome: Outcome, reason: str, count: int = 1) -> None:
    outcome.left_out[reason] = outcome.left_out.get(reason, 0) + count


def _pieces(
    given: Iterable[_T], size_of: Callable[[_T], int], count_max: int, bytes_max: int
) -> Iterator[list[_T]]:
    piece: list[_T] = []
    size = 0
    for value in given:
        if piece and (len(piece) >= count_max or size + size_of(value) > bytes_max):
            yield piece
            piece, size = [], 0
        piece.append(value)
        size += size_of(value)
    if piece:
        yield piece


class _Pace:
    """Limits the letters per second."""

    def __init__(self, rate_per_s: float | None) -> None:
        self._rate = rate_per_s
        self._next = time.monotonic()
        #: letters of one transaction: those of a second; of one piece: those of ten
        self.at_once, self.at_a_time = TRANSACTION_RECORDS_MAX, BATCH_RECORDS_MAX
        if rate_per_s is not None:
            self.at_once = max(1, min(TRANSACTION_RECORDS_MAX, int(rate_per_s)))
            self.at_a_time = min(BATCH_RECORDS_MAX, 10 * self.at_once)

    def wait(self, count: int) -> None:
        """Wait until this many more may be sent."""
        if self._rate is None:
            return
        now = time.monotonic()
        if self._next > now:
            time.sleep(self._next - now)
        self._next = max(now, self._next) + count / self._rate
