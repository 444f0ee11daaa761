"""Simulator of the transactional Kafka sink: drivers, tasks, zombies and layouts from a seed.

- `kafka`: a model of Kafka's transactions, which answers the steps of `perkey.spark.sink.protocol`.
- `world`: a query that is killed and started again with other numbers of tasks, and the promises.
- `runner`: many seeds.  `mutants`: ways to break the protocol, which it must see.
"""
