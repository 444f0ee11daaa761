"""The Kafka source: a pure-Python Spark data source on confluent-kafka, without a jar.

- `options`, `bounds`, `javanames`: the user's options, checked and translated.
- `offsets`, `ranges`, `plan`: what is read next; pure.
- `cluster`: the driver's queries to the brokers.  `fetch`, `arrow`: reading in the tasks, with
  consumers that are kept.  `secrets`: references to secrets.
- `batch`, `stream`: the classes that Spark calls.
"""
