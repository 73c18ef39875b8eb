"""A result whose rate was not held, or whose consumers fell behind."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from soak.cli.main import build
from soak.omb import result_file
from soak.omb.load_faults import LoadFault, load_faults
from soak.omb.result import Floats, Result
from tests.support.omb.catch_up import STEP, CatchUp, result
from tests.support.paths import DATA, ROOT

RATE = 10_000.0
PUBLISHED = ROOT.parent / "shared" / "data" / "omb-results"
STEADY = CatchUp(pause=90, drain=91, end=92, rate=RATE)


def run(
    sent: Floats | None = None, received: Floats | None = None, subscriptions: int = 1
) -> Result:
    """Return a steady result with other rates, and the backlog that they leave."""
    found = result(STEADY, np.random.default_rng(1))
    sent = found.samples["publish_rate_per_second"] if sent is None else sent
    received = sent * subscriptions if received is None else received
    backlog = np.maximum(np.cumsum(sent * subscriptions - received) * STEP, 0.0)
    samples = {
        "publish_rate_per_second": sent,
        "consume_rate_per_second": received,
        "backlog_messages": backlog,
    }
    return replace(found, samples={**found.samples, **samples})


CONSTANT = np.full(90, RATE)


def rates(*parts: tuple[float, int], noise: float = 0.002) -> Floats:
    found = np.concatenate([np.full(count, rate) for rate, count in parts])
    return np.asarray(found * (1.0 + noise * np.random.default_rng(2).normal(size=found.size)))


def where(faults: list[LoadFault]) -> list[tuple[str, int, int]]:
    return [(one.metric.partition("_")[0], one.first, one.last) for one in faults]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (rates((RATE, 90)), []),
        (rates((RATE, 30), (0.7 * RATE, 10), (RATE, 50)), [("publish", 30, 39)]),
        (rates((RATE, 30), (0.7 * RATE, 60)), [("publish", 30, 89)]),  # held for a third of the run
        (rates((RATE, 30), (0.3 * RATE, 1), (RATE, 59)), [("publish", 30, 30)]),
        (rates((RATE, 30), (0.0, 6), (RATE, 54)), [("publish", 30, 35)]),
        (rates((RATE, 30), (0.7 * RATE, 1), (RATE, 59)), []),  # one late sample
        (rates((RATE, 89), (0.3 * RATE, 1)), []),  # the last was cut off
        (rates((0.0, 3), (RATE, 87)), []),  # the load had not begun
        (rates((0.0, 60), (RATE, 20), (0.5 * RATE, 10)), [("publish", 80, 89)]),  # nor for long
        (rates((0.0, 1), (1.2 * RATE, 4), (RATE, 85)), []),  # it makes up for a late beginning
        (rates((RATE, 90), noise=0.15), []),  # as fast as it goes: no rate to hold
    ],
)
def test_a_rate_that_was_not_held_is_found(
    sent: Floats, expected: list[tuple[str, int, int]]
) -> None:
    assert where(load_faults(run(sent))) == expected


def test_a_rate_that_was_never_reached_is_found_where_the_result_says_what_was_asked_for() -> None:
    """As results of Vanlightly's fork do; more than was asked for is no fault."""
    slow = run(rates((0.8 * RATE, 90)))

    asked = replace(slow, facts={**slow.facts, "producerRate": int(RATE)})
    exceeded = replace(slow, facts={**slow.facts, "producerRate": int(0.5 * RATE)})

    assert where(load_faults(slow)) == where(load_faults(exceeded)) == []
    assert where(load_faults(asked)) == [("publish", 0, 89)]
    assert [one.before for one in load_faults(asked)] == [RATE]


@pytest.mark.parametrize("subscriptions", [1, 3])
def test_consumers_that_fall_behind_are_found(subscriptions: int) -> None:
    """For a while, and with as much as they lacked."""
    share = rates((1.0, 40), (0.8, 20), (1.0, 30), noise=0.0)
    (found,) = load_faults(run(CONSTANT, RATE * subscriptions * share, subscriptions))

    assert where([found]) == [("backlog", 40, 59)]
    assert found.after == pytest.approx(0.2 * 20 * RATE * STEP * subscriptions, rel=0.1)
    assert found.received == pytest.approx(0.8, rel=0.02)


def test_consumers_that_are_too_slow_all_the_time_are_found() -> None:
    (found,) = load_faults(run(CONSTANT, rates((0.8 * RATE, 90))))

    assert where([found])[0][2] == 89


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_subscriptions_that_are_too_slow_all_the_time_are_found(share: float) -> None:
    """How many there are shows in what was received and in the backlog together, in neither alone."""
    (found,) = load_faults(run(CONSTANT, rates((share * 4 * RATE, 90)), subscriptions=4))

    assert where([found])[0][2] == 89
    assert found.received == pytest.approx(share, rel=0.02)


def test_a_backlog_that_was_planned_is_none() -> None:
    """The benchmark pauses its consumers, and they read it all."""
    for seed in range(5):
        assert load_faults(result(CatchUp(), np.random.default_rng(seed))) == []


def test_consumers_that_end_for_good_leave_a_backlog() -> None:
    """As those that pause, but nothing is read later."""
    received = rates((RATE, 60), (0.0, 30), noise=0.0)

    assert where(load_faults(run(CONSTANT, received))) == [("backlog", 60, 89)]


@pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason="the published results are not beside the project"
)
def test_published_results_have_the_one_outage_that_is_in_them() -> None:
    """20 files with 1,912 samples, of which 18 have no message."""
    found = {
        path.name: where(load_faults(load(path))) for path in sorted(PUBLISHED.glob("*.json.gz"))
    }

    assert {name: faults for name, faults in found.items() if faults} == {
        "c-pulsar-throughput-default-sync-raid0.json.gz": [("publish", 42, 59)]
    }


def test_real_catch_ups_are_no_faults() -> None:
    """On Kafka and Pulsar, as soakd exports them, with backlogs that are estimated while they are read."""
    exports = sorted((DATA / "recorded" / "omb" / "lab_drains").glob("*.json.gz"))

    assert len(exports) == 30
    assert [path.name for path in exports if load_faults(load(path))] == []


def load(path: Path) -> Result:
    return result_file.parse_result(
        result_file.parse_json(result_file.read_text(path), str(path)), str(path)
    )


def test_the_command_says_both(tmp_path: Path) -> None:
    faulty = run(
        rates((RATE, 30), (0.7 * RATE, 10), (RATE, 50)),
        rates((RATE, 30), (0.7 * RATE, 10), (RATE, 30), (0.5 * RATE, 20)),
    )
    path = tmp_path / "result.json"
    path.write_text(result_file.result_text(faulty, "upstream"))

    text = CliRunner().invoke(build(["omb"]), ["omb", "analyse", str(path)]).stdout
    lines = CliRunner().invoke(build(["omb"]), ["omb", "analyse", str(path), "--format", "jsonl"])
    found = [json.loads(line) for line in lines.stdout.splitlines()]

    assert "the publish rate was not held: 7,0" in text
    assert "from sample 30 (5 min) for 1 min 40 s" in text
    assert "consumers received 50% of what was sent" in text
    assert [(one["kind"], one["index"], one["until"]) for one in found[:2]] == [
        ("rate_not_held", 30, 40),
        ("backlog_growth", 70, None),
    ]
