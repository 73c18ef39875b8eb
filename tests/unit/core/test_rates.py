"""What a report and `soak check` say of a load that is not the same all the time."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from soak.core.clock import Grid
from soak.core.errors import PlanError
from soak.core.plan.load import Load, Profile, Step
from soak.core.plan.phases import Decision, Phases
from soak.core.plan.rates import (
    Point,
    Sine,
    curve,
    parse_rate_table,
    rates_between,
    size_text,
    soak_rate_text,
)
from soak.core.plan.text import load
from soak.core.units import SECOND_NS, duration_ns, nearest_rate
from soak.load.producer.pacing import RatePlan
from soak.store.run_folder import profile_path
from spark.batch.timeline import assemble
from spark.report import job as report
from tests.support.checking import checked
from tests.support.spark.report_run import read
from tests.support.spark.synthetic_run import Shape, write_synthetic_run

MIXTURE = "[{size: 1KiB, share: 0.5}, {size: 64KiB, share: 0.5}]"
STEPS = "{steps: [{after: 30s, rate: 80k/s}, {after: 90s, rate: 5k/s}, {after: 1h, rate: 90k/s}]}"


@pytest.mark.parametrize(
    ("phases", "profile", "said"),
    [
        ("", "{}", "20k/s"),
        ("", STEPS, "5k/s to 80k/s"),
        ("", "{sine_period: 40s, sine_amplitude: 0.5}", "10.03k/s to 29.97k/s"),
        ("ramp: {soak_share: 0.8}, ", STEPS, "80% of the rate that the ramp finds"),
    ],
)
def test_the_rates_of_a_soak_are_shown_from_the_lowest_to_the_highest(
    phases: str, profile: str, said: str
) -> None:
    """Later phases do not count, and the result of a ramp is unknown."""
    text = f"load: {{rate: 20k/s, profile: {profile}}}\nphases: {{{phases}soak: 2min}}\n"
    plan = load(f"name: x\nbroker: {{kafka: {{}}}}\n{text}", "plan.yaml").plan

    assert soak_rate_text(plan) == said


def test_a_mixture_is_shown_with_its_mean_and_its_ends() -> None:
    text = f"name: x\nbroker: {{kafka: {{}}}}\nload: {{message_sizes: {MIXTURE}}}\n"

    assert size_text(load(text, "plan.yaml").plan.load) == "32.5 KiB on average (1 KiB to 64 KiB)"


@pytest.mark.long
def test_a_report_tells_the_load_as_it_was(tmp_path: Path) -> None:
    """Not a size and a rate that the plan replaces; of a file that is gone the name."""
    folder = write_synthetic_run(tmp_path / "run", Shape(fault_k=None))
    head, _, rest = folder.plan.read_text().partition("load:\n")
    varied = f"load: {{rate: 400/s, profile: {{file: day.csv}}, message_sizes: {MIXTURE}}}\n"
    folder.plan.write_text(head + varied + rest[rest.index("limits:") :])
    profile_path(folder).write_text("seconds,rate\n0,300/s\n60,1200/s\n9999,2k/s\n")

    report.write(assemble(folder, read), [], None)
    page = folder.report.read_text()
    profile_path(folder).unlink()
    report.write(assemble(folder, read), [], None)

    load = "300/s to 1.2k/s of 32.5 KiB on average (1 KiB to 64 KiB)"
    assert f"Soak: 3 min 35 s planned, 3 min 35 s on record, at {load}. " in page
    assert f'<td class="text">load</td><td class="text">{load}</td>' in page
    assert ", at the rates of day.csv, which cannot be read, of " in folder.report.read_text()


def test_the_check_tells_all_rates_of_the_soak(tmp_path: Path) -> None:
    said = checked(
        tmp_path,
        "broker: {kafka: {}}\nload: {rate: 1k/s, profile: {steps: [{after: 5s, rate: 2k/s}]}}\n",
    )

    assert "good. 1k/s to 2k/s against a lab broker" in said


LOAD = Load(rate=Fraction(100))
SOAK = Phases((Decision("warm-up", 0), Decision("soak", 10), Decision("drain", 90)))


def _load(**profile: object) -> Load:
    return Load(rate=Fraction(100), profile=Profile(**profile))  # type: ignore[arg-type]  # fields by name


def _points(*found: tuple[int, int]) -> list[Point]:
    return [(second, Fraction(rate)) for second, rate in found]


def _all(load: Load, phases: Phases, last_k: int, table: tuple[Point, ...] = ()) -> list[Point]:
    return list(rates_between(load, phases, table, 0, last_k))


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
    for shape in (
        _load(sine_period=duration_ns("30min")),
        _load(steps=(Step(after=33 * SECOND_NS, rate=Fraction(7)),)),
    ):
        whole = dict(curve(shape.profile, shape.rate).between(0, 3600))
        for first, last in ((0, 7), (31, 34), (33, 34), (34, 1999)):
            for second, rate in curve(shape.profile, shape.rate).between(first, last):
                before = max(at for at in whole if at <= second)
                assert rate == whole[before]


def test_a_table_is_read_with_its_units() -> None:
    found = parse_rate_table("seconds,rate\n0,500\n\n60, 12.5k/s\n", "r.csv")

    assert list(found) == _points((0, 500), (60, 12500))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "r.csv:1: starts with nothing, not with the header seconds,rate"),
        ("0,500\n", "r.csv:1: starts with '0,500', not with the header seconds,rate"),
        ("seconds,rate\n", "r.csv:1: there are no rates below the header"),
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
        parse_rate_table(text, "r.csv")

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


@pytest.mark.long
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
