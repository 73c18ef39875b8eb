"""Processes of a run: starting daemons, restarting them when they die, and stopping them in order.

Only `soak.app` and `soak.cli` import it. Start with `run.py`; `pool.py` runs all producers or consumers as
one systemd service, `sidecar.py` one extra daemon, and `run_end.py` waits until a run is over.
"""
