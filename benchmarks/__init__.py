"""Speed and memory of Perkey beside bare sleeps and the Java Parallel Consumer, on a real broker."""
