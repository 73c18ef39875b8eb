"""The retention forecast: cases worked out by hand, and what must hold of every one."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.brokers.kafka import retention
from soak.core.cluster.forecast import (
    NEVER,
    Arrivals,
    Drive,
    Forecast,
    Limits,
    Scene,
    Stored,
    Window,
    busiest_ratio,
    compare_with_event,
    forecast,
    forecast_json,
    forecast_lines,
    forecast_obstacles,
    forecast_plan,
    forecast_warnings,
)
from soak.core.plan import text
from soak.core.plan.load import Keys
from soak.core.plan.plan import Plan
from tests.support.examples import examples

SCENE = Scene(partitions=2, copies=3, soak=(60.0, 660.0), end=700.0)


KILOBYTE = Stored(1000.0)


RATE = st.floats(1e-3, 1e6)


LENGTH = st.floats(0, 1e6) | st.just(NEVER)


LIMITS = st.builds(
    Limits,
    segment_bytes=st.floats(1, 1e12) | st.just(NEVER),
    segment_entries=st.floats(1, 1e9) | st.just(NEVER),
    segment_seconds=st.floats(1, 1e6) | st.just(NEVER),
    least_segment_seconds=st.floats(0, 1e4),
    keep_bytes=st.floats(0, 1e13) | st.just(NEVER),
    keep_seconds=LENGTH,
    check_seconds=st.floats(0, 300),
    free_seconds=st.floats(0, 3600) | st.none(),
)


def made(rate: float, limits: Limits, stored: Stored = KILOBYTE, scene: Scene = SCENE) -> Forecast:
    return forecast(Arrivals([(0, rate)]), stored, limits, scene)


def test_the_limit_in_bytes_is_reached_when_it_is_full_without_the_first_segment() -> None:
    """50 kB/s a partition: a segment in 20 s, and 5 MB of others after 100 s more, seen within 10 s."""
    found = made(
        100,
        Limits(segment_bytes=1e6, keep_bytes=5e6, check_seconds=10, free_seconds=60),
    )

    assert found == Forecast(
        limit="bytes",
        first_closed=20,
        first_deletion=Window(120, 130),
        first_free=Window(180, 190),
        deletions_every=10,
        written_bytes=700 * 100_000 * 3,
        most_held_bytes=6 * (5e6 + 50_000 * (20 + 10 + 60)),
        seen="in the soak",
        seen_seconds=530,
    )


def test_the_limit_in_time_counts_from_the_close_of_the_first_segment() -> None:
    """Its last message is what has to be old enough: 20 s and 90 s."""
    found = made(100, Limits(segment_bytes=1e6, keep_seconds=90, keep_bytes=5e6))

    assert (found.limit, found.first_deletion) == ("time", Window(110, 110))


def test_a_segment_is_closed_by_whatever_comes_first() -> None:
    """Bytes, entries or age; and never before its least age."""
    full = Limits(segment_bytes=1e6, segment_entries=500, segment_seconds=15, keep_seconds=0)

    closed = [
        made(100, limits, Stored(1000.0, 1.5)).first_closed
        for limits in (
            full,
            dataclasses.replace(full, segment_seconds=NEVER),
            dataclasses.replace(full, segment_seconds=NEVER, segment_entries=NEVER),
            dataclasses.replace(full, least_segment_seconds=40, segment_seconds=NEVER),
        )
    ]

    assert closed == [15, 15, 20, 40]


def test_rates_that_change_are_followed() -> None:
    """100/s for a minute, then 10 times that: the last 4 of 10 MB take 4 s instead of 40."""
    arrivals = Arrivals([(0, 100.0), (60, 1000.0)])
    scene = dataclasses.replace(SCENE, partitions=1)
    limits = Limits(segment_bytes=1e6, keep_bytes=9e6)

    found = forecast(arrivals, KILOBYTE, limits, scene)

    assert found.first_deletion == Window(64, 64)


def test_the_busiest_partition_is_the_first_to_delete() -> None:
    """It gets twice the mean, here all there is; what is held is that of all."""
    scene = dataclasses.replace(SCENE, busiest_ratio=2.0)

    found = made(100, Limits(segment_bytes=1.5e6, keep_bytes=6e6), scene=scene)

    assert found.first_deletion == Window(75, 75)


def test_without_a_limit_nothing_is_deleted_and_all_is_held() -> None:
    found = made(100, Limits(segment_bytes=1e6))

    assert (found.limit, found.first_deletion, found.seen) == ("", None, "never")
    assert found.most_held_bytes == found.written_bytes


@pytest.mark.parametrize(
    ("keep_seconds", "seen", "seconds", "words"),
    [
        (30, "in the warm-up", 600, "falls into the warm-up"),
        (130, "in the soak", 508, ""),
        (639, "in the soak", 0, "the soak may end before the broker looks for old data"),
        (645, "after the soak", 0, "the soak ends before old data is deleted, 11 min 6 s after"),
        (1_000, "after the run", 0, "the soak ends before old data is deleted, 17 min 1 s after"),
    ],
)
def test_a_run_that_will_not_see_it_is_warned_of(
    keep_seconds: float, seen: str, seconds: float, words: str
) -> None:
    """A limit behind the soak, or one that the warm-up hides."""
    found = made(100, Limits(segment_bytes=1e6, keep_seconds=keep_seconds, check_seconds=2))

    assert (found.seen, found.seen_seconds) == (seen, seconds)
    assert words in "".join(forecast_warnings(found, None))
    assert bool(words) == bool(forecast_warnings(found, None))


def test_a_deletion_that_the_soak_may_miss_is_said_so_in_both_lines() -> None:
    """The keys that bring it forward are named, by the limit that is reached."""
    found = made(100, Limits(segment_bytes=1e6, keep_seconds=639, check_seconds=2))

    assert "after the start, in the soak or after it;" in forecast_lines(found, None)[0]
    (warning,) = forecast_warnings(found, None)
    assert "lower retention.ms and segment.ms" in warning
    assert "in topic.settings, or lengthen phases.soak" in warning


def test_a_drive_that_will_be_full_is_warned_of() -> None:
    """420 of 500 MB are to be held, and 100 are taken."""
    found = made(200, Limits(segment_bytes=1e6))
    drive = Drive(total_bytes=500 * 10**6, free_bytes=400 * 10**6)

    assert drive.fill_ratio(found.most_held_bytes) == 1.04
    assert "the drive then 104% full" in forecast_lines(found, drive)[-1]
    assert "are to be held, and the drive has 381 MiB free" in forecast_warnings(found, drive)[-1]


def test_the_words_say_when_and_what_is_seen() -> None:
    found = made(100, Limits(segment_bytes=1e6, keep_bytes=5e6, check_seconds=10, free_seconds=60))

    first, second = forecast_lines(found, None)
    assert first == (
        "Retention: the limit in bytes is reached between 2 min and 2 min 10 s after the start, in the soak, "
        "which goes on for 8 min 50 s with deletions; the space is free 1 min later."
    )
    assert second == "Storage: 200 MiB are written, at most 54.4 MiB held, all copies together."


def test_what_never_happens_is_null_in_json() -> None:
    """JSON knows no infinity."""
    limits = Limits(notes=("a note",))

    body = forecast_json(made(100, limits), limits, KILOBYTE, None)

    assert (body["first_deletion_seconds"], body["first_closed_seconds"]) == (None, None)
    assert body["notes"] == ["a note"]
    assert isinstance(body["limits"], dict)
    assert body["limits"]["keep_bytes"] is None


@pytest.mark.parametrize(
    ("came", "error", "expected"),
    [(120.0, -5.0, True), (141.0, 16.0, True), (143.0, 18.0, False), (None, None, None)],
)
def test_forecast_and_event_are_compared(
    came: float | None, error: float | None, expected: object
) -> None:
    """A forecast is right if the event is in its window, or outside it by at most 10 % or 5 s."""
    predicted: dict[str, object] = {"first_deletion_seconds": [120.0, 130.0]}

    found = compare_with_event(predicted, {"first_deletion": came, "first_free": None})

    assert (found["error_seconds"], found["is_as_foreseen"]) == (error, expected)


@pytest.mark.parametrize(("until", "expected"), [(None, None), (142.0, None), (143.5, False)])
def test_a_deletion_that_did_not_come_in_an_observed_run_contradicts_the_forecast(
    until: float | None, expected: object
) -> None:
    """The worst that a forecast can do; a load that ended before it proves nothing."""
    predicted: dict[str, object] = {"first_deletion_seconds": [120.0, 130.0]}

    found = compare_with_event(predicted, {"first_deletion": None}, until)

    assert (found["is_as_foreseen"], found["error_seconds"]) == (expected, None)


def test_drives_hold_no_more_than_the_local_limits_of_tiered_storage() -> None:
    """Messages are deleted when their own limit is reached, which is later."""
    limits = retention.retention_of(
        {
            "remote.storage.enable": "true",
            "retention.bytes": "50000000",
            "segment.bytes": "1000000",
            "local.retention.bytes": "5000000",
            "local.retention.ms": "-2",
        },
        {"log.retention.check.interval.ms": "10000"},
    )

    found = made(100, limits)

    assert (limits.local_bytes, limits.local_seconds) == (5e6, NEVER)
    assert found.first_deletion == Window(1020, 1030)
    assert found.most_held_bytes == 6 * (5e6 + 50_000 * (20 + 10 + 60))
    assert "storage is tiered" in limits.notes[-1]


def test_copies_are_those_of_the_topic_that_is_there() -> None:
    """The plan knows only how many it would have made."""
    found = forecast_plan(_plan(TIGHT), Limits(segment_bytes=1e6, copies=3), KILOBYTE)

    assert found.written_bytes == 3 * 665 * 1000 * 1000


TIGHT = (
    "load: {rate: 1k/s, message_size: 1000B}\n"
    "phases: {warm_up: 60s, soak: 600s, cool_down: 5s, drain: 5s}\ntopic: {partitions: 1}\n"
)


@pytest.mark.parametrize(
    ("ramp", "limits", "words"),
    [
        ("", Limits(), []),
        ("ramp: {}, ", Limits(), []),
        (
            "ramp: {soak_share: 0.8}, ",
            Limits(),
            ["the ramp decides the rate of the soak"],
        ),
        ("", Limits(is_empty=False), ["the topics may hold older messages"]),
    ],
)
def test_a_first_deletion_that_depends_on_unknowns_is_not_forecast(
    ramp: str, limits: Limits, words: list[str]
) -> None:
    """A soak at a rate that is still to be found, and topics that are full already."""
    plan = _plan(TIGHT.replace("warm_up", f"{ramp}warm_up"))

    found = forecast_obstacles(plan, limits)

    assert [one.partition(",")[0] for one in found] == words


@settings(max_examples=examples(40))
@given(rate=RATE, more=st.floats(1, 100), limits=LIMITS)
def test_a_higher_rate_never_comes_later_and_never_holds_less(
    rate: float, more: float, limits: Limits
) -> None:
    slow, fast = made(rate, limits), made(rate * more, limits)

    assert fast.first_closed <= slow.first_closed * (1 + 1e-9)
    assert _middle(fast) <= _middle(slow) * (1 + 1e-9)
    assert fast.most_held_bytes >= slow.most_held_bytes * (1 - 1e-9)


@settings(max_examples=examples(40))
@given(rate=RATE, limits=LIMITS, unit=st.sampled_from([1e-3, 8.0, 2.0**20]))
def test_the_unit_of_bytes_does_not_matter(rate: float, limits: Limits, unit: float) -> None:
    """In bits or mebibytes the same seconds come out."""
    other = dataclasses.replace(
        limits, segment_bytes=limits.segment_bytes * unit, keep_bytes=limits.keep_bytes * unit
    )
    one, two = made(rate, limits), made(rate, other, Stored(1000.0 * unit))

    assert _middle(two) == pytest.approx(_middle(one), rel=1e-6)
    assert two.most_held_bytes == pytest.approx(one.most_held_bytes * unit, rel=1e-6)


@settings(max_examples=examples(40))
@given(rate=RATE, limits=LIMITS, factor=st.floats(0.1, 10))
def test_a_clock_of_another_speed_gives_the_same_run(
    rate: float, limits: Limits, factor: float
) -> None:
    """All seconds times a factor, and the rate divided by it."""
    times = ("segment_seconds", "least_segment_seconds", "keep_seconds", "check_seconds")
    changed = {name: getattr(limits, name) * factor for name in times}
    one, two = made(rate, limits), made(rate / factor, dataclasses.replace(limits, **changed))

    assert _middle(two) == pytest.approx(_middle(one) * factor, rel=1e-6)


@settings(max_examples=examples(40))
@given(rate=RATE, limits=LIMITS)
def test_no_more_is_held_than_is_written_and_the_first_is_no_earlier_than_its_segment(
    rate: float, limits: Limits
) -> None:
    found = made(rate, limits)

    assert 0 <= found.most_held_bytes <= found.written_bytes * (1 + 1e-9)
    assert found.first_deletion is None or found.first_deletion.earliest >= found.first_closed


@settings(max_examples=examples(40))
@given(
    steps=st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 10**5)), max_size=20),
    count=st.floats(0, 1e7),
)
def test_arrivals_turn_time_to_count_and_back(steps: list[tuple[int, int]], count: float) -> None:
    """Where the count is reached at all, it is reached there and not before."""
    second, rates = 0, [(0, 23.0)]
    for length, rate in steps:
        second += length
        rates.append((second, rate))
    arrivals = Arrivals(rates)
    when = arrivals.when(count)

    if math.isinf(when):
        assert rates[-1][1] == 0
    else:
        assert arrivals.count(when) == pytest.approx(count, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("rates", [[], [(1, 5.0)], [(0, 5.0), (0, 6.0)], [(0, -1.0)]])
def test_rates_that_are_no_load_are_refused(rates: list[tuple[int, float]]) -> None:
    with pytest.raises(ValueError, match="rate"):
        Arrivals(rates)


def test_a_plan_leads_to_its_forecast() -> None:
    """Profile, phases and keys count; a ramp counts as over at once."""
    plan = _plan(
        "load: {rate: 100/s, profile: {steps: [{after: 100s, rate: 1k/s}]}, message_size: 1000B}\n"
        "phases: {warm_up: 60s, ramp: {}, soak: 600s, drain: 5s}\n"
        "topic: {partitions: 1, replication: 2}\n"
    )

    found = forecast_plan(plan, Limits(segment_bytes=1e6, keep_bytes=16e6), KILOBYTE)

    assert found.first_deletion == Window(161, 161)
    assert found.written_bytes == 2 * (160 * 100_000 + 500 * 1_000_000)
    assert (found.seen, found.seen_seconds) == ("in the soak", 499)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (Keys(), 1.0),
        (Keys(kind="random", count=1), 4.0),
        (Keys(kind="zipf", count=2, exponent=1.0), 4 * 2 / 3 + 1 / 3),
    ],
)
def test_the_busiest_partition_is_that_of_the_most_frequent_key(
    keys: Keys, expected: float
) -> None:
    assert busiest_ratio(keys, 4) == pytest.approx(expected)


def _middle(found: Forecast) -> float:
    return NEVER if found.first_deletion is None else found.first_deletion.middle


def _plan(more: str) -> Plan:
    return text.load(f"name: x\nbroker: {{kafka: {{}}}}\n{more}", "plan.yaml").plan
