"""Drills: a plan, a fault that is injected into its run, and the verdict on what the detector made of it.

`soak.app` runs them for `soak lab drill` and `soak lab matrix`. Open `drill.py` first, then `injection.py`
and `verdict.py`.
"""
