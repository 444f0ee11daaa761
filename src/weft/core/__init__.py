"""The pure core: events in, effects out. No I/O, no clock, no thread, no randomness.

Read in this order: `states` (what a record, a partition and a commit can be), `work` (one record
on its way through the core), `partition` (one epoch: which offsets are done, which wait in which
lane), `handler` (whose turn it is), `engine` (the only door), `delivery/protocol` (what each way of
delivery decides).
"""
