"""The drive as the cause: slower with no more to do, and what looks like it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from detectors.attribution import attribute
from detectors.nearby import Nearby
from soak.core.model import Series
from tests.support.detection.cause_panels import END, ONSET, STEP, around, channel

VDA = '{device="vda"}'
AWAIT = f"probe@b1|disk_write_await_seconds{VDA}"
BUSY = f"probe@b1|node_disk_write_time_seconds{VDA}"
WRITTEN = f"probe@b1|node_disk_written_bytes{VDA}"
SENT = "produce.0@h|sent_messages"


def turned(ratio: float) -> Series:
    return channel(f"probe@b1|disk_device_turnover_ratio{VDA}", ratio, ratio)


def starving(turns: float = 2.0, written: float = 9e6, at: int = ONSET) -> list[Series]:
    return [
        channel(AWAIT, 1e-4, 1.1e-3, at),
        channel(BUSY, 0.145, 0.96, at),
        channel(WRITTEN, 9e6, written),
        channel(SENT, 200.0, 200.0),
        turned(turns),
    ]


def causes(found: Nearby) -> list[str]:
    return [one.cause for one in attribute(STEP, found)]


def test_a_drive_written_over_that_slows_with_no_more_to_do() -> None:
    """The figures of a flash drive whose erased blocks ran out."""
    (found,) = attribute(STEP, around(*starving()))
    texts = " ".join(one.text for one in found.evidence)

    assert found.cause == "drive_gc"
    assert found.score > 0.85
    assert "disk write await (vda) of probe@b1 went from 100 us to 1.1 ms" in texts
    assert "had been written 2.1 times its capacity" in texts


def test_a_drive_never_written_over_is_named_with_less() -> None:
    often, never = (attribute(STEP, around(*starving(turns)))[0] for turns in (2.0, 0.1))

    assert never.cause == "drive_gc"
    assert never.score < often.score - 0.2


def test_how_often_the_probe_s_own_drive_was_written_over_says_nothing_of_a_page_s() -> None:
    """It reads the page of another host, whose drive slows."""
    page = [
        replace(one, name=one.name.replace("}", ',target="b2:9100"}')) for one in starving()[:3]
    ]
    (found,) = attribute(STEP, around(*page, channel(SENT, 200.0, 200.0), turned(2.0)))

    assert (found.cause, found.score <= 0.65) == ("drive_gc", True)
    assert (
        found.evidence[3].text
        == "How many times its capacity the drive has been written is not known."
    )


def test_a_drive_that_got_more_to_do_is_not_collecting_garbage() -> None:
    assert "drive_gc" not in causes(around(*starving(written=30e6)))


def other(written: float) -> list[Series]:
    """Return the drive of another broker, which gets as much to do as the first and then this much."""
    calm = [*starving()[:2], channel(WRITTEN, 9e6, written)]
    named = [replace(one, name=one.name.replace("vda", "vdb")) for one in calm]
    return [replace(one, values=np.full(END, one.values[0])) for one in named[:2]] + named[2:]


def test_drives_of_several_brokers_that_get_more_to_do_are_not_collecting_garbage() -> None:
    """Others write to the cluster: it is chance which of its drives shows that least."""
    assert causes(around(*starving(), *other(9e6))) == ["drive_gc"]
    assert causes(around(*starving(), *other(20e6))) == ["unknown"]


def test_bytes_that_grew_by_half_are_not_the_same_work() -> None:
    """Also where their noise hides it: no evidence says that 900 KiB/s grew to 1.4 MiB/s by nothing."""
    noisy = channel(WRITTEN, 9e6, 13.5e6)
    noisy = replace(noisy, values=noisy.values * np.resize([0.5, 1.0, 1.6], END))
    rest = [one for one in starving() if one.name != WRITTEN]

    assert "drive_gc" not in causes(around(*rest, noisy))


def stalling(device: str, seconds: list[int]) -> list[Series]:
    """Return a drive that is fast but in these seconds, and given no more to do."""
    found = [channel(AWAIT, 1e-3, 1.6e-3), channel(BUSY, 0.1, 0.1), channel(WRITTEN, 9e6, 9e6)]
    found[0].values[seconds] *= 100.0
    return [replace(one, name=one.name.replace("vda", device)) for one in found]


def test_a_drive_that_stalls_now_and_then_is_the_one_that_latency_follows() -> None:
    """It is fast in most seconds: no median of it steps, and the peer of the other broker stays."""
    seconds = [k for k in range(ONSET, END) if k % 7 in {1, 2, 4}]
    latency = channel(STEP.series, STEP.before, 2.0 * STEP.before)
    latency.values[seconds] = 0.9
    both = [*stalling("vda", seconds), *stalling("vdb", [])]
    (found, *_) = attribute(STEP, around(latency, *both, turned(2.0)))

    assert (found.cause, found.suspect) == ("drive_gc", "vda on b1")
    assert "Latency follows the writes of vda on b1 second by second" in found.evidence[0].text


@pytest.mark.parametrize("at", [ONSET - 40, ONSET + 20])
def test_a_drive_that_slows_at_another_time_is_not_the_cause(at: int) -> None:
    assert causes(around(*starving(at=at))) == ["unknown"]


def test_a_drive_whose_bytes_are_not_known_is_not_blamed() -> None:
    series = [one for one in starving() if one.name != WRITTEN]

    assert causes(around(*series)) == ["unknown"]


def test_a_drive_that_slows_a_little_does_not_explain_a_large_step() -> None:
    little = [channel(AWAIT, 1e-4, 1.3e-4), channel(BUSY, 0.1, 0.16), *starving()[2:]]

    assert causes(around(*little)) == ["unknown"]


def test_node_exporter_s_rates_tell_the_time_of_a_write() -> None:
    page = '{device="vda",target="b1"}'
    count = f"probe@h|node_disk_writes_completed{page}"
    series = [
        channel(f"probe@h|node_disk_write_time_seconds{page}", 0.1, 0.9),
        channel(count, 1000.0, 1000.0),
        channel(f"probe@h|node_disk_written_bytes{page}", 9e6, 9e6),
    ]

    assert causes(around(*series)) == ["drive_gc"]


def test_the_unit_of_no_channel_matters_to_where_its_onset_is() -> None:
    series = [Series(one.name, one.k, one.values * 1.0) for one in starving()]
    noisy = [Series(one.name, one.k, np.where(one.k == 50, 1e3, one.values)) for one in series]

    assert causes(around(*noisy)) == ["drive_gc"]  # one outlier in each channel


def test_a_channel_that_is_told_late_may_change_late() -> None:
    series = starving(at=ONSET + 20)

    assert causes(around(*series, lag=30.0)) == ["drive_gc"]
    assert causes(around(*series)) == ["unknown"]


def test_the_drive_of_a_broker_that_was_not_touched_explains_nothing() -> None:
    """Broker 2's latency steps, broker 1's stays: broker 1's drive is not the cause."""

    def led(leader: int, after: float) -> Series:
        name = f'produce.0@h|publish_latency_seconds{{leader="{leader}",quantile="0.99"}}'
        return channel(name, 0.004, after)

    def on(broker: int) -> list[Series]:
        return [
            Series(one.name.replace("@b1", f"@broker{broker}"), one.k, one.values)
            for one in starving()
        ]

    calm = [channel(AWAIT.replace("@b1", f"@broker{n}"), 1e-4, 1e-4) for n in (1, 2)]
    by_leader = [*calm, led(1, 0.004), led(2, 0.06)]

    assert causes(around(*by_leader, *on(2))) == ["drive_gc"]
    assert causes(around(*by_leader, *on(1))) == ["unknown"]


def test_what_comes_after_the_next_step_is_another_one_s() -> None:
    """The drive starved for half a minute and was trimmed: latency stepped down to where it had not been."""
    is_starving = (np.arange(END) >= ONSET) & (np.arange(END) < ONSET + 30)
    high, low = starving(), starving()
    series = [
        replace(up, values=np.where(is_starving | (up.k < ONSET), up.values, down.values[0]))
        for up, down in zip(high, low, strict=True)
    ]
    down = replace(STEP, raised_k=ONSET + 36, onset_k=ONSET + 30, interval=(ONSET + 29, ONSET + 31))
    all_seen = around(*series)

    assert causes(all_seen) == ["unknown"]
    assert causes(replace(all_seen, changes=(STEP, down))) == ["drive_gc"]


def test_too_few_values_after_the_step_tell_nothing() -> None:
    short = [Series(one.name, one.k[: ONSET + 4], one.values[: ONSET + 4]) for one in starving()]

    assert causes(Nearby(0, END, {one.name: one for one in short})) == ["unknown"]


NVME = '{device="vda"}'


def logged(metric: str, *values: float) -> Series:
    """Return what the drive logs each half minute, the first three values before the onset."""
    k = np.arange(10, END + 60, 30)[: len(values)]
    return Series(f"probe@b1|{metric}{NVME}", k, np.array(values, dtype=np.float64))


def wrote(*amplification: float) -> list[Series]:
    """Return the counters of a drive that is sent 100 MB in half a minute and writes as many times that."""
    sent = np.arange(1, len(amplification) + 1) * 100e6
    flash = np.cumsum(np.array(amplification)) * 100e6
    return [logged("smart_written_bytes", *sent), logged("smart_media_written_bytes", *flash)]


def score(*more: Series, turns: float = 0.1) -> float:
    (found,) = attribute(STEP, around(*starving(turns), *more))
    return found.score if found.cause == "drive_gc" else 0.0


def test_a_drive_that_writes_more_to_its_flash_than_before_collects() -> None:
    """By its own counters, whatever is known of its capacity."""
    more = wrote(1.1, 1.1, 1.1, 2.6, 2.6)
    (found,) = attribute(STEP, around(*starving(0.1), *more))

    assert found.score > score() + 0.2
    assert any("1.10 bytes to its flash" in one.text for one in found.evidence)
    assert any("2.60 from then on" in one.text for one in found.evidence)


def test_a_drive_that_writes_what_it_is_sent_collects_nothing() -> None:
    assert score(*wrote(*[1.02] * 5), turns=2.0) < 0.5


def test_a_drive_that_collected_before_as_well_may_have_run_out_of_blocks() -> None:
    """The number of free blocks says so; amplification that stays says nothing."""
    stays = wrote(*[2.5] * 5)
    fewer = logged("smart_free_blocks_ratio", 0.3, 0.28, 0.26, 0.04, 0.03)

    assert score(*stays) == pytest.approx(score())
    assert score(*stays, fewer) > score(*stays) + 0.1


def test_too_few_bytes_say_nothing_of_the_flash() -> None:
    """Counters of half megabytes."""
    few = [replace(one, values=one.values / 1000) for one in wrote(1.1, 1.1, 1.1, 2.6, 2.6)]

    assert score(*few) == pytest.approx(score())


@pytest.mark.parametrize(
    ("metric", "values", "said"),
    [
        ("smart_throttled_seconds", (5, 5, 5, 31, 60), "was throttled by itself for 55 s"),
        ("smart_throttle_events", (2, 2, 2, 3, 3), "throttled itself 1 times"),
        ("smart_throttle_level", (0, 0, 0, 2, 2), "went up to throttle level 2"),
        ("smart_hot_seconds", (0, 0, 0, 60, 60), "was above its warning temperature for 60 s"),
    ],
)
def test_a_drive_that_throttled_itself_is_no_garbage(
    metric: str, values: tuple[float, ...], said: str
) -> None:
    """It says so in its own log."""
    (found, *_) = attribute(STEP, around(*starving(0.1), logged(metric, *values)))

    assert found.cause == "drive_throttled"
    assert any(said in one.text for one in found.evidence)


def test_a_drive_that_is_always_throttled_says_nothing_of_this_step() -> None:
    """Its counter rises as fast as before."""
    assert score(logged("smart_throttled_seconds", 10, 20, 30, 40, 50)) == pytest.approx(score())


def test_a_log_that_begins_after_the_onset_says_nothing() -> None:
    late = Series(f"probe@b1|smart_throttle_level{NVME}", np.array([130]), np.array([3.0]))

    assert score(late) == pytest.approx(score())


def test_requests_that_the_drive_counted_as_slow_were_not_slow_above_it() -> None:
    assert score(logged("smart_slow_requests", 0, 0, 0, 12, 40)) > score()
