"""What kinds mean for causes and words."""

from __future__ import annotations

from dataclasses import replace

from detectors.attribution import attribute
from detectors.nearby import Nearby
from soak.core import wording
from soak.core.model import Change, Finding

P99 = 'produce.0@h|publish_latency_seconds{quantile="0.99"}'
DRIFT = Change(P99, 9000, 2000, (1100, 2900), 0.004, 0.02, "confirmed", 0.99, "drift")
SPIKES = Change(
    P99, 900, 300, (248, 303), 0.004, 0.014, "confirmed", 0.99, "spikes", None, 52.1, 3.0
)


def test_spikes_are_reported_with_their_period_whatever_causes_them() -> None:
    (why,) = attribute(SPIKES, Nearby(0, 1200))

    assert why.evidence[-1].text == "p99 publish latency spikes every 52.1 s, 3 s long, to 14 ms."
    assert why.evidence[-1].numbers["period_seconds"] == 52.1


def test_no_cause_shares_the_instant_of_a_drift() -> None:
    assert [why.cause for why in attribute(DRIFT, Nearby(0, 9000))] == ["unknown"]


def test_words_name_the_kind_where_it_is_no_step() -> None:
    finding = Finding(
        "r-1", "r", 9000, 2000, (1100, 2900), P99, "drift", 0.004, 0.02, "confirmed", 0.99, True
    )

    assert wording.change_text(finding) == "drifting 4 ms -> 20 ms (x5)"
    assert wording.change_text(replace(finding, kind="step")) == "4 ms -> 20 ms (x5)"
