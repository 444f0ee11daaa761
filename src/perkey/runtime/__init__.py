"""The runtime: threads and I/O around the pure core, in three packages.

`run` is one run of an app. It uses `member` (the polling thread and its work) and `calls` (how
handlers are called), which do not import each other. Below them: `door` lets one thread at a time
into the engine; `handling` holds what both know of a handler.
"""
