"""Data sources of `perkey status`, `why` and `top`: local runs, a URL, or a group's reports."""

from __future__ import annotations

import http.client
import json
import re
import shlex
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Annotated, Any

import typer

from perkey.cli.cluster import answering, group_named, settings_of
from perkey.errors import ConfigError, FatalError
from perkey.kafka.following import words_of
from perkey.kafka.ports import Word
from perkey.observe import local
from perkey.observe.asking import is_answer, question
from perkey.observe.group import wanted_of
from perkey.observe.reports import GroupReports
from perkey.observe.sentences import record_sentence, seconds
from perkey.observe.why import why

#: time limits for each step of an answer, and for all of it: bytes that trickle would never end
URL_ANSWER_S, URL_WHOLE_S = 12.0, 30.0
URL_BYTES_MAX = 256 * 2**20

Url = Annotated[
    str | None,
    typer.Option(metavar="URL", help="HTTP address of a run, such as http://127.0.0.1:8080."),
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="For --url: file with its token.")
]


#: the commands in an advice, in backticks: those to members, and those that only ask
ACTING = re.compile(r"`(perkey (?:key|record|pause|resume|set) [^`]+)`")
ASKING = re.compile(r"`(perkey (?:why|status)(?: [^`]+)?)`")
#: most dead processes that are named
GONE_MAX = 5


class Shown:
    """One run that can be queried."""

    def __init__(self, name: str, ask: Any) -> None:
        self.name = name
        #: `{"ask": "snapshot"}` or `{"ask": "why", "where": …, "key": …}` -> the answer
        self.ask = ask


Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        callback=group_named,
        help="Only runs of this group. With --bootstrap-servers: the reports of the whole group "
        "(App(reports=…)).",
    ),
]
Servers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        metavar="HOST:PORT,…",
        help="Broker addresses: read the reports of --group.",
    ),
]
Reports = Annotated[
    str, typer.Option("--reports", metavar="TOPIC", help="For --group: topic of the reports.")
]
REPORTS = "perkey.reports"


@dataclass(frozen=True, slots=True)
class Where:
    """Where a command gets its data."""

    url: str | None = None
    token_file: Path | None = None
    group: str | None = None
    servers: str | None = None
    reports: str = REPORTS
    properties: Mapping[str, str] = field(default_factory=dict)
    config: Path | None = None

    def runs(self) -> list[Shown]:
        """The runs to query; ConfigError if there are none."""
        check_token_file(self.url, self.token_file)
        if self.servers is None:
            if self.reports != REPORTS:
                raise ConfigError("--reports requires --bootstrap-servers: give both")
            if self.properties:
                raise ConfigError(
                    "-X and --config require --bootstrap-servers: a run has its own properties"
                )
            return [
                Shown(one.name, partial(self._asked, one))
                for one in runs_of(self.url, self.token_file, self.group)
            ]
        if self.group is None:
            raise ConfigError("--bootstrap-servers requires --group: give both")
        if self.url is not None:
            raise ConfigError("--bootstrap-servers excludes --url: give one of them")
        shots = self._reported(self.group, self.servers)
        if not shots:
            raise ConfigError(
                f"no member of group {self.group} has reported to {self.reports} within the last "
                f"hour: set App(reports={self.reports!r})"
            )
        return [
            Shown(str(shot["app"]["member"]), partial(self._asked_report, shot)) for shot in shots
        ]

    def _asked(self, run: Shown, question: Mapping[str, Any]) -> Any:
        """The answer of a run, with commands that reach it again."""
        found = run.ask(question)
        group = found.get("group") or found.get("app", {}).get("group") or ""
        if self.group is not None and group not in ("", self.group):
            raise ConfigError(f"no member of group {self.group} at {run.name}, only of {group}")
        return self._with_commands(found, group)

    def _asked_report(self, shot: dict[str, Any], question: Mapping[str, Any]) -> Any:
        found = _reported(shot, question)
        return self._with_commands(found, str(self.group), shot.get("control"))

    def _with_commands(
        self, found: dict[str, Any], group: str, control: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        rows = [
            {**row, "next": self.completed(row.get("next", ""), group, control)}
            for row in found.get("sentences", ())
        ]
        return {**found, "sentences": rows} if rows else found

    def completed(self, text: str, group: str, control: Mapping[str, Any] | None = None) -> str:
        """An advice whose commands reach the same members, as copied."""
        if self.url is not None:
            acting = asking = f"--url {shlex.quote(self.url)}"
            if self.token_file is not None:
                acting = asking = f"{acting} --token-file {shlex.quote(str(self.token_file))}"
        else:
            acting, asking = f"--group {shlex.quote(group)}" if group else "", ""
        if self.servers is not None:
            asking = f"{acting} --bootstrap-servers {shlex.quote(self.servers)}"
            if self.config is not None:
                asking += f" --config {shlex.quote(str(self.config))}"
            if control:
                acting = f"--control {control['topic']} {asking}"
            if self.reports != REPORTS:
                asking += f" --reports {self.reports}"
        text = ACTING.sub(lambda one: f"`{f'{one[1]} {acting}'.strip()}`", text)
        return ASKING.sub(
            lambda one: one[0] if "TOPIC" in one[1] else f"`{f'{one[1]} {asking}'.strip()}`", text
        )

    def _reported(self, group: str, servers: str) -> list[dict[str, Any]]:
        """The members' last reports; invalid ones are one line on stderr."""
        words: dict[bytes, Word] = {}
        settings = settings_of({**self.properties, "bootstrap.servers": servers})
        now, mine = time.time(), wanted_of(group)
        with answering():
            lines = words_of(settings, self.reports)
        for key, value, at in lines:
            now = max(now, at)  # the broker's clock may be ahead
            if key is None or not mine(key):
                continue
            words.pop(key, None)
            if value is not None:
                words[key] = Word(value, at)
        refused: list[str] = []
        shots = GroupReports(group, refused.append).shots(words, now)
        if refused:
            more = f" ({len(refused):,} such reports)" if len(refused) > 1 else ""
            typer.echo(
                f"perkey: a report in {self.reports} is refused: {refused[0]}{more}", err=True
            )
        return shots


def _reported(shot: dict[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Answer from a member's last report, which holds blocking records only."""
    if asked["ask"] == "snapshot":
        return shot
    about = question(asked.get("where"), asked.get("key"))
    of_records = about.key is not None or about.offset is not None
    rows = [
        row
        for row in shot["blockers"]
        if about.topic in (None, row["topic"])
        and about.partition in (None, row["partition"])
        and about.offset in (None, row["offset"])
        and about.key in (None, row["key"])
    ]
    if of_records:
        found = [record_sentence(row, shot["app"]["member"]) for row in rows]
    elif about.topic is None or any(
        (about.topic == row["topic"] and about.partition in (None, row["partition"]))
        for row in shot["partitions"]
    ):
        parts = [{**row, "silent": bool(shot["silent_s"])} for row in shot["partitions"]]
        found = why({**shot, "partitions": parts}, about.topic, about.partition)
    else:
        found = []
    silent = {"silent_s": shot["silent_s"]} if shot["silent_s"] else {}
    return {
        "sentences": [one.row() for one in found],
        "found": rows if of_records else [],
        **silent,
    }


def check_token_file(url: str | None, token_file: Path | None) -> None:
    """ConfigError for a token that nothing would use."""
    if token_file is not None and url is None:
        raise ConfigError("--token-file requires --url: runs on this machine need no token")


def runs_of(url: str | None, token_file: Path | None, group: str | None = None) -> list[Shown]:
    """The runs to query, of this group; then the killed ones as one. ConfigError if none lives."""
    if url is not None:
        return [Shown(url, lambda question: by_url(url, token_file, question))]
    found = [(path, local.group_of(path)) for path in local.runs()]
    runs = [(path, name) for path, name in found if group is None or name in ("", group)]
    killed = killed_text([one for one in local.gone() if group in (None, one.group)])
    if found and not runs:
        others = ", ".join(sorted({name for _, name in found}))
        raise ConfigError(f"no member of group {group} runs here, only of {others}")
    if not found:
        text = f"{killed}. No" if killed else "no"
        raise ConfigError(
            f"{text} running Perkey app found on this machine: start one with `perkey run` "
            "(or PERKEY_SOCKET=1), or give --url, or --group and --bootstrap-servers"
        )
    shown = [Shown(path.stem, partial(local.ask, path)) for path, _ in runs]
    return shown + ([Shown("killed", partial(_gone, killed))] if killed else [])


class Killed(FatalError):
    """What ended without a clean stop: reported after what runs."""


def killed_text(killed: Sequence[local.Gone]) -> str:
    """The killed processes in one line, the latest first; empty if there are none."""
    if not killed:
        return ""
    latest = sorted(killed, key=lambda one: one.found_s)
    named = [f"{one.name.partition('-')[0]}{f' ({one.group})' * bool(one.group)}" for one in latest]
    more = f" and {len(named) - GONE_MAX:,} more" if len(named) > GONE_MAX else ""
    s = "es" if len(named) > 1 else ""
    return (
        f"process{s} {', '.join(named[:GONE_MAX])}{more} ended without a clean stop (kill -9, out "
        f"of memory, a crash?); a perkey command found this first {seconds(latest[0].found_s)} ago"
    )


def _gone(text: str, _question: Mapping[str, Any]) -> dict[str, Any]:
    raise Killed(f"{text}; other members get their partitions after session.timeout.ms")


def by_url(url: str, token_file: Path | None, question: Mapping[str, Any]) -> dict[str, Any]:
    """Query a run over HTTP."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:  # a bracket without its other one
        parts = urllib.parse.urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isascii():
        raise ConfigError(f"--url {url!r:.80}: write http://HOST:PORT")
    given = {name: value for name, value in question.items() if name != "ask" and value is not None}
    page = f"{url.rstrip('/')}/{question['ask']}"
    if question["ask"] == "control":
        body, head = json.dumps(given).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(page, body, head)  # noqa: S310  # checked above
    else:
        query = f"?{urllib.parse.urlencode(given, errors='surrogateescape')}" if given else ""
        request = urllib.request.Request(f"{page}{query}")  # noqa: S310  # checked above
    if token_file is not None:
        try:
            token = token_file.expanduser().read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--token-file {token_file} cannot be read: {error}") from None
        if not (token.isascii() and token.isprintable()):
            raise ConfigError(f"--token-file {token_file} has no token: one line of ASCII")
        request.add_header("Authorization", f"Bearer {token}")
    try:
        body = _within(URL_WHOLE_S, partial(_read, request, url))
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        why = (
            ": is its process suspended, or overloaded?"
            if "timed out" in str(reason)
            else ": does the app run with --http or App(http=...) at this address?"
        )
        raise FatalError(f"{url}: no answer: {reason}{why}") from None
    try:
        found: dict[str, Any] = json.loads(body)
    except ValueError:
        found = {}
    if not is_answer(question["ask"], found):
        raise ConfigError(f"{url}: the server there is not a Perkey run: check the address")
    return found


def _read(request: urllib.request.Request, url: str) -> bytes:
    try:
        with urllib.request.urlopen(request, timeout=URL_ANSWER_S) as answer:  # noqa: S310  # checked above
            body: bytes = answer.read(URL_BYTES_MAX)
            return body
    except urllib.error.HTTPError as error:
        with error:
            reason = _reason(error)
        if error.code == 401 and "token" in reason:
            cure = (
                "give the one in the run's http_token_file"
                if request.has_header("Authorization")
                else "give --token-file FILE, the run's http_token_file"
            )
            reason = f"{reason.partition(':')[0]}: {cure}"
        raise ConfigError(f"{url}: {reason}") from None


def _within(limit_s: float, call: Callable[[], bytes]) -> bytes:
    """Its result or exception; TimeoutError at the limit, and the call's thread is abandoned."""
    ended: Queue[bytes | BaseException] = Queue()

    def run() -> None:
        try:
            ended.put(call())
        except BaseException as error:  # raised again by the waiting thread
            ended.put(error)

    Thread(target=run, daemon=True).start()
    try:
        found = ended.get(timeout=limit_s)
    except Empty:
        raise TimeoutError(f"not whole within {limit_s:.0f} s") from None
    if isinstance(found, BaseException):
        raise found
    return found


def _reason(error: urllib.error.HTTPError) -> str:
    """The reason in a Perkey response; the status alone of any other server."""
    text = error.read(500).decode(errors="replace").strip()
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        ours = error.code in (401, 403) and len(text.splitlines()) == 1
    return (
        text
        if ours
        else f"HTTP {error.code}: the server there is not a Perkey run: check the address"
    )
