"""What a run exposes: a log, a socket, HTTP, a topic.

Everything here reads one JSON, the snapshot; only `weft.account` reads the engine.
"""
