from __future__ import annotations

from fractions import Fraction

import pytest

from soak.core.clock import Grid
from soak.core.errors import PlanError
from soak.core.load_rates import rates
from soak.core.phases import Decision, Phases
from soak.core.plan_load import Load, Profile, Step
from soak.core.profile import Point, Sine, curve, parse
from soak.core.units import SECOND_NS, duration_ns, nearest_rate
from soak.daemons.rate_plan import RatePlan

LOAD = Load(rate=Fraction(100))
SOAK = Phases((Decision("warm-up", 0), Decision("soak", 10), Decision("drain", 90)))


def _load(**profile: object) -> Load:
    return Load(rate=Fraction(100), profile=Profile(**profile))  # type: ignore[arg-type]  # fields by name


def _points(*found: tuple[int, int]) -> list[Point]:
    return [(second, Fraction(rate)) for second, rate in found]


def _all(load: Load, phases: Phases, last_k: int, table: tuple[Point, ...] = ()) -> list[Point]:
    return list(rates(load, phases, table, 0, last_k))


def test_without_a_profile_the_rate_of_the_plan_holds() -> None:
    assert {rate for _, rate in _all(LOAD, SOAK, 90)} == {100}


def test_steps_count_from_the_start_of_the_soak() -> None:
    steps = (
        Step(after=5 * SECOND_NS, rate=Fraction(7)),
        Step(after=20 * SECOND_NS, rate=Fraction(0)),
    )

    found = _all(_load(steps=steps), SOAK, 90)

    assert found == _points((0, 100), (10, 100), (15, 7), (30, 0))


def test_a_profile_runs_on_through_what_interrupts_the_soak() -> None:
    """A catch-up at 14 and the soak again at 18 leave the step at 15 where it was."""
    between = (
        Decision("catch-up", 14, part="build"),
        Decision("catch-up", 16, part="drain"),
        Decision("soak", 18),
    )
    phases = Phases((*SOAK.decisions[:2], *between, SOAK.decisions[2]))
    load = _load(steps=(Step(after=5 * SECOND_NS, rate=Fraction(7)),))

    found = dict(_all(load, phases, 20))

    assert [rate for k, rate in sorted(found.items()) if k <= 14] == [100, 100, 100]
    assert [rate for k, rate in sorted(found.items()) if k >= 15] == [7, 7, 7]


def test_a_rate_that_was_decided_holds_until_the_next_decision() -> None:
    ramp = (Decision("ramp", 0, rate=Fraction(10)), Decision("ramp", 5, rate=Fraction(0)))
    phases = Phases((*ramp, Decision("soak", 9, rate=Fraction(40))))
    found = _all(_load(sine_period=duration_ns("1min")), phases, 69)

    in_soak = [rate for k, rate in found if k >= 9]
    assert [one for one in found if one[0] < 9] == _points((0, 10), (5, 0))
    assert sum(in_soak) / len(in_soak) == 40


def test_a_sine_keeps_its_mean_and_its_amplitude() -> None:
    found = list(curve(Profile(sine_period=duration_ns("100s")), Fraction(100)).between(0, 1000))

    values = [rate for _, rate in found]
    assert len(values) == 1000
    assert sum(values) / len(values) == 100
    assert (float(min(values)), float(max(values))) == pytest.approx((50, 150), abs=0.1)


def test_a_curve_may_be_asked_for_piece_by_piece() -> None:
    for load in (
        _load(sine_period=duration_ns("30min")),
        _load(steps=(Step(after=33 * SECOND_NS, rate=Fraction(7)),)),
    ):
        whole = dict(curve(load.profile, load.rate).between(0, 3600))
        for first, last in ((0, 7), (31, 34), (33, 34), (34, 1999)):
            for second, rate in curve(load.profile, load.rate).between(first, last):
                before = max(at for at in whole if at <= second)
                assert rate == whole[before]


def test_a_table_is_read_with_its_units() -> None:
    found = parse("seconds,rate\n0,500\n\n60, 12.5k/s\n", "r.csv")

    assert list(found) == _points((0, 500), (60, 12500))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "r.csv:1: begins with nothing, not with the header seconds,rate"),
        ("0,500\n", "r.csv:1: begins with '0,500', not with the header seconds,rate"),
        ("seconds,rate\n", "r.csv:1: there is no rate below the header"),
        ("seconds,rate\n0,5\n0,6\n", "r.csv:3: second 0 does not come after second 0"),
        ("seconds,rate\n0.5,5\n", "r.csv:2: '0.5' is not a whole number of seconds"),
        ("seconds,rate\n0,5,6\n", "r.csv:2: 3 columns instead of two: seconds,rate"),
        ("seconds,rate\n0,-5\n", "r.csv:2: '-5/s' is not a rate"),
        ("seconds,rate\n0,many\n", "r.csv:2: 'many/s' is not a rate"),
        ("seconds,rate\n0,0.3333333\n", "r.csv:2: '0.3333333/s' has more than six decimals"),
    ],
)
def test_a_bad_table_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(PlanError) as found:
        parse(text, "r.csv")

    assert str(found.value).startswith(message)


def test_a_schedule_follows_the_phases_without_losing_a_message() -> None:
    """100/s for 10 s, then 7/s from the step at 15 s; a drain decided at 50 s changes nothing before."""
    load = _load(steps=(Step(after=5 * SECOND_NS, rate=Fraction(7)),))
    followed = RatePlan(load, (), Grid(0, 0))
    begin = Phases((Decision("warm-up", 0),))
    sent = []
    for k in range(60):
        followed.follow(begin if k < 4 else SOAK, k)
        first = followed.schedule.first_at_or_after(k * SECOND_NS)
        sent.append(followed.schedule.first_at_or_after((k + 1) * SECOND_NS) - first)

    assert sent == [100] * 15 + [7] * 45


def test_a_week_of_a_sine_keeps_the_schedule_short() -> None:
    load = _load(sine_period=duration_ns("3h"))
    followed = RatePlan(load, (), Grid(0, 0))
    phases = Phases((Decision("soak", 0),))
    longest = 0
    for k in range(0, 7 * 86_400, 59):
        followed.follow(phases, k)
        longest = max(longest, followed.schedule.segments)

    total = followed.schedule.first_at_or_after(7 * 86_400 * SECOND_NS)
    assert longest < 40
    assert total == pytest.approx(7 * 86_400 * 100, rel=1e-6)


def test_a_wave_has_rates_that_a_schedule_can_keep() -> None:
    """Stairs of a rate of many digits have no more of them."""
    wave = Sine(Fraction("333333.333333"), 0.5, 600 * SECOND_NS)

    found = [rate for _, rate in wave.between(0, 600)]

    assert found == [nearest_rate(rate) for rate in found]
