"""What the kinds look at: minutes, and tens of minutes, whichever of them are missing."""

from __future__ import annotations

import pytest

from detectors.kinds.recent_rows import Recent


def taken(minutes: list[int]) -> Recent:
    """Return what is kept of minutes whose value is their number."""
    recent = Recent()
    for minute in minutes:
        for k in range(60 * minute, 60 * minute + 60, 2):
            recent.take(k, float(minute))
    return recent


@pytest.mark.parametrize("missing", [None, 0, 3, 9])
def test_ten_minutes_count_whichever_of_them_is_missing(missing: int | None) -> None:
    """A job once in ten minutes, whose seconds are not trusted, makes no drift of hours invisible."""
    recent = taken([minute for minute in range(63) if minute % 10 != missing])

    assert [ten for ten, _ in recent.coarse] == [0, 1, 2, 3, 4, 5]


def test_fewer_than_five_of_ten_minutes_do_not_count() -> None:
    recent = taken([*range(10), 11, 13, 15, 17, *range(40, 52)])

    assert recent.coarse == [(0, 4.5), (4, 44.5)]
