"""`python -m demo`: the main job from end to end, on real Kafka, Spark and an HTTP service."""
