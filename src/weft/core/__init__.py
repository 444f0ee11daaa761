"""The pure core: events in, effects out. No I/O, no clock, no thread, no randomness.

Read in this order: `states` (what a record, a partition and a commit can be), `events` and
`effects` (all that goes in, all that comes out), `work` (one record on its way through the core),
`partition` (one epoch: its `offsets`, `lanes`, `reach` and commit), `handler` (whose turn it is),
`engine_state` (all that is held), `engine` (the only door), `delivery` (what each way of delivery
decides).
"""
