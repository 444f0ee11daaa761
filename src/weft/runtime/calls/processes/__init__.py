"""Worker processes for CPU-bound handlers: spawned, one pipe each, no pool.

`protocol` is what crosses the pipe, `worker` the child, `link` the parent's end of one child,
`executor` gives the records out.
"""
