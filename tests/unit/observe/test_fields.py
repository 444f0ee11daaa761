"""The table of fields is what snapshots really have."""

from __future__ import annotations

import json

import perkey
from perkey.observe.fields import FIELDS
from perkey.testing import run

#: in some snapshots only
SOMETIMES = {"handlers{}.repeats"}


def names_of(shot) -> set[str]:
    """Every field of a snapshot, in the words of the table."""
    found = set()
    for name, value in shot.items():
        if name in ("partitions", "blockers", "halts", "failures"):
            found.add(f"{name}[]")
            if name != "halts":
                found |= {f"{name}[].{field}" for row in value for field in row}
        elif name in ("parked", "on_hold"):  # their rows are as those of blockers
            found.add(f"{name}[]")
            found |= {f"blockers[].{field}" for row in value for field in row}
        elif name == "handlers":
            found.add("handlers{}")
            found |= {f"handlers{{}}.{field}" for row in value.values() for field in row}
        elif name == "app":
            found |= {"app", *(f"app.{field}" for field in value)}
        else:
            found.add(name)
    return found


def test_every_field_is_in_the_table_and_the_other_way_round():
    """A running app's snapshot has the fields of the table, all JSON, and no others."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "localhost:9092"})
    shots = []

    @app.consume("t", concurrency=1, retry=perkey.Retry(attempts=1))
    def handler(record):
        shots.append(json.loads(json.dumps(app.snapshot())))
        raise ValueError(record.offset)

    run(app, [(b"a", b"1"), (b"a", b"2"), (b"b", b"3")])
    found = set().union(*map(names_of, shots))
    assert found == FIELDS.keys() - SOMETIMES
    assert shots[0]["app"]["group"] == "g"
    (worst,) = shots[0]["blockers"]
    assert (worst["place"], worst["key"], worst["waiting_behind"]) == ("running", "a", 1)
    assert abs(worst["since"] - shots[0]["at"]) < 60
