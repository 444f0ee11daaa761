"""`process`: a handler over the records of a DataFrame, with Perkey's core in each task.

`operator` is the step of a DataFrame, `settings` its options, `task` the work in one task.
`intake` turns Arrow batches into records, `rows` results into rows; `typed` skips the bytes.
"""

from perkey.spark.processing.operator import once, process, replay

__all__ = ["once", "process", "replay"]
