"""Sinks: each module is a plug-in that sends a message to people, by mail or to an Alertmanager.

A sink is a module with a `Config` and `build(config)`, found by its file name; `soak.alerting` loads it. It
imports `soak.core` and `soak.clients` only. Open `mail` first; the port is `Sink` in `soak.core.ports`.
"""
