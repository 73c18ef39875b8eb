"""The brokers that a lab can start, one plug-in each: `kafka`, `pulsar`, `pulsar_apart`.

A plug-in has `LOCK` (its jars), `MOST_NODES`, `start` and `broker_settings`; what it starts implements
`soak.lab.ports.Running`. `soak.lab.lab` and the tests import them. Open `kafka.py` first.
"""
