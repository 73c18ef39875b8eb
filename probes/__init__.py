"""Probes: what is measured apart from the load, such as disks, clocks, retention and the metrics of brokers.

A probe is a module or a package of this folder and is found by its name: it defines `Config` and
`build(config, clock)`, whose result has `read()` and `close()` (`soak.core.ports.Probe`). What several probes
share is in `probes.common`. Imported by `soak.sampling`, `soak.app` and `soak.lab`; imports `soak.core` and
`soak.clients`. Open `pressure` first: it is the smallest probe.
"""
