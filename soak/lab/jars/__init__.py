"""The jars of the lab's brokers: pinned in lock files, fetched from Maven Central once, verified and cached.

`soak.lab.brokers` and the benchmarks fetch through `cache.py`, which is the module to open first.
"""
