"""Causes and incidents on made-up minutes around a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from detectors.attribution import attribute
from detectors.nearby import Nearby, TimedEvent
from soak.core.model import Change, Event, Series
from tests.support.detection.cause_panels import around, channel

P99 = 'produce.0@h|publish_latency_seconds{quantile="0.99"}'
ONSET, END = 100, 180
STEP = Change(P99, 106, ONSET, (99, 101), 0.004, 0.06, "confirmed", 0.999)


def deletion(k: int) -> TimedEvent:
    fields: dict[str, str | int | float] = {"topic": "t", "partition": 0, "bytes": 2**20}
    return TimedEvent(k, Event("retention_deletion", k * 10**9, (k - 1) * 10**9, fields))


def latency(high: NDArray[np.int64], seed: int = 0) -> Series:
    """4 ms of noise, 60 ms in the seconds `high`."""
    y = np.log10(0.004) + np.random.default_rng(seed).normal(0.0, 0.1, END)
    y[high] += np.log10(15.0)
    return Series(P99, np.arange(END, dtype=np.int64), 10.0**y)


def nearby(high: NDArray[np.int64], deletions: list[int], seed: int = 0) -> Nearby:
    return Nearby(
        k0=0,
        k1=END,
        series={P99: latency(high, seed)},
        events=tuple(deletion(k) for k in deletions),
    )


STEPPED = np.arange(ONSET, END)


def causes(found: Nearby, change: Change = STEP) -> list[str]:
    return [explanation.cause for explanation in attribute(change, found)]


@pytest.mark.parametrize("first", [-3, 0, 2])
def test_deletions_in_every_second_from_the_onset_on_are_named(first: int) -> None:
    found = nearby(STEPPED, list(range(ONSET + first, END)))
    (explanation,) = attribute(STEP, found)
    texts = [evidence.text for evidence in explanation.evidence]

    assert explanation.cause == "retention_cliff"
    assert explanation.score > 0.8
    assert "The first deletion of old segments in this run came" in texts[0]
    assert texts[1].startswith(("All of the first 80 s from the onset on held a deletion", "78 of"))
    assert texts[1].endswith(": the p99 publish latency of seconds without one is not known.")


def test_deletions_in_some_seconds_are_named_with_what_they_explain() -> None:
    deletions = [k for k in range(ONSET, END) if k % 3 != 1]
    (explanation,) = attribute(STEP, nearby(np.array(deletions), deletions))
    numbers = explanation.evidence[1].numbers

    assert explanation.score > 0.9
    assert float(numbers["p_value"]) <= 0.01
    assert float(numbers["explained_ratio"]) > 0.9


def test_deletions_that_explain_a_fifth_of_the_step_come_after_a_drive_that_explains_it() -> None:
    """Latency is four times as high all along, and half as high again in the seconds of deletions."""
    deletions = list(range(ONSET, END, 3))
    k = np.arange(END, dtype=np.int64)
    y = np.where(k < ONSET, 0.004, 0.016) * np.random.default_rng(1).lognormal(0.0, 0.05, END)
    y[deletions] *= 1.35
    drive = '{device="vda"}'
    found = around(
        Series(P99, k, y),
        channel(f"probe@b1|disk_write_await_seconds{drive}", 1e-3, 3.2e-3),
        channel(f"probe@b1|node_disk_write_time_seconds{drive}", 0.1, 0.8),
        channel(f"probe@b1|node_disk_written_bytes{drive}", 9e6, 9e6),
        channel(f"probe@b1|disk_device_turnover_ratio{drive}", 2.0, 2.0),
        channel("produce.0@h|sent_messages", 200.0, 200.0),
        events=tuple(map(deletion, deletions)),
    )

    assert causes(found, replace(STEP, after=0.016)) == ["drive_gc", "retention_cliff"]


def test_files_unlinked_a_second_after_the_deletion_are_locked_too() -> None:
    deletions = [k for k in range(ONSET, END - 1) if k % 4 == 0]
    (explanation,) = attribute(STEP, nearby(np.array(deletions) + 1, deletions))

    assert explanation.score > 0.9
    assert "1 s after a deletion" in explanation.evidence[1].text


@pytest.mark.parametrize("first", [ONSET + 5, ONSET + 30, END])
def test_deletions_that_begin_after_the_step_are_not_its_cause(first: int) -> None:
    assert causes(nearby(STEPPED, list(range(first, END)))) == ["unknown"]


def test_deletions_that_a_broker_only_counts_are_deletions() -> None:
    name = 'probe@b1|vectorized_storage_log_log_segments_removed{target="rp"}'
    counted = Series(name, np.arange(END, dtype=np.int64), (np.arange(END) >= ONSET).astype(float))
    found = Nearby(0, END, {P99: latency(STEPPED), name: counted})

    assert causes(found) == ["retention_cliff"]


@pytest.mark.parametrize(("k0", "since"), [(0, "in this run"), (40, "in 60 s")])
def test_what_was_counted_before_the_window_is_not_known(k0: int, since: str) -> None:
    """Nobody tells these deletions one by one, so there may have been others earlier in the run."""
    name = 'probe@b1|bookie_DELETED_LEDGERS{target="b1"}'
    counted = Series(name, np.arange(END, dtype=np.int64), (np.arange(END) >= ONSET).astype(float))
    found = Nearby(k0, END, {P99: latency(STEPPED), name: counted})
    text = attribute(STEP, found)[0].evidence[0].text

    assert f"The first deletion of old segments {since} came at the onset" in text


def test_one_deletion_at_the_onset_is_no_cause() -> None:
    """Nothing shows that the two have to do with each other."""
    assert causes(nearby(STEPPED, [ONSET])) == ["unknown"]


@pytest.mark.parametrize("every", [6, 10, 30])
def test_deletions_that_begin_at_the_onset_and_lock_nothing_are_no_cause(every: int) -> None:
    """Latency is as high long after each of them."""
    assert causes(nearby(STEPPED, list(range(ONSET, END, every)))) == ["unknown"]


@pytest.mark.long
def test_a_few_seconds_without_a_deletion_do_not_hide_the_cliff() -> None:
    """About one a second: some seconds hold two, so that others hold none. 20 seeds."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        told = np.unique(np.arange(ONSET, END) + rng.integers(0, 2, END - ONSET))

        assert causes(nearby(STEPPED, told.tolist(), seed)) == ["retention_cliff"]


@pytest.mark.parametrize("first", [ONSET - 20, ONSET + 20])
def test_a_vague_onset_does_not_catch_any_first_deletion(first: int) -> None:
    vague = replace(STEP, interval=(ONSET - 30, ONSET + 30))

    assert causes(nearby(STEPPED, list(range(first, END))), vague) == ["unknown"]


def test_a_rate_that_rises_long_after_the_onset_is_no_start() -> None:
    found = nearby(STEPPED, [50, *range(ONSET + 20, END)])

    assert causes(found) == ["unknown"]


def test_evidence_is_written_as_people_read_it() -> None:
    p999 = 'produce.0@h|publish_latency_seconds{quantile="0.999"}'
    found = nearby(STEPPED, list(range(ONSET + 1, END)))
    (explanation,) = attribute(replace(STEP, series=p999), found)
    texts = " ".join(evidence.text for evidence in explanation.evidence)

    assert "1 s after the onset (topic t, partition 0, about 1 MiB)" in texts
    assert "p99.9 publish latency" in texts


@pytest.mark.long
def test_deletions_that_began_half_a_minute_before_the_step_are_not_its_cause() -> None:
    """30 seeds each of every second, every third, and at random: none is locked to the latency."""
    rng = np.random.default_rng(0)
    wrong = 0
    for seed in range(30):
        for deletions in (
            list(range(ONSET - 30, END)),
            list(range(ONSET - 30, END, 3)),
            np.flatnonzero(rng.random(END - ONSET + 30) < 0.5).tolist(),
        ):
            shifted = [k if k >= ONSET - 30 else k + ONSET - 30 for k in deletions]
            wrong += causes(nearby(STEPPED, shifted, seed)) != ["unknown"]

    assert wrong == 0


def test_deletions_that_began_before_count_when_latency_is_locked_to_them() -> None:
    deletions = list(range(ONSET - 30, END, 3))
    high = np.array([k for k in deletions if k >= ONSET])

    assert causes(nearby(high, deletions)) == ["retention_cliff"]


def test_deletions_before_the_window_are_not_the_first_of_the_run() -> None:
    found = nearby(STEPPED, list(range(ONSET, END)))
    earlier = Nearby(found.k0, found.k1, found.series, (), found.events, {"retention_deletion": 40})
    text = attribute(STEP, earlier)[0].evidence[0].text

    assert causes(earlier) == ["retention_cliff"]  # the rate rose
    assert "60 s before it 0" in text


def test_a_step_down_has_no_cliff() -> None:
    down = Change(P99, 106, ONSET, (99, 101), 0.06, 0.004, "confirmed", 0.999)

    assert causes(nearby(STEPPED, list(range(ONSET, END))), down) == ["unknown"]


def test_without_the_latency_series_the_time_of_the_onset_still_counts() -> None:
    found = nearby(STEPPED, list(range(ONSET, END)))

    assert causes(Nearby(0, END, events=found.events)) == ["retention_cliff"]


def test_an_empty_minute_is_unknown_and_the_report_says_what_to_measure() -> None:
    (explanation,) = attribute(STEP, Nearby(0, END))

    assert explanation.cause == "unknown"
    assert "these would have to be measured" in explanation.evidence[-1].text


# --- deletions of others


def logged(topic: str, *ks: int) -> list[TimedEvent]:
    """Return deletions as a broker's log has them: those of all topics."""
    return [
        replace(one, event=replace(one.event, kind="segment_deletion", fields={"topic": topic}))
        for one in map(deletion, ks)
    ]


@pytest.mark.parametrize("every", [2, 10])
def test_deletions_of_other_topics_that_begin_at_the_onset_are_named(every: int) -> None:
    """This run's topic deletes all along, and both its probe and the log report that."""
    own = list(range(0, END, every))
    of_log = [*logged("t", *own), *logged("other", *range(ONSET, END))]
    events = sorted([*map(deletion, own), *of_log], key=lambda one: one.k)
    found = replace(nearby(STEPPED, []), events=tuple(events), topics=frozenset({"t"}))
    (explanation,) = attribute(STEP, found)

    assert (explanation.cause, explanation.suspect) == ("retention_cliff", "topic other")
    assert "at the onset (topic other)" in explanation.evidence[0].text


def test_deletions_that_a_broker_only_counts_are_seen_beside_those_of_the_run() -> None:
    name = 'probe@b1|vectorized_storage_log_log_segments_removed{target="rp"}'
    k = np.arange(END, dtype=np.int64)
    own = nearby(STEPPED, list(range(0, END, 10)))
    counted = Series(name, k, (k >= ONSET).astype(float))

    assert causes(own) == ["unknown"]
    assert causes(replace(own, series={**own.series, name: counted})) == ["retention_cliff"]
