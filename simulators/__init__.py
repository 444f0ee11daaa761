"""Proof by simulation: the core and the whole runtime, with random faults in virtual time.

`core` plays the engine with a stand-in for the runtime, `runtime` whole apps on a scheduler, `sink`
the transactional sink for Spark; `seeds` deals seeds out. `python -m simulators` runs them.
"""
