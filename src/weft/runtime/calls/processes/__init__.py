"""Worker processes for CPU-bound handlers: spawned, with one pipe each, without a pool.

`protocol` is what crosses the pipe, `worker` the child, `link` the parent's end of one child,
`executor` gives the records out.
"""
