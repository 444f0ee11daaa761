"""How `make test` deals tests out to its workers: what shares something dear stays with one."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScheduling

#: These need the Spark session, or a broker that may be killed or refuses rights: begin of the id.
SHARING = tuple(
    f"tests/integration/{name}"
    for name in (
        "spark/test_fleet_session", "spark/test_fleet_table", "spark/test_process",
        "spark/test_sink", "spark/test_source", "matrix", "test_admin", "app/test_seen",
        "app/test_why_causes", "delivery/test_refused_outputs", "processes/test_broker_away",
    )
)  # fmt: skip


class Dealing(LoadScheduling):
    """One worker begins with what shares, the others with the rest; then each takes what is left.

    Groups of xdist's own would do the same, but 3.8 never ends with them once a worker has died.
    """

    def _send_tests(self, node: Any, num: int) -> None:
        sharing = node is self.nodes[0]
        collection = self.collection or []
        self.pending.sort(key=lambda n: (collection[n].startswith(SHARING) is not sharing, n))
        super()._send_tests(node, num)
