"""A change and a finding of run `run1` with any field replaced."""

from __future__ import annotations

from soak.core.model import Change, Evidence, Explanation, Finding
from soak.core.units import SECOND_NS

NOW = 1_790_000_000 * SECOND_NS
SERIES = 'consume.0@h|end_to_end_latency_seconds{quantile="0.99"}'


def change(state: str = "warning", **other: object) -> Change:
    values: dict[str, object] = {
        "series": SERIES,
        "raised_k": 130,
        "onset_k": 123,
        "interval": (122, 125),
        "before": 0.0041,
        "after": 0.061,
        "state": state,
        "confidence": 0.99,
    }
    return Change(**{**values, **other})  # type: ignore[arg-type]  # the fields of a change


CAUSES = (
    Explanation(
        "retention_cliff",
        0.93,
        (
            Evidence("First deletion 1 s before the step.", {"seconds": 1}),
            Evidence("Latency rises at each of 57 deletions.", {"deletions": 57}),
        ),
    ),
    Explanation("client", 0.02, ()),
)


def finding(state: str = "confirmed", **other: object) -> Finding:
    values: dict[str, object] = {
        "key": "run1-130",
        "run": "run1",
        "raised_k": 130,
        "onset_k": 123,
        "interval": (122, 125),
        "series": SERIES,
        "kind": "step",
        "before": 0.0041,
        "after": 0.061,
        "state": state,
        "confidence": 0.99,
        "is_about_cluster": True,
        "causes": CAUSES,
        "changes": ("produce.0@h|publish_latency_seconds",),
        "is_settled": True,
    }
    return Finding(**{**values, **other})  # type: ignore[arg-type]  # the fields of a finding
