"""The Kafka sink: rows into topics, in batches and streams, without a jar.

- `options`, `columns`: the user's options and rows, checked.
- `plain`: at least once, by an idempotent producer.  `transactions`: each batch once.
- `writers`: the classes that Spark calls.
"""
