"""The faults that a drill can inject, several to a module by topic.

A module lists its faults by name in `FAULTS`; any module of this package that has one is found, so a new
fault needs no list elsewhere. `soak.lab.drills` looks them up through `registry.py`. Open `registry.py` and
`network.py` first.
"""
