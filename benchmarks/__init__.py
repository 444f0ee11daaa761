"""Speed and memory of Weft beside bare sleeps and the Java Parallel Consumer, on a real broker."""
