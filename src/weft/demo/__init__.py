"""`weft demo`: the main job from end to end, on a real broker, a real Spark and a real service."""
