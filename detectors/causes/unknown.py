"""No known cause passes: a wrong cause is worse than none, so say what else changed and stop there."""

from __future__ import annotations

from detectors.channels import is_told
from detectors.nearby import Nearby, when
from soak.core import wording
from soak.core.model import Change, Evidence, Explanation
from soak.core.series import source_of

NEXT = "see in the report which series changed; ask what was done then"

_SECONDS = 10
_MOST = 5


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return, with score 0, which other channels changed at the onset."""
    at_onset = sorted(
        (
            other
            for other in nearby.changes
            if other.state in {"confirmed", "gone"}
            and not is_told(other)
            and abs(other.onset_k - change.onset_k) <= _SECONDS
        ),
        key=lambda other: (abs(other.onset_k - change.onset_k), other.series),
    )
    evidence = [
        Evidence(
            f"{wording.title(other.series)} of {source_of(other.series)} went from "
            f"{wording.amount_of(other.series, other.before)} to "
            f"{wording.amount_of(other.series, other.after)}, "
            f"{when(other.onset_k - change.onset_k)} of the step.",
            {"onset_k": other.onset_k, "before": other.before, "after": other.after},
        )
        for other in at_onset[:_MOST]
    ]
    if not evidence:
        evidence = [
            Evidence(
                f"None of the other series watched changed within {_SECONDS} s of the onset "
                f"of the step."
            )
        ]
    return Explanation("unknown", 0.0, tuple(evidence))
