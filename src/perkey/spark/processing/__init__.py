"""`process`: a handler over the records of a DataFrame, with Perkey's core in each task."""

from perkey.spark.processing.operator import once, process, replay

__all__ = ["once", "process", "replay"]
