"""Spikes that keep a period: found with it, and never from bursts at random."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from detectors.kinds.recent_rows import Recent
from detectors.kinds.spikes import Watch, detect, judged, words_of
from detectors.minimum_effect import Config
from soak.core.model import Change, Series


def series_of(y: NDArray[np.float64], first_k: int = 0, unit: float = 1.0) -> Series:
    return Series("p99", first_k + np.arange(y.size), unit * 0.01 * 10.0**y)


def pulse_train(rows: int, first: int, period: float, seconds: int = 3) -> NDArray[np.float64]:
    y = np.random.default_rng(3).normal(0.0, 0.05, rows)
    for tick in np.arange(first, rows - seconds, period):
        y[round(tick) : round(tick) + seconds] += 0.5
    return y


@pytest.mark.parametrize(("period", "rows"), [(52.1, 3600), (510.0, 12_000)])
def test_a_pulse_train_is_reported_with_its_period(period: float, rows: int) -> None:
    (found,) = detect(series_of(pulse_train(rows, 1000, period)), Config())

    assert (found.kind, found.onset_k, found.burst_seconds) == ("spikes", 1000, 3.0)
    assert found.period_seconds == pytest.approx(period, abs=0.1)
    assert found.after == pytest.approx(0.035, rel=0.1)
    assert found.resolved_k is None


@pytest.mark.long
def test_a_slow_pulse_train_is_reported_though_noise_hides_a_tick() -> None:
    """Every 75 min: a hidden tick leaves two and a half hours without a burst."""
    y = pulse_train(45_000, 1000, 4500.0)
    y[1000 + 3 * 4500 : 1003 + 3 * 4500] -= 0.5
    (found,) = detect(series_of(y), Config())

    assert found.onset_k == 1000
    assert found.period_seconds == pytest.approx(4500.0, abs=1.0)


def test_the_words_are_those_of_an_engineer() -> None:
    (found,) = detect(series_of(pulse_train(3600, 1000, 52.1)), Config())

    assert words_of(found).endswith("s, 3 s long")
    assert words_of(found).startswith("every 52")


def test_a_pulse_train_that_ends_is_gone() -> None:
    y = pulse_train(3600, 1000, 52.0)
    y[2500:] = pulse_train(1100, 1100, 52.0)
    (found,) = detect(series_of(y), Config())

    assert found.state == "gone"
    assert found.resolved_k is not None
    assert 2500 < found.resolved_k < 2700


def test_a_pulse_train_shows_through_other_bursts_and_missed_ticks() -> None:
    ticks = 100 + np.round(52.1 * np.arange(20)).astype(np.int64)
    others = np.array([333, 480, 801])
    starts = np.sort(np.concatenate([np.delete(ticks, [4, 11]), others]))
    found = judged(starts)

    assert found is not None
    assert found.period == pytest.approx(52.1, abs=0.1)
    assert found.surprise > 20.0


def test_two_hundred_rows_of_bursts_at_random_keep_no_period() -> None:
    """Half of them come at any time, half keep a distance but no beat."""
    found = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        apart = rng.gamma(9.0, 6.0, 16) if seed % 2 else rng.exponential(54.0, 16)
        found.append(judged(np.cumsum(apart + 3.0).astype(np.int64)))

    assert all(one is None or one.surprise < 15.0 for one in found)


def in_rows_of_ten(y: NDArray[np.float64]) -> Series:
    """Return what a run of more than two hours is looked back at by."""
    return Series("p99", 10 * np.arange(y.size), 0.01 * 10.0**y)


@pytest.mark.parametrize(("ratio", "rows"), [(1.6, 0), (2.0, 0), (3.0, 0), (10.0, 0), (4.0, 40)])
def test_a_new_level_in_rows_of_ten_seconds_is_no_pulse_train(ratio: float, rows: int) -> None:
    """At once, or over 400 s: each row of it lies above the minute before."""
    y = np.random.default_rng(0).normal(0.0, 0.02, 1440)
    y += np.log10(ratio) * np.clip((np.arange(1440) - 720) / max(rows, 1), 0.0, 1.0)

    assert detect(in_rows_of_ten(y), Config()) == []


def test_a_pulse_train_shows_in_rows_of_ten_seconds() -> None:
    y = np.random.default_rng(3).normal(0.0, 0.05, 1440)
    for tick in range(100, 1440, 51):
        y[tick : tick + 2] += 0.5
    (found,) = detect(in_rows_of_ten(y), Config())

    assert (found.onset_k, found.period_seconds, found.burst_seconds) == (1000, 510.0, 20.0)
    assert found.resolved_k is None


@pytest.mark.parametrize(("first_k", "unit"), [(100_000, 1.0), (0, 1000.0)])
def test_when_and_in_which_unit_changes_nothing(first_k: int, unit: float) -> None:
    y = pulse_train(2400, 600, 52.1)
    config = Config(smallest_step_seconds=0.0)
    (found,) = detect(series_of(y), config)
    (other,) = detect(series_of(y, first_k, unit), config)

    assert other.onset_k == found.onset_k + first_k
    assert other.period_seconds == found.period_seconds


def watched(y: NDArray[np.float64], step: int | None = None, gap: range = range(0)) -> list[Change]:
    """Return what is said second by second, of a latency that steps once, as is confirmed 11 s later."""
    watch, recent, said = Watch(120), Recent(), []
    for k, value in enumerate(y.tolist()):
        if k in gap:
            watch.start_anew()
            recent = Recent()
            continue
        if step is not None and k == step + 11:
            watch.note_step(step)
        said += watch.take("p99", k, value - 2.0, recent, Config())
        recent.take(k, value - 2.0)
    return said


def test_what_a_clock_that_was_set_back_tells_again_is_new() -> None:
    """A known pulse train, and a step, in seconds that come again: a pulse train that begins then is news."""
    watch, recent = Watch(120), Recent()
    for k, value in enumerate(pulse_train(2000, 100, 52.0).tolist()):
        watch.take("p99", k, value - 2.0, recent, Config())
        recent.take(k, value - 2.0)
    watch.note_step(1250)
    was_known = watch.known is not None
    watch.go_back(600 + 120)
    recent, said = Recent(), []
    for k, value in enumerate(pulse_train(2000, 1300, 52.0).tolist()[600:], start=600):
        said += watch.take("p99", k, value - 2.0, recent, Config())
        recent.take(k, value - 2.0)

    assert was_known
    assert [(one.onset_k, one.period_seconds) for one in said] == [(1300, 52.0)]


@pytest.mark.parametrize("change", [0.5, -0.3])
def test_a_pulse_train_that_began_before_a_step_is_reported_all_the_same(change: float) -> None:
    """The step comes when the pulse train is not reported yet, and takes none that is older than it."""
    y = pulse_train(3000, 1000, 52.0)
    y[1300:] += change
    (found,) = watched(y, step=1300)

    assert (found.onset_k, found.period_seconds) == (1000, 52.0)


@pytest.mark.parametrize("first", [1250, 1310, 1400])
def test_a_pulse_train_that_comes_with_a_step_is_the_steps(first: int) -> None:
    y = pulse_train(3000, first, 52.0)
    y[1300:] += 0.5

    assert watched(y, step=1300) == []


def test_a_pulse_train_that_begins_after_the_baseline_is_news_however_long_its_period() -> None:
    (found,) = watched(pulse_train(7000, 1100, 510.0))

    assert (found.onset_k, found.period_seconds) == (1100, 510.0)


def test_a_pulse_train_from_the_start_stays_no_news_when_a_step_follows() -> None:
    y = pulse_train(2000, 40, 52.0)
    y[300:] += 0.5

    assert watched(y, step=300) == []


def bursts_at_random(first: int, rows: int) -> NDArray[np.float64]:
    """Return bursts of three seconds from a second on, 25 s after each other in the mean."""
    rng, y = np.random.default_rng(9), np.zeros(rows)
    for at in first + np.cumsum(rng.exponential(25.0, rows // 20)).astype(np.int64):
        y[at : at + 3] = 0.5
    return y


@pytest.mark.long
def test_bursts_at_random_do_not_keep_a_pulse_train_that_ended() -> None:
    y = pulse_train(9000, 1000, 52.0)
    y[2400:] = pulse_train(6600, 6600, 52.0) + bursts_at_random(0, 6600)
    confirmed, gone = watched(y)

    assert (confirmed.state, gone.state) == ("confirmed", "gone")
    assert gone.resolved_k is not None
    assert 2400 < gone.resolved_k < 3400


@pytest.mark.long
@pytest.mark.parametrize("period", [30.0, 52.1, 510.0])
def test_a_pulse_train_that_keeps_on_stands(period: float) -> None:
    """With ticks up to two seconds early or late, some missed, through bursts at random and a long gap."""
    rng, y = np.random.default_rng(4), np.random.default_rng(3).normal(0.0, 0.05, 20_000)
    jitter = min(2.0, 0.02 * period)
    for tick in np.arange(1000.0, 19_990.0, period):
        at = round(tick + rng.uniform(-jitter, jitter))
        y[at : at + 3] += 0.5 * (rng.random() < 0.95)
    y[12_000:] += bursts_at_random(0, 8000) * (rng.random(8000) < 0.3)
    changes = watched(y, gap=range(9000, 9700))

    assert [change.state for change in changes] == ["confirmed"]


@pytest.mark.long
def test_another_pulse_train_ends_the_one_that_stands() -> None:
    """Rolls of segments every 52 s, and later a job every 26 s beside them."""
    y = pulse_train(9000, 1000, 52.0)
    for tick in range(3000, 8990, 26):
        y[tick : tick + 3] = 0.5
    said = watched(y)

    assert [(one.state, round(one.period_seconds or 0.0)) for one in said] == [
        ("confirmed", 52),
        ("gone", 52),
        ("confirmed", 26),
    ]


def hidden(seed: int, first: int = 0, grows: int = 7200) -> NDArray[np.float64]:
    """Return two hours of a garbage collector, each 13.4 s; noise that comes and goes hides it."""
    rng, rows = np.random.default_rng(seed), 7200
    knots = np.arange(0, rows + 300, 300)
    sd = np.exp(np.interp(np.arange(rows), knots, np.log(rng.uniform(0.02, 0.12, knots.size))))
    y = rng.normal(0.0, 1.0, rows) * sd
    for tick in np.arange(rng.uniform(0.0, 13.4), rows - 3, 13.4):
        height, seconds = 0.45 * np.exp(rng.normal(0.0, 0.35)), 1 + (rng.random() < 0.3)
        if tick >= first:
            y[round(tick) : round(tick) + seconds] += height * (4.0 if tick >= grows else 1.0)
    return y


def confirmed(said: list[Change]) -> list[Change]:
    return [change for change in said if change.state == "confirmed"]


@pytest.mark.long
def test_a_pulse_train_that_noise_hid_is_seldom_news_when_it_shows() -> None:
    """What rose as high, as often, before is usual there; it was reported 29 times in these ten runs."""
    assert sum(len(confirmed(watched(hidden(seed)))) for seed in range(10)) <= 10


@pytest.mark.long
def test_a_pulse_train_of_which_half_is_too_low_to_tell_is_no_news_when_more_of_it_shows() -> None:
    """As p99.9 of a real broker that collects every 13.7 s: to 25 ms from a level of 6 ms that varies."""
    found = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        y = rng.normal(np.log10(0.6), 0.11, 3600)
        ticks = (7.0 + 13.7 * np.arange(262)).astype(np.int64)
        y[ticks] = np.log10(2.5) + rng.normal(0.0, 0.1, ticks.size)
        found.append(len(confirmed(watched(y))))

    assert sum(found) <= 1


@pytest.mark.long
@pytest.mark.parametrize("seed", [4, 5, 9])
def test_one_that_grows_is_news(seed: int) -> None:
    """To the power of four; it was not reported before, nor known from the start, as with other seeds."""
    said = confirmed(watched(hidden(seed, grows=4000)))

    assert said[-1].after > 0.4
    assert abs(said[-1].onset_k - 4000) <= 300


@pytest.mark.long
@pytest.mark.parametrize(("sd", "ratio"), [(0.12, 2.0), (0.15, 2.5), (0.2, 2.8)])
def test_one_that_begins_after_two_noisy_hours_is_news(sd: float, ratio: float) -> None:
    """Noise reaches as high as it, but is no rise."""
    y = np.random.default_rng(1).normal(0.0, 1.0, 12_000) * np.repeat([sd, 0.03], [7200, 4800])
    for tick in range(9000, 11_990, 52):
        y[tick : tick + 2] += np.log10(ratio)
    (found,) = watched(y)

    assert found.onset_k == 9000


def test_one_that_was_reported_and_comes_back_is_news_again() -> None:
    """Twelve minutes of spikes and six without, again and again."""
    y = np.random.default_rng(1).normal(0.0, 0.03, 10_000)
    for begin in range(1200, 9840, 1080):
        for tick in range(begin, begin + 720, 60):
            y[tick : tick + 2] += 0.5

    assert [one.onset_k for one in confirmed(watched(y))] == list(range(1200, 9840, 1080))


@pytest.mark.long
def test_one_that_begins_in_such_noise_is_news() -> None:
    found = [confirmed(watched(hidden(seed, 3600))) for seed in range(10)]

    assert sum(any(abs(one.onset_k - 3600) <= 900 for one in said) for said in found) >= 7


@pytest.mark.long
@pytest.mark.parametrize("height", [0.4, 0.8])
def test_a_pulse_train_among_bursts_by_chance_is_news_unless_they_were_as_high_and_as_frequent(
    height: float,
) -> None:
    """A burst of 0.4 a minute in the mean, and after an hour a pulse train of half a minute."""
    rng, y = np.random.default_rng(1), np.random.default_rng(3).normal(0.0, 0.03, 7200)
    for at in np.cumsum(rng.exponential(45.0, 120)).astype(np.int64):
        y[at : at + 2] += 0.4
    for tick in range(3600, 7190, 31):
        y[tick : tick + 2] += height

    assert bool(confirmed(watched(y))) is (height > 0.4)


def of_collector(periods: tuple[float, float], tops: tuple[float, float]) -> NDArray[np.float64]:
    """Return two hours of p99 at 4.6 ms, in which a broker's collections show; both change at second 5700."""
    rng, rows = np.random.default_rng(2), 7200
    y = rng.normal(np.log10(0.46), 0.05, rows)
    at = 7.0
    while at < rows - 1:
        is_late = at >= 5700
        y[int(at)] = np.log10(100.0 * tops[is_late]) + rng.normal(0.0, 0.12)
        at += periods[is_late] + rng.normal(0.0, 0.1)
    return y


@pytest.mark.long
@pytest.mark.parametrize("late", [13.9, 15.7, 11.0])
def test_a_collector_whose_beat_changes_is_no_news(late: float) -> None:
    """As of a real broker: every 13.9 s to 17 ms until its heap grew, then every 15.7 s to 31 ms."""
    assert watched(of_collector((13.9, late), (0.017, 0.031))) == []


@pytest.mark.long
@pytest.mark.parametrize(("late", "top"), [(15.7, 0.1), (30.0, 0.05)])
def test_a_pulse_train_much_higher_or_of_another_beat_is_news(late: float, top: float) -> None:
    (found,) = watched(of_collector((13.9, late), (0.017, top)))

    assert abs(found.onset_k - 5700) <= 60
    assert found.period_seconds == pytest.approx(late, rel=0.02)


@pytest.mark.long
def test_a_latency_below_a_millisecond_may_grow_no_more_than_another() -> None:
    """Its smallest step, 1 ms, is three times its level; its tops are not that low."""
    (found,) = watched(of_collector((13.9, 15.7), (0.04, 0.25)) - 1.0)

    assert abs(found.onset_k - 5700) <= 60


@pytest.mark.long
@pytest.mark.parametrize(("calm_hours", "news"), [(1, 0), (3, 1)])
def test_another_beat_long_after_is_news(calm_hours: int, news: int) -> None:
    early, late = (
        of_collector((13.9, 13.9), (0.017, 0.017)),
        of_collector((15.7, 15.7), (0.02, 0.02)),
    )
    quiet = np.random.default_rng(5).normal(np.log10(0.46), 0.05, 3600 * calm_hours)

    assert len(confirmed(watched(np.concatenate([early, quiet, late])))) == news
