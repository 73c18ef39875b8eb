"""What a matrix of drills must come to: which limits hold, and that nothing run is no success."""

from __future__ import annotations

from dataclasses import replace

import pytest

from soak.lab.drill_result import NONE, Result
from soak.lab.matrix_limits import is_kept, limits

ONE = Result(
    drill="d", seed=1, fault="drive_gc", expected="drive_gc", cause="drive_gc", is_passed=True
)
MISSED, WRONG, UNNAMED = (replace(ONE, cause=cause) for cause in (NONE, "network", "unknown"))
CLIENT = replace(ONE, cause="client")
OF_CLIENT = replace(ONE, fault="client_pause", expected="client", cause="client")
QUIET = replace(ONE, fault="quiet", expected="nothing", cause=NONE)
LOUD = replace(QUIET, cause="network")
LOST = replace(ONE, cause=NONE, is_judged=False)


@pytest.mark.parametrize(
    "runs",
    [
        [ONE] * 19 + [MISSED],
        [ONE] * 19 + [WRONG],
        [ONE] * 19 + [CLIENT],
        [ONE] * 9 + [UNNAMED],
        [ONE, OF_CLIENT],
        [ONE] * 19 + [replace(OF_CLIENT, cause="unknown")],
        [ONE, QUIET],
        [ONE, LOST],
        [QUIET],
    ],
)
def test_a_matrix_may_miss_as_much_as_the_limits_say(runs: list[Result]) -> None:
    """Found in 95 %, of these named right in 90 %, named wrong in 5 %; what proves nothing is not counted."""
    assert is_kept(runs)


@pytest.mark.parametrize(
    "runs",
    [
        [ONE] * 18 + [MISSED],
        [ONE] * 18 + [WRONG],
        [ONE] * 18 + [replace(OF_CLIENT, cause="unknown")],
        [ONE] * 8 + [UNNAMED],
        [ONE, QUIET, LOUD],
        [ONE, replace(LOUD, fault="retention_limit")],
        [LOST],
        [],
    ],
)
def test_a_matrix_that_misses_more_or_shows_nothing_breaks_them(runs: list[Result]) -> None:
    """A single alarm where nothing may be found is too many."""
    assert not is_kept(runs)


def test_a_fault_is_not_found_where_the_client_is_blamed_unless_it_is_to_blame() -> None:
    """Nobody is told of that."""
    told = [str(limit) for limit in limits([CLIENT, OF_CLIENT])]

    assert told[:3] == [
        "detected, at least 95%: 1 of 2, DOES NOT HOLD",
        "cause right, at least 90%: 1 of 1, holds",
        "cause wrong, at most 5%: 1 of 2, DOES NOT HOLD",
    ]


def test_each_limit_says_whether_it_holds() -> None:
    """Of what no run says anything, that is said."""
    told = [str(limit) for limit in limits([ONE, MISSED])]

    assert told == [
        "detected, at least 95%: 1 of 2, DOES NOT HOLD",
        "cause right, at least 90%: 1 of 1, holds",
        "cause wrong, at most 5%: 0 of 2, holds",
        "quiet, with a finding, at most 0%: 0 of 0, no run",
        "others where nothing may be found, with a finding, at most 0%: 0 of 0, no run",
    ]
