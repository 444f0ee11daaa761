"""The pure core: events in, effects out. No I/O, no clock, no thread, no randomness.

Every module from the ground up; one imports only those of lower floors (types apart)::

    1  states        the states of a record, an epoch and a commit
    1  events        all input
    1  effects       all output
    2  work          one record on its way, and its failures
    3  gates         why a member, a handler or a partition starts nothing; outages, brakes
    3  offsets       which offsets are done, and which may start
    3  lanes         who waits behind whom
    3  batching      several records in one call
    3  budgets       token buckets; what handlers share of a service
    3  commands      hold, release, retry, skip
    4  portions      what goes into one transaction
    4  retries       when a failed record is tried again; parked ones that are given up
    4  scheduling    what starts, what is fetched, what is paused
    4  memory        what is kept of records that wait for long
    5  partition     one epoch: its offsets, lanes and commit
    5  commits       what is committed, and when
    6  delivery      the rules of each delivery mode
    6  endings       what happens to a record when its call ends
    7  engine_state  all data, and the epochs that open and close in it
    8  engine        the only entry

Start with `engine`, follow one record through `endings`, and keep `states` at hand.
"""
