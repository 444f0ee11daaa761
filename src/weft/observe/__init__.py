"""What a run shows of itself: to the log, a socket, HTTP, a topic.

Everything here reads one JSON, the snapshot; only `weft.account` reads the engine.
"""
