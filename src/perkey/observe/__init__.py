"""What a run exposes: a log, a socket, HTTP, a topic.

Everything here reads one JSON, the snapshot; only `perkey.account` reads the engine.
"""
