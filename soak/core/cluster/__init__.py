"""What a run can know about the cluster in advance: durability level, speed of its drives, retention forecast.

Brokers, probes, the application and the report import it; nothing here does IO. Open `durability` first.
"""
