"""What a run exposes: a log, a socket, HTTP, a topic.

Everything here reads one JSON, the snapshot; only `perkey.account` reads the engine.
`metrics` and `page` show it, `why` explains one record, `orders` carries commands to a run.
"""
