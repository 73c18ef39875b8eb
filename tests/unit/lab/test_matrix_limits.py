"""What a matrix of drills must come to: which limits hold, and that nothing run is no success."""

from __future__ import annotations

from dataclasses import replace

import pytest

from soak.lab.drills.matrix import is_kept, limits
from soak.lab.drills.result import NO_FINDING, Result

ONE = Result(
    drill="d", seed=1, fault="drive_gc", expected="drive_gc", cause="drive_gc", is_passed=True
)
MISSED, WRONG, UNNAMED = (replace(ONE, cause=cause) for cause in (NO_FINDING, "network", "unknown"))
CLIENT = replace(ONE, cause="client")
OF_CLIENT = replace(ONE, fault="client_pause", expected="client", cause="client")
QUIET = replace(ONE, fault="quiet", expected="nothing", cause=NO_FINDING)
LOUD = replace(QUIET, cause="network", is_passed=False)
SOON = replace(ONE, onset_seconds=1.0, notified_seconds=20.0, resolved_seconds=20.0)
LATE = {name: replace(SOON, missed=[name]) for name in ("onset", "notified", "resolved")}
NAMELESS = replace(ONE, fault="drive_hang", expected="unknown", cause="unknown")
LOST = replace(ONE, cause=NO_FINDING, is_judged=False)


@pytest.mark.parametrize(
    "runs",
    [
        [ONE] * 19 + [MISSED],
        [ONE] * 19 + [WRONG],
        [ONE] * 19 + [CLIENT],
        [ONE] * 9 + [UNNAMED],
        [ONE, OF_CLIENT],
        [ONE] * 19 + [replace(OF_CLIENT, cause="unknown")],
        [SOON] * 19 + [LATE["onset"]],
        [SOON] * 19 + [LATE["notified"]],
        [SOON] * 9 + [LATE["resolved"]],
        [replace(ONE, false_alarms=0)],
        [ONE, QUIET],
        [ONE, LOST],
        [ONE, replace(MISSED, left_out="mended")],
        [QUIET],
    ],
)
def test_a_matrix_may_miss_as_much_as_the_limits_say(runs: list[Result]) -> None:
    """Found in 95 %, named right in 90 %, wrong in 5 %; onset and mail in time in 95 %, resolved in 90.

    What proves nothing, or was left out, is not counted.
    """
    assert is_kept(runs)


@pytest.mark.parametrize(
    "runs",
    [
        [ONE] * 18 + [MISSED],
        [ONE] * 18 + [WRONG],
        [ONE] * 18 + [replace(OF_CLIENT, cause="unknown")],
        [ONE] * 8 + [UNNAMED],
        [ONE] * 8 + [UNNAMED] + [NAMELESS] * 9,
        [SOON] * 18 + [LATE["onset"]],
        [SOON] * 18 + [LATE["notified"]],
        [SOON] * 8 + [LATE["resolved"]],
        [ONE] * 99 + [replace(ONE, false_alarms=1)],
        [ONE, replace(QUIET, is_passed=False)],
        [ONE, QUIET, LOUD],
        [ONE, replace(LOUD, fault="retention_limit")],
        [LOST],
        [],
    ],
)
def test_a_matrix_that_misses_more_or_shows_nothing_breaks_them(runs: list[Result]) -> None:
    """An alarm where nothing may be found is too many; to leave unnamed what has no name is no merit."""
    assert not is_kept(runs)


def test_a_fault_is_not_found_where_the_client_is_blamed_unless_it_is_to_blame() -> None:
    """No message is sent about the client."""
    texts = [str(limit) for limit in limits([CLIENT, OF_CLIENT])]

    assert texts[:3] == [
        "detected, at least 95%: 1 of 2, DOES NOT HOLD",
        "cause right, where it is known, at least 90%: 1 of 1, holds",
        "cause wrong, at most 5%: 1 of 2, DOES NOT HOLD",
    ]


def test_each_limit_says_whether_it_holds() -> None:
    """Of what no run says anything, that is said."""
    texts = [str(limit) for limit in limits([ONE, MISSED])]

    assert texts == [
        "detected, at least 95%: 1 of 2, DOES NOT HOLD",
        "cause right, where it is known, at least 90%: 1 of 1, holds",
        "cause wrong, at most 5%: 0 of 2, holds",
        "onset in time, at least 95%: 0 of 0, no run",
        "notified in time, at least 95%: 0 of 0, no run",
        "resolved in time, at least 90%: 0 of 0, no run",
        "an alarm before the fault, at most 0%: 0 of 0, no run",
        "passed where nothing may be found, at least 100%: 0 of 0, no run",
    ]
