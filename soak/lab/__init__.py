"""The lab: real brokers, drives and networks on this machine, and faults that are injected into them.

`soak run` starts a lab if the plan names no brokers, `soak lab` starts one that stays up, and drills inject
a known fault into a run to see whether the detector finds it. Only `soak.app`, `soak.cli` and the tests
import it. Open `lab.py` first, then `ports.py`; `faults/` holds what can be injected, `drills/` judges runs.
"""
