"""The runtime simulator: the real runtime on a scheduler that decides who runs next.

`simulators.core` plays the core with a stand-in for the runtime. Here it is the other way round:
whole apps run as they are (polling thread, door, executors, loops, outputs, transactions, drain),
on the in-memory broker with its answers late, lost or refused. Threads, locks, queues, event loops
and clocks are replaced by ones that a seed drives, so one seed is one interleaving, in virtual
time, and can be played again.

Worker processes are simulated, too: their pipes, their deaths, and the real code at both ends.

Read `scheduler` (who runs next), `patches` (what is replaced, the only seam), `setup` (what one
seed is), `world` (what happens), `oracle` (what is checked), `mutants` (proof that it sees).
"""
