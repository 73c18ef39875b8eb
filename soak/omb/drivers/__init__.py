"""Drivers of the benchmark, one module each: `PREFIX` begins its `driverClass`, `take` converts its file.

`soak.omb.plan_import` finds them by name. Open `kafka` first.
"""
