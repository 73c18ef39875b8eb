"""What kinds mean for incidents, causes and words."""

from __future__ import annotations

from dataclasses import replace

from detectors.attribution import attribute
from detectors.incidents import group
from detectors.nearby import Nearby
from soak.core import wording
from soak.core.model import Change, Finding

P99 = 'produce.0@h|publish_latency_seconds{quantile="0.99"}'
P50 = 'produce.0@h|publish_latency_seconds{quantile="0.5"}'
DRIFT = Change(P99, 9000, 2000, (1100, 2900), 0.004, 0.02, "confirmed", 0.99, "drift")
SPIKES = Change(
    P99, 900, 300, (248, 303), 0.004, 0.014, "confirmed", 0.99, "spikes", None, 52.1, 3.0
)


def test_drifts_that_begin_together_are_one_incident_and_a_step_is_another() -> None:
    """Their onsets lie minutes apart: a drift has no instant."""
    other = replace(DRIFT, series=P50, onset_k=2600, interval=(1700, 3500))
    step = Change(P50, 2010, 2000, (2000, 2000), 0.004, 0.02, "confirmed", 0.99)

    assert [len(one.changes) for one in group([DRIFT, other, step])] == [1, 2]


def test_spikes_of_one_period_are_one_incident() -> None:
    same = replace(SPIKES, series=P50, onset_k=301, interval=(249, 304), period_seconds=52.0)
    another = replace(same, period_seconds=13.0)

    assert len(group([SPIKES, same])) == 1
    assert len(group([SPIKES, another])) == 2


def test_a_step_names_the_incident_that_it_shares_with_a_tail() -> None:
    tail = replace(DRIFT, raised_k=110, onset_k=100, interval=(98, 102), kind="tail")
    step = replace(tail, series=P50, raised_k=111, kind="step")
    (incident,) = group([tail, step])

    assert incident.headline.kind == "step"


def test_spikes_are_told_with_their_period_whatever_causes_them() -> None:
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
