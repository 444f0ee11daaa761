"""The Kafka source: a pure-Python Spark data source on confluent-kafka, without a jar.

- `options`, `bounds`, `javanames`: what the user wrote, checked and translated.
- `offsets`, `ranges`, `plan`: what is read next; pure.
- `cluster`: the driver's questions to the brokers.  `fetch`, `arrow`: the tasks' reading, by
  `consumers` that are kept.  `secrets`: what opens them.
- `batch`, `stream`: the classes that Spark calls.
"""
