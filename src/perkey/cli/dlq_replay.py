"""`perkey dlq replay`: send dead letters back to their topics, after a dry run."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from perkey.account.shown import counted
from perkey.cli import cluster
from perkey.cli.control import EXIT_NOT_ALL
from perkey.cli.dlq_box import Bar, Group, Where, bar, connected, cut, parse_where
from perkey.cli.load import load_module
from perkey.cli.topics import check_topic
from perkey.dlq.plan import STALE, Plan, Rules, Stale, read_by
from perkey.dlq.refails import Careful
from perkey.dlq.replay import Outcome, Repair, Replay, Wanted, group_of
from perkey.errors import ConfigError, Reject
from perkey.numeric import is_positive
from perkey.options import check_quick
from perkey.runtime.calls.invoke import BadReturn, messages_of
from perkey.types import Record
from perkey.where import text_of

EXAMPLES = 3
DIFF_LINES_MAX = 20
LINE_CHARS_MAX = 160
VALUE_CHARS_MAX = 4_000
TYPES_SHOWN = 8
OUTCOME_S = 600.0


@cluster.spread
def replay(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The dead-letter topic.")],
    kafka: cluster.Cluster,
    yes: Annotated[bool, typer.Option("--yes", help="Send them. Default: dry run.")] = False,
    where: Where = None,
    stale: Annotated[
        Stale | None,
        typer.Option(help="What to do with letters that would run after newer ones of their key."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most N letters.")] = None,
    rate: Annotated[float | None, typer.Option(help="At most N letters per second.")] = None,
    to: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Send to this topic, not the letters' own.")
    ] = None,
    map_: Annotated[
        str | None,
        typer.Option(
            "--map", metavar="MODULE:FUNCTION", help="Repair: takes the record, returns its value."
        ),
    ] = None,
    max_replays: Annotated[
        int, typer.Option(min=1, help="Leave out letters that have been replayed N times already.")
    ] = 3,
    stop_key_on_refail: Annotated[
        bool,
        typer.Option(
            "--stop-key-on-refail", help="Wait for each outcome; stop a key whose letter fails."
        ),
    ] = False,
    outcome_timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help=f"For --stop-key-on-refail: limit per outcome ({OUTCOME_S:g} by default).",
        ),
    ] = None,
    other_groups: Annotated[
        bool, typer.Option("--other-groups", help="Send even if other groups also read the topic.")
    ] = False,
    group: Group = None,
    no_progress: Annotated[
        bool, typer.Option("--no-progress", help="Disable the progress bar.")
    ] = False,
    as_json: cluster.Json = False,
) -> int:
    """Send dead letters back to their source topics, in order.

    Without --yes it is a dry run. Each goes to its own partition. A killed replay is continued.
    With --stop-key-on-refail the exit code is 1 if a letter failed again, or had no outcome.

    Example: perkey dlq replay orders.dlq --where 'error.type == "Timeout"' --stale skip --yes
    """
    for name in (topic, to):
        if name is not None:
            check_topic(name)
    if to == topic:
        raise ConfigError(
            f"--to {to} is the dead-letter topic itself: a replay would turn its letters into "
            "records that have no source; omit --to to send them home"
        )
    if rate is not None and not is_positive(rate):
        raise ConfigError(f"--rate {rate}: give letters per second, above 0")
    wanted = Wanted(
        topic,
        to,
        None if where is None else parse_where(where),
        Rules(stale, max_replays, limit),
        rate,
        None if map_ is None else repair_of(map_),
    )
    outcome_s = _limit_of_outcomes(outcome_timeout, waits=stop_key_on_refail)
    call = _Call(wanted, yes, as_json, other_groups, outcome_s)
    name = group or group_of(topic, to)
    with ExitStack() as stack:
        stack.enter_context(cluster.answering())
        on_progress = stack.enter_context(bar(wanted=not no_progress))
        made = Replay(connected(kafka, name), wanted, name, on_progress)
        run = stack.enter_context(closing(made))
        return call.go(run, on_progress, lambda one: connected(kafka, one))


def _limit_of_outcomes(given: float | None, *, waits: bool) -> float | None:
    if given is None:
        return OUTCOME_S if waits else None
    if not waits:
        raise ConfigError("--outcome-timeout needs --stop-key-on-refail: no outcome is awaited")
    if not is_positive(given):
        raise ConfigError(f"--outcome-timeout {given}: give seconds, above 0")
    return given


@dataclass(frozen=True, slots=True)
class _Call:
    """The options of the command line besides what is sent."""

    wanted: Wanted
    yes: bool
    as_json: bool
    other_groups: bool
    #: limit for each outcome; None: outcomes are not awaited
    outcome_s: float | None

    def go(self, run: Replay, on_progress: Bar, connection_of: Callable[[str], Any]) -> int:
        """Plan, print the plan, ask, send, and print the outcome; returns the exit code."""
        if self.yes:
            run.begin()
        run.look()
        plan = run.plan()
        readers = run.readers(run.targets(plan))
        first = Outcome()
        examples = run.examples(plan, EXAMPLES, first) if self.wanted.repair else []
        on_progress.hide()
        if not self.as_json:
            _print(self.wanted, plan, readers)
            for record, message in examples:
                before, after = (_lines(one) for one in (record.value, message.value))
                name = f"{record.topic}:{record.partition}:{record.offset}"
                lines = list(difflib.unified_diff(before, after, name, "--map", lineterm="", n=1))
                for line in lines[:DIFF_LINES_MAX]:
                    typer.echo(cut(line, LINE_CHARS_MAX))
                if len(lines) > DIFF_LINES_MAX:
                    typer.echo(f"and {len(lines) - DIFF_LINES_MAX} more lines")
            for reason, count in first.left_out.items():
                typer.echo(f"  {count:,} of the first letters: {cut(reason, LINE_CHARS_MAX)}")
        if not self.yes:
            if self.as_json:
                typer.echo(json.dumps({**plan.facts(), "groups": readers, "sent": 0}))
            elif plan.eligible:
                typer.echo("Nothing was sent: add --yes to do it.", err=True)
            return 0
        # With what happens to stale letters; asks if --stale is missing
        rules = self.wanted.rules
        if plan.stale and rules.stale is None:
            chosen = _asked("--stale", "What to do with stale letters", STALE)
            if chosen is None:
                raise ConfigError(
                    f"{plan.staleness()}: add --stale skip, --stale replay or --stale "
                    "only-if-newest"
                )
            decided = Rules(chosen, rules.replays_max, rules.limit)
            run.decide(decided)
            plan = run.plan(decided)
        others = run.other_groups(plan, readers)
        if others and not self.other_groups:
            names = ", ".join(others)
            question = f"{names:.200} would get them, too. Continue"
            if _asked("--other-groups", question, ("no", "yes")) != "yes":
                who, s = ("groups", "") if len(others) > 1 else ("group", "s")
                raise ConfigError(
                    f"{who} {names:.200} read{s} the topic, too, and would handle these records "
                    "again: add --other-groups to send them anyway"
                )
        run.check(plan)
        if self.outcome_s is None:
            outcome = run.send(plan)
        else:
            outcome = self._send_carefully(run, plan, on_progress, connection_of)
        on_progress.hide()
        self._print_outcome(run, plan, outcome, readers)
        return EXIT_NOT_ALL if outcome.again or outcome.unknown or outcome.behind else 0

    def _send_carefully(
        self, run: Replay, plan: Plan, on_progress: Bar, connection_of: Callable[[str], Any]
    ) -> Outcome:
        groups = sorted({one.group for one in plan.going if one.group})
        if not plan.going:
            return Outcome()
        if len(groups) != 1 or any(one.group is None for one in plan.going):
            raise ConfigError(
                "--stop-key-on-refail waits for the commits of one group, and these letters are "
                f"of {', '.join(groups) or 'none'}: choose with --where 'group == \"…\"'"
            )
        assert self.outcome_s is not None
        with closing(connection_of(groups[0]).log_reader()) as commits:
            return Careful(run, commits, self.outcome_s, on_progress).send(plan)

    def _print_outcome(
        self, run: Replay, plan: Plan, outcome: Outcome, readers: Mapping[str, Sequence[str]]
    ) -> None:
        if self.as_json:
            facts = {**plan.facts(), "groups": readers}
            left = {**facts["left_out"]}
            for reason, count in outcome.left_out.items():
                left[reason] = left.get(reason, 0) + count
            awaited = {"failed_again": outcome.again, "no_outcome": outcome.unknown}
            more = awaited if self.outcome_s is not None else {}
            typer.echo(json.dumps({**facts, "left_out": left, "sent": outcome.sent, **more}))
            return
        where = ", ".join(run.targets(plan))
        typer.echo(f"{counted(outcome.sent, 'letter')} sent" + (f" to {where}" if where else ""))
        for reason, count in outcome.left_out.items():
            typer.echo(f"  {count:,} left out: {cut(reason, LINE_CHARS_MAX)}")
        if self.outcome_s is not None:
            typer.echo(f"  {outcome.again:,} of them failed again")
            if outcome.unknown:
                typer.echo(f"  {outcome.unknown:,} of them had no outcome in time")


def _print(wanted: Wanted, plan: Plan, readers: dict[str, list[str]]) -> None:
    """Print what would be sent where, and the reasons of letters that are left out."""
    typer.echo(
        f"{wanted.topic}: {counted(plan.letters, 'letter')}, {plan.brought:,} brought back already"
    )
    for reason, count in plan.left_out.items():
        typer.echo(f"  {count:,} left out: {reason}")
    types = plan.types().most_common()
    named = ", ".join(f"{cut(kind, 60)} {count:,}" for kind, count in types[:TYPES_SHOWN])
    more = f" and {len(types) - TYPES_SHOWN} more types" if len(types) > TYPES_SHOWN else ""
    typer.echo(f"{counted(len(plan.going), 'letter')} to send" + (f": {named}{more}" * bool(types)))
    for topic, names in readers.items():
        typer.echo(f"  {read_by(topic, names)}")
    if plan.stale:
        done = {"skip": "left out", "replay": "sent all the same"}.get(
            wanted.rules.stale or "", "left out" if wanted.rules.stale else "--stale decides"
        )
        typer.echo(f"{plan.staleness()}: {done}")


def _lines(value: bytes | None) -> list[str]:
    if value is None:
        return ["null"]
    try:
        text = json.dumps(json.loads(value), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = text_of(value)
    return text[:VALUE_CHARS_MAX].splitlines()


def _asked(option: str, question: str, answers: Sequence[Any]) -> Any:
    """The answer from the terminal; None without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    given = typer.prompt(f"{question} ({' | '.join(answers)}; {option})", err=True).strip()
    if given not in answers:
        raise ConfigError(f"{given!r:.40} is none of {', '.join(answers)}")
    return given


def repair_of(target: str) -> Repair:
    """The function of --map: takes a perkey.Record, returns the new value."""
    name, colon, attribute = target.partition(":")
    if not (name and colon and attribute) or name.endswith(".py"):
        raise ConfigError(f"--map {target:.80}: write MODULE:FUNCTION, such as repairs:fix")
    function = getattr(load_module(name), attribute, None)
    if not callable(function):
        raise ConfigError(f"--map {target:.80}: {name} has no function {attribute}")
    check_quick(f"--map {target:.80}", function, "fix")

    def repaired(record: Record[Any]) -> Record[Any] | None:
        where = f"{record.topic}:{record.partition}:{record.offset}"
        try:
            returned = function(record)
            if isinstance(returned, Record):
                raise BadReturn("it returned a record: return its value, or perkey.Produce(...)")
            messages = [] if returned is None else messages_of(record, returned, record.topic)
        except Reject:
            raise
        except BadReturn as error:
            raise ConfigError(f"--map {target}, record {where}: {error}") from error
        except Exception as error:
            raise ConfigError(
                f"--map {target} raised at record {where}: {type(error).__name__}: {error}; raise "
                "perkey.Reject to leave a letter out"
            ) from error
        if not messages:
            return None
        if len(messages) > 1 or messages[0].key != record.key or messages[0].topic != record.topic:
            raise ConfigError(
                f"--map {target}, record {where}: one value comes back, under the same key"
            )
        own = dict(messages[0].headers)
        headers = (*(one for one in record.headers if one[0] not in own), *own.items())
        return record._replace(value=messages[0].value, headers=headers)

    return repaired
