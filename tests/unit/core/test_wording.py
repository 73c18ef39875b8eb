"""Names, amounts and moments as people read them."""

from __future__ import annotations

import dataclasses
import math

import pytest

from probes import disk_io, host, pressure
from probes.prometheus import name_map
from soak.core import wording
from soak.core.model import Finding
from soak.core.series import parse_series, series_name


@pytest.mark.parametrize(
    ("series", "title"),
    [
        ('consume.0@h|end_to_end_latency_seconds{quantile="0.99"}', "p99 end-to-end latency"),
        ('produce.0@h|publish_latency_seconds{quantile="0.999"}', "p99.9 publish latency"),
        ('produce.0@h|schedule_lag_seconds{quantile="max"}', "max schedule lag"),
        (
            'probe@h|fsync_latency_seconds{directory="/data",quantile="0.5"}',
            "p50 fsync latency (/data)",
        ),
        ('probe@h|node_disk_io_time_seconds{device="vda"}', "disk IO time (vda)"),
        ("probe@h|host_cpu_ratio", "host CPU"),
        ("probe@h|retention_deletions", "retention deletions"),
        ('probe@h|retention_deleted_bytes{topic="t"}', "retention deleted bytes (t)"),
        (
            'produce.0@h|publish_latency_seconds{leader="2",quantile="0.99"}',
            "p99 publish latency (leader 2)",
        ),
        (
            'produce.0@h|publish_latency_seconds{leader="b1:8080"}',
            "publish latency (leader b1:8080)",
        ),
        (
            'produce.0@h|publish_latency_seconds{leader="others"}',
            "publish latency (other leaders)",
        ),
        ('probe@h|drops{topic="t",partition="7"}', "drops (t, partition 7)"),
        ("consume.0@h|lag_messages", "consumer lag"),
        ("", ""),
    ],
)
def test_a_series_has_a_title_in_words(series: str, title: str) -> None:
    """Quantile first, then the metric without its unit, then what else tells it apart."""
    assert wording.title(series) == title


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0041, "seconds", "4.1 ms"),
        (0.0612, "seconds", "61.2 ms"),
        (0.061, "seconds", "61 ms"),
        (3.52, "seconds", "3.52 s"),
        (123.4, "seconds", "123 s"),
        (0.00085, "seconds", "850 us"),
        (-0.002, "seconds", "-2 ms"),
        (0.0, "seconds", "0 s"),
        (1.5 * 2**20, "bytes", "1.5 MiB"),
        (20_000, "messages", "20,000 messages"),
        (2002, "messages", "2,002 messages"),
        (1.0, "messages", "1 message"),
        (1017 * 2**10, "bytes", "1,017 KiB"),
        (1023.9 * 2**30, "bytes", "1 TiB"),
        (1.5e15, "bytes", "1.33 PiB"),
        (12_345_678, "messages", "12.3M messages"),
        (999_700_000, "", "1G"),
        (0.0009997, "seconds", "1 ms"),
        (0.0999, "seconds", "99.9 ms"),
        (4.12e-3, "seconds", "4.12 ms"),
        (0.0000123, "ratio", "0.00123%"),
        (0.234, "ratio", "23.4%"),
        (0.0, "ratio", "0%"),
        (math.nan, "seconds", "-"),
        (math.inf, "seconds", "-"),
    ],
)
def test_an_amount_has_the_unit_that_fits(value: float, unit: str, text: str) -> None:
    """Three digits, never an exponent, and the sign is kept."""
    assert wording.amount(value, unit) == text


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (0.0041, 0.061, "x15"),
        (0.061, 0.0041, "15 times less"),
        (0.0, 1.0, ""),
        (1.0, 230.0, "x230"),
        (2.0, 1.0, "2 times less"),
        (1.0, 99.7, "x100"),
        (1.0, 10_170.0, "x10,170"),
        (0.0, 0.0, ""),
        (math.nan, 1.0, ""),
    ],
)
def test_a_factor_says_up_or_down(before: float, after: float, text: str) -> None:
    """Without a ratio it says nothing."""
    assert wording.factor(before, after) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3, "3 s"), (60, "1 min"), (68, "1 min 8 s"), (3600, "1 h"), (11_100, "3 h 5 min")],
)
def test_a_span_is_rounded_to_what_matters(seconds: float, text: str) -> None:
    """Seconds below an hour, minutes above."""
    assert wording.span(seconds) == text


def test_a_share_is_not_rounded_past_a_limit() -> None:
    """99.996 % of the records are not all of them, and 10.01 % are more than a tenth."""
    assert wording.share_down(0.99996, 2) == "99.99%"
    assert wording.share_down(0.969_999, 2) == "96.99%"
    assert wording.share_up(0.1001, 1) == "10.1%"
    assert [wording.share_down(x, 1) for x in (0.0, 0.97, 1.0)] == ["0.0%", "97.0%", "100.0%"]
    assert [wording.share_up(x, 1) for x in (0.0, 0.07, 1.0)] == ["0.0%", "7.0%", "100.0%"]


def test_a_finding_of_another_day_than_its_run_has_its_day() -> None:
    """The live view of 36 hours shows it to the end."""
    found = Finding(
        "r-1", "r", 9, 86_400 * 2, (8, 9), "s|lag_messages", "step", 1, 9, "gone", 0.99, True
    )

    assert "since 1970-01-03 00:00:00Z, " in wording.finding_text(found, 0)
    assert "since 00:00:00Z, " in wording.finding_text(dataclasses.replace(found, onset_k=0), 0)


def test_a_finding_that_is_not_held_against_the_cluster_says_so_while_it_runs() -> None:
    found = Finding(
        "r-1", "r", 9, 0, (0, 1), "s|lag_messages", "step", 9, 1, "confirmed", 0.99, True
    )
    fall = dataclasses.replace(found, is_about_cluster=False)

    assert wording.finding_text(found, 0).endswith(", cause unknown")
    assert wording.finding_text(fall, 0).endswith(
        ", cause unknown, not counted against the cluster"
    )


def test_a_sparkline_shows_peaks_and_leaves_gaps_open() -> None:
    """One column stands for several values by its largest; a gap is a space."""
    values = [0.004, 0.004, math.nan, math.nan, 0.004, 0.06, 0.06, 0.0]

    assert wording.sparkline(values, 4) == "▁ ██"
    assert wording.sparkline([0.0040, 0.0041, 0.0042], 3) == "▁▁▁"
    assert wording.sparkline([], 10) == ""
    assert wording.sparkline([math.nan, 0.0], 10) == " ▁"


@pytest.mark.parametrize(("number", "text"), [(0, "0 gaps"), (1, "1 gap"), (1200, "1,200 gaps")])
def test_one_is_not_many(number: int, text: str) -> None:
    assert wording.counted(number, "gap") == text


@pytest.mark.parametrize(
    ("parts", "text"), [(["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_a_list_ends_with_and(parts: list[str], text: str) -> None:
    assert wording.listed(parts) == text


def test_what_is_too_long_loses_its_middle() -> None:
    assert wording.shortened("/srv/kafka/node-1/data", 16) == "/srv...de-1/data"
    assert wording.shortened("/srv/kafka", 10) == "/srv/kafka"


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (0.0041, 0.061, "4.1 ms -> 61 ms (x15)"),
        (0.061, 0.0305, "61 ms -> 30.5 ms (2 times less)"),
        (0.0, 0.061, "0 s -> 61 ms"),
        (math.nan, 0.061, "- -> 61 ms"),
    ],
)
def test_a_step_has_a_factor_only_where_there_is_one(
    before: float, after: float, text: str
) -> None:
    """No empty brackets."""
    assert wording.step(before, after, "seconds") == text


def entries() -> list[name_map.Entry]:
    files = sorted(name_map.FOLDER.glob("*.toml"))
    return [entry for path in files for entry in name_map.load([path.stem])]


def test_a_name_tells_seconds_from_seconds_spent_a_second() -> None:
    """50 ms of a second that a drive was busy are 5 %, and no wait of 50 ms; of a CPU 0.05 cores."""
    known = {one.metric: one.unit for one in (*disk_io.DEVICE_COUNTERS, *disk_io.DRIVE_COUNTERS)}
    known |= dict.fromkeys(pressure._METRICS.values(), "ratio")
    known |= {entry.name: entry.unit for entry in entries()}
    of_time = {name: unit for name, unit in known.items() if name.endswith("_seconds")}

    assert len(of_time) > 20
    assert {name: parse_series(series_name("s", name)).unit for name in of_time} == of_time


def test_bytes_that_are_counted_per_second_are_shown_so() -> None:
    rates = {one.metric for one in disk_io.DEVICE_COUNTERS if one.unit == "bytes"}
    rates |= {
        metric
        for metric, unit in (*host._SWAP.values(), *host._NETWORK.values())
        if unit == "bytes"
    }
    rates |= {one.name for one in entries() if one.kind == "counter" and one.unit == "bytes"}
    levels = {one.name for one in entries() if one.kind == "gauge" and one.unit == "bytes"}
    named = {name for name in rates | levels if name.endswith("_bytes")}

    assert {
        name for name in named if parse_series(series_name("s", name)).is_per_second
    } == rates & named
    assert wording.amount_of("s|host_swap_in_bytes", 2048.0) == "2 KiB/s"
    assert wording.amount_of("s|jvm_memory_used_bytes", 2048.0) == "2 KiB"


def test_cpu_time_is_shown_in_cores() -> None:
    series = 'probe@b1|node_cpu_seconds{mode="user"}'

    assert wording.title(series) == "CPU (user)"
    assert wording.amount_of(series, 1.6) == "1.6 cores"
    assert wording.amount_of(series, 1.0) == "1 core"


@pytest.mark.parametrize(
    ("after", "text"), [(5.48, "0 s -> 5.48 s and longer"), (0.0, "5 s -> 0 s")]
)
def test_the_wait_of_an_unacknowledged_message_is_a_lower_bound(after: float, text: str) -> None:
    before = 5.0 if after == 0.0 else 0.0

    assert wording.level_text(f"produce.0@h|{wording.WAITING}", "step", before, after) == text


OUTAGE = Finding(
    key="r-1",
    run="r",
    raised_k=14,
    onset_k=10,
    interval=(9, 10),
    series="produce.0@h|acknowledgement_outage_seconds",
    kind="outage",
    before=0.0,
    after=61.0,
    state="gone",
    confidence=1.0,
    is_about_cluster=True,
    failed_messages=61_668,
    late_messages=0,
    due_messages=356_400,
)


def test_a_budget_is_left_or_exceeded() -> None:
    assert wording.budget_left_text(18.6, "minutes") == "18.6 minutes left"
    assert wording.budget_left_text(-0.4, "minutes") == "exceeded by 0.4 minutes"
    assert wording.budget_left_text(0.0, "messages") == "0 messages left"


def test_an_outage_is_sized_by_its_length_and_its_messages() -> None:
    late = dataclasses.replace(OUTAGE, failed_messages=0, late_messages=12)
    both = dataclasses.replace(OUTAGE, late_messages=12)
    what = "nothing was acknowledged for 61 s"
    failed = f"{what}; 61,668 of 356,400 messages of the run until then failed"

    assert [wording.what_text(one) for one in (OUTAGE, late, both)] == [
        failed,
        f"{what}; 12 of 356,400 messages of the run until then came late",
        f"{failed}, 12 came late",
    ]


def test_an_outage_that_goes_on_says_so_far() -> None:
    going_on = dataclasses.replace(OUTAGE, state="confirmed", resolved_k=None)

    assert wording.what_text(going_on) == (
        "nothing was acknowledged for 61 s; 61,668 of 356,400 messages of the run so far failed"
    )


@pytest.mark.parametrize(
    ("series", "text"),
    [
        (
            'produce.0@h|acknowledgement_outage_seconds{leader="2"}',
            "nothing was acknowledged by leader 2 for 7 s",
        ),
        (
            "produce.0@h|acknowledgement_shortfall_seconds",
            "too few messages were acknowledged in time for 7 s",
        ),
        ("consume.0@h|delivery_outage_seconds", "nothing was received for 7 s"),
    ],
)
def test_each_outage_says_what_did_not_come(series: str, text: str) -> None:
    assert wording.level_text(series, "outage", 0.0, 7.0) == text


def test_a_series_is_placed_where_it_was_measured() -> None:
    assert wording.title_with_source('probe@b1|disk_write_await_seconds{device="vda"}') == (
        "disk write await (vda) of probe@b1"
    )
