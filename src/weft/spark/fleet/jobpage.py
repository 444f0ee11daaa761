"""A running job's description in Spark's UI, changed while it runs.

PySpark has a description for a job as it is submitted, and none after that. The UI reads its rows
from a store that Spark's Java lets us write to; the event log keeps the first description. Where a
version of Spark has no such store the first one simply stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext

#: What a job is described as when it is submitted, and what we put behind it.
_LINE = re.compile(r"^(?P<first>.*: member (?P<index>\d+) of \d+.*?)(?: · .*)?$")
#: The fields of a row in the order of its constructor; the third is the description.
_FIELDS = (
    "jobId", "name", "description", "submissionTime", "completionTime", "stageIds", "jobGroup",
    "jobTags", "status", "numTasks", "numActiveTasks", "numCompletedTasks", "numSkippedTasks",
    "numFailedTasks", "numKilledTasks", "numCompletedIndices", "numActiveStages",
    "numCompletedStages", "numSkippedStages", "numFailedStages", "killedTasksSummary",
)  # fmt: skip


def describe_job(context: SparkContext, job: int, members: Mapping[int, str]) -> None:
    """Put the member's text behind the description of its job, if that runs.

    Raises what py4j raises where this Spark has no such store.
    """
    jvm: Any = context._jvm  # noqa: SLF001  # the gateway has no public name
    store: Any = context._jsc.sc().statusStore()  # noqa: SLF001  # nor has the Java context
    row = store.job(job)
    found = _LINE.match(str(row.description().get())) if row.description().isDefined() else None
    if found is None or str(row.status()) != "RUNNING" or int(found["index"]) not in members:
        return
    text = f"{found['first']} · {members[int(found['index'])]}"
    values = [getattr(row, name)() for name in _FIELDS]
    values[2] = jvm.scala.Some(text)
    api, status = jvm.org.apache.spark.status.api.v1, jvm.org.apache.spark.status
    wrapper = store.store().read(_class_of(jvm, "org.apache.spark.status.JobDataWrapper"), job)
    fresh = status.JobDataWrapper(
        api.JobData(*values), wrapper.skippedStages(), wrapper.sqlExecutionId()
    )
    store.store().write(fresh)


def _class_of(jvm: Any, name: str) -> Any:
    return jvm.java.lang.Class.forName(name)
