"""One Spark job a member. Spark retries its task; when Spark gives up, the job is submitted again.

A job of its own for each, because a job fails as a whole: the death of one member would take the
others with it wherever Spark's retries are used up, which a plain `local[N]` has none of.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

from weft.spark.fleet.member_task import MemberTask
from weft.spark.fleet.session import FleetSession


class MemberJobs:
    """The jobs of all members."""

    def __init__(
        self,
        session: FleetSession,
        group: str,
        describe: Callable[[MemberTask], str],
        next_task: Callable[[MemberTask, BaseException | None], MemberTask | None],
    ) -> None:
        """`next_task` gets the end of a job and returns what to submit now, if anything."""
        self._session, self._group = session, group
        self._describe, self._next_task = describe, next_task
        self._threads: list[threading.Thread] = []

    def submit(self, tasks: list[MemberTask]) -> None:
        """Start a job for each of these; returns at once."""
        for task in tasks:
            thread = self._session.thread(
                functools.partial(self._run, task), f"weft-job-{task.index}"
            )
            self._threads.append(thread)
            thread.start()

    def cancel(self) -> None:
        """End what still runs; members that have not left are killed."""
        self._session.cancel(self._group)

    def join(self, timeout_s: float) -> bool:
        """Wait for the jobs to end; False when some did not."""
        for thread in self._threads:
            thread.join(timeout_s)
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self, first: MemberTask) -> None:
        task: MemberTask | None = first
        while task is not None:
            error: BaseException | None = None
            try:
                self._session.hold(task, self._group, self._describe(task))
            except Exception as raised:
                error = raised
            task = self._next_task(task, error)
