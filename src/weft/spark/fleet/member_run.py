"""A run that is one member of a fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.kafka.connect import AdminPort
from weft.runtime.member import Member
from weft.runtime.reports import ResultStream
from weft.runtime.run import Run

if TYPE_CHECKING:
    from weft.app import App


class MemberRun(Run):
    """The runtime of one process, with what its host needs to see and to hurry."""

    def __init__(
        self,
        app: App,
        *,
        stream: ResultStream | None,
        instance_id: str | None,
        checked: bool,
    ) -> None:
        """`instance_id` is the member's static id in the group, None for a dynamic one.

        `checked`: an earlier life on an executor has found the cluster in order.
        """
        self.instance_id = instance_id
        self._checked = checked
        super().__init__(app, until=None, stream=stream)

    def _check(self, admin: AdminPort) -> list[str]:
        # Coming back is a matter of half a second, and asking again would take a part of that.
        return self._routes.topics if self._checked else super()._check(admin)

    @property
    def member(self) -> Member | None:
        """The member, once it has been made."""
        return self._member

    @property
    def may_restart(self) -> bool:
        """It broke in a way that a new one in its place may not."""
        return self._member is None or self._member.may_restart

    def hurry(self, drain_timeout_s: float) -> None:
        """A stop may take no longer than this from now on."""
        if self._member is not None:
            config = self._member.config
            config.drain_timeout_s = min(config.drain_timeout_s, drain_timeout_s)

    def latencies(self) -> dict[str, list[float]]:
        """Samples of the calls' durations in seconds, by handler."""
        return {plan.spec.name: plan.latency.samples() for plan in self._plans}
