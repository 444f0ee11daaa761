"""Fills in what the docs take from the code: diagrams, files, tables, commands, Kafka's errors.

`make docs` writes them; a test fails when they are stale (`python docs/generate.py --check`).
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import claims
import import_graph
import kafka_errors
import typer

from perkey.account.account import PLACE_OF_STATE
from perkey.cli.commands import app
from perkey.core.states import (
    COMMIT_NAMES,
    COMMIT_TABLE,
    EPOCH_NAMES,
    EPOCH_TABLE,
    PARKED,
    QUEUED,
    RECORD_NAMES,
    RECORD_TABLE,
    RETRYING,
    STALLED,
)
from perkey.observe import fields

HERE = Path(__file__).parent
SRC = HERE.parent / "src" / "perkey"
#: the folders whose files the architecture page lists one by one: perkey/ (""), then beside it
MAPPED = (
    "", "core", "account", "codec", "kafka", "dlq", "runtime", "runtime/run",
    "runtime/member", "runtime/calls", "runtime/calls/processes", "ledger", "observe", "spark",
    "spark/fleet", "spark/source", "spark/sink", "spark/processing", "spark/table", "broker",
    "testing", "cli", "simulators", "simulators/core", "simulators/runtime", "demo",
)  # fmt: skip
#: where the second page of files begins
SECOND = MAPPED.index("spark")
#: page of docs/reference/commands -> the first words of its commands
COMMANDS = {
    "run": ("run", "stop", "replay", "doctor", "asyncapi", "broker", "topics", "produce"),
    "observe": ("status", "why", "top", "lag", "offsets", "control"),
    "steer": ("key", "record", "pause", "resume", "set"),
    "records": ("parked", "dlq"),
}


def parts() -> dict[str, dict[str, str]]:
    """Of each page its generated parts, by name."""
    drawn = {name: f"```mermaid\n{diagram}\n```" for name, diagram in _diagrams().items()}
    tables = {"fields": fields.table(), "places": fields.places(), "causes": fields.causes()}
    return {
        "architecture.md": drawn | {"waits": _waits()},
        "how-it-works/files.md": {"files": _files(MAPPED[:SECOND])},
        "how-it-works/files-beside.md": {"files": _files(MAPPED[SECOND:])},
        "snapshot.md": tables,
        "how-it-works/proofs.md": {"claims": claims.table(), "figures": claims.figures()},
    } | _command_pages()


def _command_pages() -> dict[str, dict[str, str]]:
    """The list of all commands, and the pages that describe them."""
    rows = ["| command | what it does |", "|---|---|"]
    sections: dict[str, list[str]] = {page: [] for page in COMMANDS}
    for words, command in _commands(typer.main.get_command(app)):
        page = next(page for page, firsts in COMMANDS.items() if words.split()[1] in firsts)
        sections[page].append(_command(words, command))
        about = " ".join(command.help.partition("\n\n")[0].split())
        to = f"reference/commands/{page}.md#{words.replace(' ', '-')}"
        rows.append(f"| [`{words}`]({to}) | {about} |")
    made = {
        f"reference/commands/{page}.md": {"commands": "\n\n".join(texts)}
        for page, texts in sections.items()
    }
    return made | {"command-line.md": {"commands": "\n".join(rows)}}


def _diagrams() -> dict[str, str]:
    """The tables of states as diagrams, by name."""
    return {
        "record": _diagram(RECORD_NAMES, _without_waits(), without="superseded"),
        "epoch": _diagram(EPOCH_NAMES, EPOCH_TABLE),
        "commit": _diagram(COMMIT_NAMES, COMMIT_TABLE),
    }


def _without_waits() -> dict[tuple[int, int], str]:
    """The changes of a record's state without the reasons for which heads wait."""
    kept = {QUEUED, RETRYING, PARKED}
    return {edge: why for edge, why in RECORD_TABLE.items() if not set(edge) & {*STALLED} - kept}


def _waits() -> str:
    """The reasons for which the head of a lane waits: how each begins, and what lifts it."""
    rows = ["| state | place | begins | lifted |", "|---|---|---|---|"]
    for state in STALLED:
        begins = "; ".join(
            dict.fromkeys(why for (_, after), why in RECORD_TABLE.items() if after == state)
        )
        lifted = RECORD_TABLE[state, QUEUED]
        rows.append(f"| {RECORD_NAMES[state]} | `{PLACE_OF_STATE[state]}` | {begins} | {lifted} |")
    return "\n".join(rows)


def _diagram(
    names: tuple[str, ...], table: dict[tuple[int, int], str], *, without: str = ""
) -> str:
    """A Mermaid state diagram of one table; `without` leaves out edges into that state."""
    lines = ["stateDiagram-v2"]
    for (before, after), why in table.items():
        if names[after] != without:
            source, target = names[before].replace(" ", "_"), names[after].replace(" ", "_")
            lines.append(f"    {source} --> {target}: {why}")
    return "\n".join(lines)


def _files(folders: tuple[str, ...]) -> str:
    """Every file, by folder, with the first line it says of itself."""
    return "\n\n".join(_folder(name) for name in folders)


def _folder(name: str) -> str:
    folder = SRC / name if (SRC / name).is_dir() else HERE.parent / name
    about = _first_line(folder / "__init__.py")
    rows = [
        f"| `{path.stem}` | {_first_line(path)} |"
        for path in sorted(folder.glob("*.py"))
        if path.name != "__init__.py"
    ]
    return "\n".join(
        [
            f"## `{name or 'perkey'}/`",
            "",
            about,
            "",
            "| file | what is in it |",
            "|---|---|",
            *rows,
        ]
    )


def _first_line(path: Path) -> str:
    about = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(about.partition("\n\n")[0].split()).replace("|", "\\|")


def _commands(command: Any, words: str = "perkey") -> Iterator[tuple[str, Any]]:
    """Every command with a function of its own, by its words."""
    if not hasattr(command, "list_commands"):
        yield words, command
        return
    context = typer.Context(command)
    for name in sorted(command.list_commands(context)):
        yield from _commands(command.get_command(context, name), f"{words} {name}")


def _command(words: str, command: Any) -> str:
    """What `--help` says, as a section."""
    about, _, example = command.help.partition("Example: ")
    parts = [f"## `{words}`", about.strip(), f"```console\n{' '.join(example.split())}\n```"]
    rows = [_row(one) for one in command.params if one.name != "help"]
    if rows:
        parts.append("\n".join(["| argument, option | meaning |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def _row(one: Any) -> str:
    if one.param_type_name == "argument":
        name = one.metavar or one.name.upper()
    else:
        name = ", ".join(one.opts)
        name += f" {one.metavar}" if one.metavar else ""
    needed = " Required." if one.required else ""
    given = one.default if isinstance(one.default, str | int | float) else None
    default = f" Default: `{given}`." if given not in (None, False, "") else ""
    meaning = (one.help or "").strip()
    return f"| `{name}` | {meaning}{needed}{default} |".replace("…", "...")


def filled(text: str, made: dict[str, str]) -> str:
    """The page with every generated part as the code has it now."""
    for name, content in made.items():
        block = f"<!-- generated: {name} -->\n{content}\n<!-- end -->"
        pattern = rf"<!-- generated: {name} -->.*?<!-- end -->"
        text = re.sub(pattern, block.replace("\\", r"\\"), text, flags=re.DOTALL)
    return text


def main(arguments: list[str]) -> int:
    """Write the pages, or with --check say whether one is stale."""
    stale = False
    whole = {"packages.svg": import_graph.svg(), "kafka-errors.md": kafka_errors.page()}
    for name, content in whole.items():
        path = HERE / name
        stale = stale or not path.exists() or path.read_text("utf-8") != content
        if "--check" not in arguments:
            path.write_text(content, "utf-8")
    for page, made in parts().items():
        path = HERE / page
        text = path.read_text()
        fresh = filled(text, made)
        stale = stale or fresh != text
        if "--check" not in arguments:
            path.write_text(fresh)
    return int(stale and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
