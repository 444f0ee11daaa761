"""`perkey broker`: start, stop and inspect a real local Kafka."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from perkey.broker.cluster import Cluster
from perkey.broker.state import default_data_dir

app = typer.Typer(no_args_is_help=True)

_Data = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="DIR", help="Data directory; each directory is a separate cluster."
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback()
def _broker() -> None:
    """Run a real Apache Kafka on this machine, without Docker.

    Example: perkey broker up --port 9092
    """


@app.command()
def up(
    port: Annotated[
        int | None,
        typer.Option(
            help="Port of the first node; further nodes use the next ports. Default: a free port."
        ),
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="Number of nodes, 1 to 3. Default: 1.")] = None,
    data: _Data = None,
    as_json: _Json = False,
) -> None:
    """Start a broker and print its bootstrap address when it is ready.

    Running it again prints the same address. Without --data the records are deleted by `perkey
    broker down`; with --data they are kept.

    Example: perkey broker up --port 9092
    """
    cluster = _cluster(data)
    state = cluster.up(nodes, port)
    typer.echo(json.dumps(_status(cluster)) if as_json else state.bootstrap)


@app.command()
def down(data: _Data = None) -> None:
    """Stop the broker. Without --data its records are deleted.

    Example: perkey broker down
    """
    cluster = _cluster(data)
    if not cluster.folder.exists():
        typer.echo("no broker was running", err=True)
        return
    stopped = cluster.down(forget=data is None)
    typer.echo("stopped" if stopped else "no broker was running", err=True)


@app.command()
def status(data: _Data = None, as_json: _Json = False) -> None:
    """Show the nodes, their addresses and their state.

    Example: perkey broker status --json
    """
    found = _status(_cluster(data))
    if as_json:
        typer.echo(json.dumps(found))
        return
    if not found["nodes"]:
        typer.echo("no broker is running: start one with `perkey broker up`")
        return
    table = Table("node", "address", "pid", "state", title=f"{found['data']}: {found['state']}")
    for node in found["nodes"]:
        table.add_row(str(node["id"]), node["address"], str(node["pid"] or ""), node["state"])
    Console().print(table)


def _cluster(data: Path | None) -> Cluster:
    return Cluster(data.expanduser().absolute() if data else default_data_dir())


def _status(cluster: Cluster) -> dict[str, Any]:
    state, living = cluster.state(), cluster.pids()
    nodes = [
        {
            "id": node.id,
            "address": node.address,
            "pid": living.get(node.id),
            "state": "up" if node.id in living else "down",
        }
        for node in (state.nodes if state else [])
    ]
    whole = "down" if not living else "up" if len(living) == len(nodes) else "partial"
    bootstrap = state.bootstrap if state and living else None
    return {"state": whole, "bootstrap": bootstrap, "data": str(cluster.folder), "nodes": nodes}
