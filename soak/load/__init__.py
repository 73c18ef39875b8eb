"""The load of a run: the producer and consumer daemons, and what both measure about themselves.

Only `soak.app` and `soak.cli` import it. Start with `producer/loop.py` and `consumer/loop.py`;
`leaders.py`, `latency.py` and `client_waits.py` are shared by both.
"""
