"""The runtime: threads and I/O around the pure core, in three packages.

`run` is one run of an app, over `member` (the polling thread and what it owns) and `calls` (how
handlers are called), which do not know each other. Under all: `door` lets one thread at a time into
the engine, `handling` is what both know of a handler.
"""
