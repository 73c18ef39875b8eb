from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.core import units


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [("36h", 129_600 * 10**9), ("1.5ms", 1_500_000), ("90 s", 90 * 10**9), ("10min", 600 * 10**9)],
)
def test_durations_read_as_people_write_them(text: str, nanoseconds: int) -> None:
    assert units.duration_ns(text) == nanoseconds


@pytest.mark.parametrize("text", ["36", "h", "1 fortnight", "-3s", "1:30", "", None, True, 1.5])
def test_what_is_no_duration_is_refused_with_the_known_units(text: object) -> None:
    with pytest.raises(ValueError, match="is not a duration; write it like 36h"):
        units.duration_ns(text)


def test_sizes_tell_binary_from_decimal() -> None:
    assert (units.size_bytes("1KiB"), units.size_bytes("1kB")) == (1024, 1000)


def test_rates_are_exact() -> None:
    assert units.rate_per_second("0.1/s") == Fraction(1, 10)


def test_an_alarm_rate_is_the_mean_time_between_two() -> None:
    assert units.per_duration_ns("2 per 1h") == 1800 * 10**9


def test_nothing_lasts_longer_than_ten_years() -> None:
    """But the mean time between two alarms."""
    with pytest.raises(ValueError, match="'87601h' is longer than 3650d"):
        units.duration_ns("87601h")
    assert units.per_duration_ns("1 per 100000d") == 100_000 * 86_400 * units.SECOND_NS


@given(st.integers(0, units.MAX_DURATION_NS))
def test_a_duration_survives_being_written_and_read(nanoseconds: int) -> None:
    assert units.duration_ns(units.format_duration(nanoseconds)) == nanoseconds


@given(st.integers(0, 2**60))
def test_a_size_survives_being_written_and_read(size: int) -> None:
    assert units.size_bytes(units.format_size(size)) == size


@given(st.integers(1, 10**9))
def test_a_rate_survives_being_written_and_read(rate: int) -> None:
    assert units.rate_per_second(units.format_rate(Fraction(rate, 1000))) == Fraction(rate, 1000)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0.1234567/s", "more than six decimals"),
        ("0.00000000001k/s", "more than six decimals"),
        ("1000.1M/s", "above 1000M/s"),
    ],
)
def test_a_plan_asks_for_no_rate_that_a_schedule_cannot_keep(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        units.planned_rate(text)


@given(st.fractions(0, 10**9))
def test_the_nearest_rate_is_one_that_a_plan_may_ask_for(rate: Fraction) -> None:
    near = units.nearest_rate(rate)

    assert units.planned_rate(units.format_rate(near)) == near
    assert abs(near - rate) <= Fraction(1, 10**6)
    assert bool(near) == bool(rate)
