"""`process`: a handler over the records of a DataFrame, with Weft's core in each task."""

from weft.spark.processing.operator import once, process, replay

__all__ = ["once", "process", "replay"]
