"""Every cause on a made-up quarter of an hour: named where it is, not where what tells it is missing."""

from __future__ import annotations

import pytest

from detectors.attribution import BAR, causes
from tests.bench import attribution as bench
from tests.support.detection.cause_faults import FAULTS

MADE_WITH = bench.VARIANTS["made with"]


@pytest.mark.long
@pytest.mark.parametrize("cause", [name for name in FAULTS if name != "unknown"])
def test_a_cause_is_named_first_where_it_is(cause: str) -> None:
    found = bench.named((cause,), MADE_WITH, 0)

    assert found[0].cause == cause
    assert found[0].score >= BAR


@pytest.mark.parametrize("cause", [name for name, fault in FAULTS.items() if fault.decisive])
def test_without_the_channels_that_tell_a_cause_it_is_unknown(cause: str) -> None:
    """But for pauses of the JVM, which may pass for a broker's, and a broker's end, which leaders tell of."""
    fault = FAULTS[cause]
    found = bench.named((cause,), MADE_WITH, 0, without=fault.decisive)

    assert {one.cause for one in found} <= {*fault.instead, *fault.beside}


@pytest.mark.long
def test_a_step_beside_which_nothing_happens_is_unknown() -> None:
    named = [bench.named(("unknown",), MADE_WITH, seed)[0].cause for seed in range(5)]

    assert named == ["unknown"] * 5


@pytest.mark.parametrize(
    "pair", [("drive_gc", "leader_move"), ("retention_cliff", "broker_cpu")], ids="+".join
)
def test_of_two_causes_at_once_both_are_named(pair: tuple[str, str]) -> None:
    found = bench.named(pair, MADE_WITH, 0)

    assert set(pair) <= {one.cause for one in found}


OTHERS = {
    "access_denied",
    "drive_throttled",
    "foreign_load",
    "metadata_storm",
    "quota_throttle",
    "under_replicated",
}
"""Causes whose signs have tests of their own, in `test_more_work` and `test_outages`."""


def test_every_cause_has_a_fault_that_makes_it() -> None:
    assert set(causes()) == set(FAULTS) | OTHERS


@pytest.mark.long
@pytest.mark.parametrize("cause", [name for name in FAULTS if name != "unknown"])
def test_evidence_ends_as_a_sentence_does_and_has_no_holes(cause: str) -> None:
    for evidence in bench.named((cause,), MADE_WITH, 0)[0].evidence:
        assert evidence.text.endswith(".")
        assert "nan" not in evidence.text
