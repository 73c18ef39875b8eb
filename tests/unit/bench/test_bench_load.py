"""The benchmarks' arithmetic, and how the peers' words are read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from soak.core.errors import SoakError
from tests.bench import figures, kafka_tools, omb
from tests.bench.figures import Goal, Spec
from tests.bench.fixed_rate import lag_ms

PRODUCED = """\
Warmup first 100000 records. Steady state results will print after the complete test summary.
400000 records sent, 126984.126984 records/sec (124.01 MB/sec), 202.64 ms avg latency, 515.00 ms max \
latency, 187 ms 50th, 419 ms 95th, 445 ms 99th, 467 ms 99.9th.
300000 steady state records sent, 178041.543027 records/sec (173.87 MB/sec), 158.82 ms avg latency, \
288.00 ms max latency, 129 ms 50th, 265 ms 95th, 274 ms 99th, 280 ms 99.9th.
"""
CONSUMED = """\
time, threadId, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, \
fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec
2026-11-21 15:05:01:003, 0, 35.4385, 34.8461, 36289, 35682.3992, 635, 382, 92.7709, 94997.3822
2026-11-21 15:05:02:003, 0, 230.7510, 195.3125, 236289, 200000.0000, 0, 1000, 195.3125, 200000.0000
2026-11-21 15:05:03:503, 0, 523.7197, 195.3125, 536289, 200000.0000, 0, 1500, 195.3125, 200000.0000
"""


def test_the_ratio_is_the_median_of_the_rounds(tmp_path: Path) -> None:
    """Ratios 2, 3 and 1.5: the drift of both sides from round to round does not enter."""
    spec = Spec("rate", "messages/s", Goal(ratio_least=1.3, ours_most=50))
    pairs = [({"rate": a}, {"rate": b}) for a, b in ((20.0, 10.0), (300.0, 100.0), (15.0, 10.0))]

    found = figures.figures([spec], pairs)
    figures.write(tmp_path / "bench" / "x.json", found)

    assert json.loads((tmp_path / "bench" / "x.json").read_text()) == [
        {
            "figure": "messages/s",
            "ours": 20.0,
            "peer": 10.0,
            "ratio": 2.0,
            "spread": [1.5, 3.0],
            "goal": "ratio >= 1.3 and ours <= 50",
            "holds": True,
        }
    ]


@pytest.mark.parametrize(
    ("goal", "holds"),
    [
        (Goal(), None),
        (Goal(ratio_most=0.25), True),
        (Goal(ratio_most=0.25, ours_most=0.5), False),
        (Goal(ratio_least=1.0), False),
    ],
)
def test_a_goal_holds_when_all_its_bounds_do(goal: Goal, holds: bool | None) -> None:  # noqa: FBT001  # the expectation
    assert goal.holds(0.6, 0.2) is holds


def test_sides_take_turns_in_beginning() -> None:
    """What drifts in the machine or the broker meets both sides alike."""
    order: list[str] = []

    def side(name: str) -> dict[str, float]:
        order.append(name)
        return {}

    figures.side_by_side(
        3, lambda number: side(f"ours{number}"), lambda number: side(f"peer{number}")
    )

    assert order == ["ours0", "peer0", "peer1", "ours1", "ours2", "peer2"]


def test_each_side_tells_what_the_hypervisor_kept_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A p99 under steal is the machine's. Two calls a side: one to begin with, one to tell."""
    steals = iter([9.0, 0.0, 9.0, 4.0] + [9.0, 0.0] * 6 + [9.0, 30.0, 9.0, 0.0])
    monkeypatch.setattr(
        "tests.bench.figures.psutil.cpu_times_percent", lambda: SimpleNamespace(steal=next(steals))
    )

    pairs = figures.side_by_side(5, lambda _: {"a": 1.0}, lambda _: {"a": 2.0})
    (found,) = figures.figures([figures.stolen("producer")], pairs)

    assert pairs[0] == ({"a": 1.0, "stolen_percent": 0.0}, {"a": 2.0, "stolen_percent": 4.0})
    assert (found.ours, found.peer) == (30.0, 4.0), "the worst of all rounds"
    assert math.isnan(found.ratio)
    assert found.figure.startswith("producer: ")
    assert figures.table("t", [found]).row_count == 1


def test_where_neither_side_has_any_the_ratio_is_one() -> None:
    spec = Spec("a", "", Goal())

    found = [figures.figures([spec], [({"a": a}, {"a": 0.0})])[0].ratio for a in (0.0, 3.0)]

    assert found == [1.0, math.inf]


@pytest.mark.parametrize("peer", [0.0, math.nan], ids=["none", "not measured"])
def test_a_ratio_with_nothing_is_null_in_json(peer: float, tmp_path: Path) -> None:
    found = figures.figures([Spec("a", "", Goal())], [({"a": 3.0}, {"a": peer})])
    figures.write(tmp_path / "bench.json", found)

    (read,) = json.loads((tmp_path / "bench.json").read_text(), parse_constant=pytest.fail)
    assert (read["ours"], read["ratio"]) == (3.0, None)


def test_the_producer_tool_is_taken_at_its_steady_rate() -> None:
    assert kafka_tools.steady_rate(PRODUCED) == 178041.543027


def test_the_consumer_tool_is_taken_from_its_first_report_to_its_last() -> None:
    """500,000 messages in 2.5 s."""
    assert kafka_tools.middle_rate(CONSUMED) == 200_000


def test_a_tool_that_says_nothing_is_an_error_with_its_words() -> None:
    with pytest.raises(SoakError, match="less than two seconds:\nno route"):
        kafka_tools.middle_rate("no route")


def test_the_other_benchmark_is_read_with_its_cost() -> None:
    """Delays are in us, latencies in ms; the first sample of 10 s is left out of the later ones."""
    result = {
        "aggregatedPublishDelayLatency99pct": 3991,
        "aggregatedPublishLatency99pct": 23.9,
        "publishDelayLatency99pct": [9000, 400, 300, 500],
        "publishLatency99pct": [90.0, 4.0, 3.0, 5.0],
    }

    found = omb.measures(result, "Aggregated ...\ncpu_s 4260e-2 peak_kb 1000\n", 60)

    assert found == {
        "lag_p99_ms": 3.991,
        "ack_p99_ms": 23.9,
        "lag_later_p99_ms": 0.4,
        "ack_later_p99_ms": 4.0,
        "cores": pytest.approx(0.71),
        "peak_mb": 1.024,
    }


def test_our_lag_is_of_all_messages_and_of_windows_after_the_first() -> None:
    """Three windows: a slow first one of 9 ms, then 1 and 3 ms."""
    due = np.arange(30) * 10**9
    delay = np.repeat([9, 1, 3], 10) * 10**6

    found = lag_ms(np.stack([delay, due], axis=1))

    assert found == {"lag_p99_ms": 9.0, "lag_later_p99_ms": 2.0}
