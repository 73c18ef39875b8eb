"""The consumer daemon, which reads all messages of its partitions and records latency, loss and order.

Only `soak.app` and `soak.cli` import it. Start with `loop.py`; `sequence_tracker.py` holds what was received,
`interval.py` the counts of one second.
"""
