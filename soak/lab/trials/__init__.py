"""Trials: troubles drawn at random on a cluster with background work, and how many of them were reported.

A drill shows one known fault; trials judge the detector on troubles that it was not tuned for. Only
`soak.app` and the tests import this package. Open `schedule.py` first, then `side_task.py` and `outcome.py`.
"""
