"""The producer daemon, which sends on a fixed schedule and records what the cluster acknowledged.

Only `soak.app` and `soak.cli` import it. Start with `loop.py`: each tick lets the clients (`client.py`) send
the messages that are due (`pacing.py`) from prepared blocks (`messages.py`), matches acknowledgements
(`in_flight.py`), and once a second writes a record (`interval.py`).
"""
