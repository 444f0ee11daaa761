"""Speed and memory beside bare sleeps and the Java Parallel Consumer, on a real broker."""
