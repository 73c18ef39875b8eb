"""What the online detector does on the noise of a given cluster: its false alarms and the steps that it sees.

Begin with `simulation.py`, which runs the detector on series made of quiet stretches (`quiet_rows`) and
extends what it counts to the set rate (`extrapolation`). Used by `soak calibrate` and the report.
"""

from __future__ import annotations

from detectors.calibration.simulation import (
    KIND,
    LEAST_ROWS,
    MONTH_NS,
    PROBABILITY,
    RUN_ROWS,
    FalseAlarms,
    Power,
    false_alarms,
    least_values,
    power,
)

__all__ = [
    "KIND",
    "LEAST_ROWS",
    "MONTH_NS",
    "PROBABILITY",
    "RUN_ROWS",
    "FalseAlarms",
    "Power",
    "false_alarms",
    "least_values",
    "power",
]
