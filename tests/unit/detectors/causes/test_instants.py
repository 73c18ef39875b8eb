"""What times in evidence count from: the onset of the incident, or a change that they name."""

from __future__ import annotations

from dataclasses import replace

from detectors.attribution import attribute, attribute_breach
from detectors.incidents import Incident
from soak.core.model import Change, Evidence, Explanation
from tests.support.alerting.findings import finding
from tests.support.detection.cause_panels import E2E, ONSET, P99, STEP, around, channel, told

OPENING = Change(
    E2E, ONSET - 24, ONSET - 30, (ONSET - 31, ONSET - 29), 0.004, 0.012, "confirmed", 0.99
)
"""Half a minute before the worst change."""
OUTAGE = replace(
    STEP,
    series="produce.0@h|acknowledgement_outage_seconds",
    interval=(ONSET - 1, ONSET),
    before=0.0,
    after=60.0,
    kind="outage",
)
LATENCY = channel(P99, 0.004, 0.06)
MOVED = told("leader_change", ONSET + 1, topic="soak-t", partition=1, epoch=7)
THROTTLED = told("throttled", ONSET - 29, broker="b1:9092")


def texts_of(explained: list[Explanation]) -> list[str]:
    return [text.text for one in explained for text in (*one.evidence, *one.against)]


def test_evidence_of_the_worst_change_names_it_and_that_of_the_opening_counts_from_the_onset() -> (
    None
):
    """Both came one second after what they belong to: half a minute apart."""
    incident = Incident((OPENING, STEP))
    found = attribute(incident, around(LATENCY, events=(*THROTTLED, *MOVED)))
    first = {one.cause: one.evidence[0].text for one in found}

    assert first["quota_throttle"].endswith("1 s after the onset.")
    assert first["leader_move"].startswith(
        "Leaders changed in 1 second around the worst change (30 s into the incident), first 1 s after the "
        "worst change (topic soak-t, partition 1);"
    )


def test_what_rules_causes_out_at_the_worst_change_names_it_too() -> None:
    (found,) = attribute(Incident((OPENING, STEP)), around(LATENCY))

    assert found.evidence[0].text == (
        "None of the other series watched changed within 10 s of the worst change (30 s into the incident)."
    )
    assert not [text for text in texts_of([found]) if "the onset" in text]


def test_onsets_that_may_be_one_are_the_onset() -> None:
    """Of two series of one step each has its own most likely second."""
    beside = replace(OPENING, onset_k=ONSET - 2, interval=(ONSET - 3, ONSET - 1))
    (found,) = attribute(Incident((beside, STEP)), around(LATENCY, events=MOVED))

    assert found.evidence[0].text.startswith(
        "Leaders changed in 1 second around the onset, first 1 s after the onset ("
    )


def test_an_outage_within_an_incident_is_what_its_evidence_counts_from() -> None:
    reason = "http://b1/metrics does not answer: [Errno 111] Connection refused"
    refused = told("target_failed", ONSET + 1, target="b1", reason=reason)
    found = attribute(Incident((OPENING, OUTAGE)), around(LATENCY, events=(*refused, *MOVED)))
    texts = texts_of(found)

    assert (
        "Connections to b1 were refused, first 1 s after the outage (30 s into the incident): no process "
        "listened there." in texts
    )
    assert not [text for text in texts if "the onset" in text]


def test_evidence_for_a_missed_objective_counts_from_the_incident_before_it() -> None:
    """The message about the objective has an onset of its own."""
    breach = replace(STEP, kind="objective", onset_k=240, raised_k=300)
    texts = (
        "Leaders moved 1 s after the onset.",
        "A broker answered late from the worst change (30 s into the incident) on.",
    )
    against = (Evidence("No drive slowed at the onset."),)
    cause = Explanation("leader_move", 0.9, tuple(map(Evidence, texts)), against)
    (found,) = attribute_breach(breach, [finding(onset_k=123, causes=(cause,))])

    before, *others = texts_of([found])
    assert before.startswith(
        "Before the budget was spent, this lasted 2 min 57 s, beginning 1 min 57 s before the onset: "
    )
    assert others == [
        "Leaders moved 1 s after that incident's onset.",
        "A broker answered late from the worst change (30 s into that incident) on.",
        "No drive slowed at that incident's onset.",
    ]
