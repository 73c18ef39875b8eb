"""What is known about a cluster before a run: durability level, speed of its drives, retention forecast.

Brokers, probes, the application and the report import it; nothing here does IO. Open `durability` first.
"""
