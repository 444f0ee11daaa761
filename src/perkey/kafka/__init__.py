"""The Kafka side: the only package that talks to a broker.

`ports` defines what the runtime asks for; `consumer`, `producer`, `transactions` and `admin` do it
with librdkafka. `settings` and `connect` turn the user's properties into clients.
"""
