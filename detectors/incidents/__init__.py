"""Changes into incidents: one period in which users of the cluster were worse off is one incident.

Begin with `incident.py`, which has the life of one and says whether it counts against the cluster;
`grouping.py` says which changes belong to it. Anything above `detectors` may use the names below.
"""

from __future__ import annotations

from detectors.client_seconds import ChangeId, identity
from detectors.incidents.grouping import REJOIN_SECONDS, TOGETHER_SECONDS, group, improvements
from detectors.incidents.incident import Incident, is_regression

__all__ = [
    "REJOIN_SECONDS",
    "TOGETHER_SECONDS",
    "ChangeId",
    "Incident",
    "group",
    "identity",
    "improvements",
    "is_regression",
]
