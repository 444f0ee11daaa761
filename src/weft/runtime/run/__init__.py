"""One run of an app: made ready, started, watched, stopped, reported; over both other rooms."""
