"""One run of an app: prepared, started, watched, stopped, reported."""
