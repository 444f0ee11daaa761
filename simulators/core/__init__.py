"""The deterministic simulator: the core, the in-memory broker, a virtual clock and faults.

One seed is one life of a group: members that join, fail, hang, lose partitions, crash and come
back, on a broker that delays, refuses and forgets. An oracle keeps its own account of what
happened outside the engine and checks the promises S1 to S10, L1, L2 and L4 (docs/guarantees.md).

Read `setup` (what one seed is), `member` (the runtime's stand-in), `oracle` (what is checked),
`world` (one seed), `steps` (its life), `mutants` (proof that the checks see).
"""
