"""The Kafka side: the only package that talks to a broker."""
