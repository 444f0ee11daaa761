"""The runtime: threads and I/O around the pure core.

`door` lets one thread at a time into the engine; `member` owns the polling thread; `aio` and
`threads` call the handlers; `outputs` produces what they return.
"""
