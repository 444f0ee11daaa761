"""One run of an app: prepared, started, watched, stopped, reported.

`run` is the handle; `preflight` checks before the start, `watching` during it, `drain` and `exits`
end it. `control` takes orders, `result_stream` yields results, `run_snapshot` reports.
"""
