"""How `make test` deals tests out to its workers: what shares something dear stays with one."""

from __future__ import annotations

from functools import cache
from typing import Any

from xdist.scheduler import LoadScheduling

#: What the first worker begins with, the second and so on: begins of ids.
SHARING = (
    # the Spark session
    ("spark/test_fleet_secrets", "spark/test_fleet_session", "spark/test_process",
     "spark/test_fleet_table.py::test_what_cannot_be",
     "spark/test_replay_command.py::test_records", "spark/test_sink.py", "spark/test_source"),
    # a broker that may be killed, one that refuses rights, three nodes
    ("matrix", "test_admin", "test_broker_local", "test_dlq_cli", "test_doctor_cli",
     "test_offline_partition", "app/test_control_rights", "app/test_seen", "app/test_why_causes",
     "app/test_stopping.py::test_a_stop_with_the_brokers", "delivery/test_refused_outputs",
     "delivery/test_transactions", "processes/test_broker_away", "spark/test_fleet_lost"),
    # a Connect server, and what starts a Java of its own
    ("spark/test_fleet_connect", "spark/test_fleet_table", "spark/test_fleet_kills"),
    # a browser
    ("page",),
    # what takes longest of all, and PostgreSQL
    ("test_demo", "ledger"),
)  # fmt: skip
BEGINS = tuple(tuple(f"tests/integration/{name}" for name in names) for names in SHARING)


@cache
def group_of(test: str) -> int:
    """Whose test it is: the number of a worker, or -1 where nothing is shared."""
    return next((number for number, begins in enumerate(BEGINS) if test.startswith(begins)), -1)


class Dealing(LoadScheduling):
    """A worker begins with its own, goes on with what nobody shares, and ends with what is left.

    Groups of xdist's own would do the same, but 3.8 never ends with them once a worker has died.
    """

    def _send_tests(self, node: Any, num: int) -> None:
        worker = self.nodes.index(node)
        for place in range(min(num, len(self.pending))):
            self.pending.insert(place, self.pending.pop(self._next(worker, place)))
        super()._send_tests(node, num)

    def _next(self, worker: int, begin: int) -> int:
        """Where in `pending` the worker's next test is; a sort for each test took a minute."""
        collection = self.collection or []
        for group in (worker, -1):
            for place in range(begin, len(self.pending)):
                if group_of(collection[self.pending[place]]) == group:
                    return place
        return begin
