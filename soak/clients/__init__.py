"""What clients of outside systems share: HTTP, Pulsar's admin interface, secrets, errors of librdkafka.

Everything above `soak.core` may import it; it imports only `soak.core`. Open `client_settings` first.
"""
