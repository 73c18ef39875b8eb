"""What several probes share: polling threads, block devices, growth of counters, metrics pages, TOML tables.

Imported by probes, and by `soak.sampling`, `soak.conductor` and `soak.lab` for threads and devices. It
imports no probe. Open `polling` first.
"""
