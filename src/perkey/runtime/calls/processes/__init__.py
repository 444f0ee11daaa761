"""Worker processes for CPU-bound handlers: spawned, with one pipe each, without a pool.

`protocol` defines the messages on the pipe, `worker` is the child, `link` the parent's end of one
child, and `executor` distributes the records.
"""
