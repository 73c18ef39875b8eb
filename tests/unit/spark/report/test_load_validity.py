"""A load that the cluster did not carry leaves latency flat, and is not clean."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from soak.core.model import Column
from soak.core.plan.phases import decision_line, parse_phases
from spark.batch.coverage import coverage
from spark.batch.digest import load_digest
from spark.batch.timeline import Timeline
from spark.report import job as report
from tests.support.spark.report_run import summary, timeline
from tests.support.spark.synthetic_run import CONSUMER, PRODUCER, Shape

SOAK = range(20, 235)
RECEIVED = f"{CONSUMER}|received_messages"


def blockers(found: Timeline) -> list[str]:
    return [f"{gap.source} {gap.why}" for gap in coverage(found).blockers]


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    """Return a run of 400 messages/s in which nothing happens."""
    return timeline(tmp_path_factory.mktemp("quiet"), Shape(fault_k=None))


@pytest.mark.long
@pytest.mark.parametrize(("missed", "code"), [(280, 3), (5, 3), (4, 0)])
def test_a_cluster_that_takes_less_than_the_load_is_not_clean(
    missed: int, code: int, tmp_path: Path
) -> None:
    """Of 400 messages a second it takes 120, from the first on: no step, and 1 % may be missed."""
    found = timeline(tmp_path, Shape(fault_k=None, missed=missed))

    assert report.write(found, [], None) == code
    body = summary(found.folder)
    reason = (
        "cluster did not carry the load: of 86,000 messages due in the soak "
        f"{missed * 215:,} were skipped and 0 failed"
    )
    assert blockers(found) == ([reason] if code else [])
    assert [(one["kind"], one["found"]) for one in body["findings"]] == (
        [("outage", "offline")] if code else []
    )
    assert ("too few messages were acknowledged in time" in body["headline"]) == (code == 3)
    assert body["headline"] in found.folder.report.read_text()


@pytest.mark.long
def test_what_was_given_up_was_not_carried_either(quiet: Timeline) -> None:
    short = np.array([[100, 500, 1], [101, 0, 360]])

    (text,) = blockers(replace(quiet, short={PRODUCER: short}))

    assert text.endswith("of 86,000 messages due in the soak 500 were skipped and 361 failed")


@pytest.mark.parametrize("k", [19, 235])
def test_a_load_that_was_not_carried_outside_the_soak_is_no_reason(k: int, quiet: Timeline) -> None:
    """A ramp tries rates that are too high, and a catch-up may be one."""
    assert blockers(replace(quiet, short={PRODUCER: np.array([[k, 9000, 0]])})) == []


def test_what_was_missed_while_this_client_was_late_is_not_the_clusters(quiet: Timeline) -> None:
    late = replace(
        quiet,
        short={PRODUCER: np.array([[100, 9000, 0]])},
        invalid={PRODUCER: {100: "schedule_lag"}},
    )

    assert blockers(late) == []


@pytest.mark.long
def test_a_subscription_that_may_not_read_is_not_clean(tmp_path: Path) -> None:
    """The consumer records every second, and there is no end-to-end latency that could step."""
    found = timeline(tmp_path, Shape(fault_k=None, is_read=False))

    assert report.write(found, [], None) == 3
    body = summary(found.folder)
    assert body["headline"].startswith("Regressed: nothing was received for ")
    assert blockers(found) == [
        "cluster delivered to subscription 0 none of the messages that it acknowledged"
    ]
    assert (body["audit"]["received"], body["audit"]["lost"]) == (0, 0)


@pytest.mark.parametrize(("seconds", "count"), [(9, 0), (10, 1)])
def test_ten_seconds_in_which_nothing_came_are_a_reason(
    seconds: int, count: int, quiet: Timeline
) -> None:
    silent = {PRODUCER: quiet.silent[PRODUCER], CONSUMER: np.arange(100, 100 + seconds)}

    assert len(blockers(replace(quiet, silent=silent))) == count


def starved(quiet: Timeline, **changes: object) -> Timeline:
    """Return the run with nothing received in 100 to 120, and other changes to it."""
    silent = {PRODUCER: quiet.silent[PRODUCER], CONSUMER: np.arange(100, 120)}
    return replace(quiet, **{"silent": silent, **changes})  # type: ignore[arg-type]  # its fields


def test_a_planned_pause_of_the_readers_is_no_reason(quiet: Timeline) -> None:
    """A backlog is built in a catch-up, which is not judged."""
    lines = [
        decision_line("soak", 20),
        decision_line("catch-up", 99),
        decision_line("soak", 125),
        decision_line("end", 240),
    ]

    assert blockers(starved(quiet, phases=parse_phases("".join(lines)))) == []


def test_a_reader_that_was_itself_the_bottleneck_is_no_reason(quiet: Timeline) -> None:
    paused = {CONSUMER: dict.fromkeys(range(100, 120), "consumer_pause")}

    assert blockers(starved(quiet, invalid=paused)) == []


def test_where_hardly_anything_is_sent_nothing_need_come_for_long(quiet: Timeline) -> None:
    """One message in seven seconds: three in those twenty."""
    often = set(range(100, 120, 7))
    rarely = np.array([k for k in range(100, 120) if k not in often])

    assert blockers(starved(quiet, silent={PRODUCER: rarely, CONSUMER: np.arange(100, 120)})) == []


def test_a_subscription_is_starved_when_all_its_readers_are(quiet: Timeline) -> None:
    """A reader whose partitions get no keys may hear nothing; one that is not on record may have it all."""
    other = CONSUMER.replace("0", "1", 1)
    plan = replace(quiet.plan, consumers=replace(quiet.plan.consumers, per_subscription=2))
    alone = starved(quiet, plan=plan)
    both = replace(
        alone,
        seconds={**quiet.seconds, other: quiet.seconds[CONSUMER]},
        silent={**alone.silent, other: np.arange(0, 240)},
        series={**quiet.series, f"{other}|received_messages": quiet.series[RECEIVED]},
    )

    assert blockers(alone) == []
    assert blockers(both) == [
        "cluster delivered to subscription 0 none of the messages that it acknowledged"
    ]
    assert blockers(replace(both, silent={**quiet.silent, other: np.arange(0, 240)})) == []


def receiving(quiet: Timeline, share: float, **counts: int) -> Timeline:
    k, values = quiet.series[RECEIVED]
    return replace(
        quiet,
        series={**quiet.series, RECEIVED: (k, values * share)},
        audit_by_subscription=({**quiet.audit_by_subscription[0], **counts},),
    )


def test_a_subscription_that_got_a_part_is_not_clean(quiet: Timeline) -> None:
    """It may read three of four topics: what does come has the best of latencies."""
    assert blockers(receiving(quiet, 0.75)) == [
        "cluster delivered to subscription 0 64,500 of 86,000 messages acknowledged in the soak"
    ]
    assert blockers(receiving(quiet, 0.9)) == []


def test_what_retention_took_before_it_was_read_is_reported_as_that(quiet: Timeline) -> None:
    assert blockers(receiving(quiet, 0.75, expired=21_500)) == []


def test_what_came_while_a_reader_recorded_nothing_is_not_known(quiet: Timeline) -> None:
    """It was killed, and a line of what it read then is damaged; the gap says so."""
    seconds = {**quiet.seconds, CONSUMER: np.arange(60, 240)}

    assert blockers(replace(receiving(quiet, 0.75), seconds=seconds)) == []


def test_a_digest_names_the_seconds_in_which_the_load_did_not_come_through() -> None:
    """Second 3 has two records, of a daemon that was started again in it."""
    names = ("sent_messages", "acked_messages", "missed_messages", "failed_messages")
    columns = tuple(Column(name, (), "messages") for name in names)
    k = np.array([1, 2, 3, 3, 4, 5])
    values = np.array(
        [
            [10.0, 10.0, 5.0, 5.0, 0.0, 0.0],
            [10.0, 0.0, 0.0, 4.0, 0.0, 0.0],
            [0.0, 0.0, 1.0, 1.0, 7.0, 0.0],
            [0.0, 0.0, 0.0, 2.0, 0.0, 0.0],
        ]
    )

    found = load_digest(columns, k, values)

    assert found.silent.tolist() == [2, 4, 5]
    assert found.standing.tolist() == [2, 4]
    assert found.short.tolist() == [[3, 2, 2], [4, 7, 0]]


def test_a_digest_of_a_reader_names_the_seconds_without_a_message() -> None:
    found = load_digest((Column("received_messages"),), np.array([1, 2, 3]), np.array([[3, 0, 1]]))

    assert (found.silent.tolist(), found.standing.size, found.short.shape) == ([2], 0, (0, 3))


def test_a_digest_of_a_probe_names_none() -> None:
    found = load_digest((Column("host_cpu_ratio"),), np.array([1]), np.array([[0.0]]))

    assert (found.silent.size, found.standing.size, found.short.shape) == (0, 0, (0, 3))
