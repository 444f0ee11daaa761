"""How `make test` deals tests out to its workers: what shares something dear stays with one."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScheduling

#: What the first worker begins with, the second and so on: begins of ids.
SHARING = (
    # the Spark session
    ("spark/test_fleet_secrets", "spark/test_fleet_session", "spark/test_process",
     "spark/test_fleet_table.py::test_what_cannot_be",
     "spark/test_replay", "spark/test_sink", "spark/test_source"),
    # a broker that may be killed, one that refuses rights
    ("matrix", "test_admin", "app/test_seen", "app/test_why_causes", "delivery/test_refused_outputs",
     "processes/test_broker_away"),
    # a Connect server, and what starts a Java of its own
    ("spark/test_fleet_connect", "spark/test_fleet_table", "spark/test_fleet_kills"),
    # a browser
    ("page",),
)  # fmt: skip


def group_of(test: str) -> int:
    """Whose test it is: the number of a worker, or -1 where nothing is shared."""
    begins = (tuple(f"tests/integration/{name}" for name in names) for names in SHARING)
    return next((number for number, names in enumerate(begins) if test.startswith(names)), -1)


class Dealing(LoadScheduling):
    """A worker begins with its own, goes on with what nobody shares, and ends with what is left.

    Groups of xdist's own would do the same, but 3.8 never ends with them once a worker has died.
    """

    def _send_tests(self, node: Any, num: int) -> None:
        worker = self.nodes.index(node)
        collection = self.collection or []

        def turn(number: int) -> tuple[int, int]:
            group = group_of(collection[number])
            return (0 if group == worker else 1 if group < 0 else 2), number

        self.pending.sort(key=turn)
        super()._send_tests(node, num)
