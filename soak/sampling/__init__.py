"""Reads the probes of a plan once a second and records what they return; measures idle drives before a run.

Imported by `soak.app` and `soak.lab`; imports `probes`, `soak.runtime` and `soak.store`. Open `daemon`
first: it records the rows that `scheduler` makes. `backfill` records the seconds before a late start,
`drive_check` is `soak check --drives`.
"""
