"""The verdict on a run that a drill was put into."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from soak.core.errors import FindingsError
from soak.core.journal_format import columns_line
from soak.core.model import Change, Column, Event, Explanation, Finding, Record
from soak.core.units import SECOND_NS
from soak.lab.drills import verdict
from soak.lab.drills.drill import Expectation
from soak.lab.drills.verdict import Check, DrivePool, Moments, Notifications
from soak.lab.drive.folder import DriveStatus
from soak.store.findings.store import FindingsStore
from soak.store.journal.writer import JournalWriter
from soak.store.run_folder import Run, RunFolder, write_run
from tests.support.fakes import FakeClock
from tests.support.spark.synthetic_run import Shape, write_synthetic_run

EXPECT = Expectation(cause="retention_cliff")
FIRST_NS = 1_800_000_000 * SECOND_NS  # 2027-01-15T08:00:00Z


def summary(**changes: Any) -> dict[str, Any]:
    finding = {
        "cause": "retention_cliff",
        "state": "confirmed",
        "is_about_cluster": True,
        "at": "2027-01-15T08:00:02+00:00",
    }
    return {
        "findings": [finding | changes.pop("finding", {})],
        "audit": {"lost": 0, "duplicated": 0} | changes,
    }


def failing(summary: dict[str, Any], first_ns: int | None = FIRST_NS) -> set[str]:
    checks = verdict.judge(EXPECT, summary, Moments(onset_wall_ns=first_ns))
    return {check.subject for check in checks if not check.is_met}


def test_a_run_that_found_what_was_declared_meets_every_expectation() -> None:
    """Two seconds after the first deletion, nothing lost, nothing doubled."""
    assert failing(summary()) == set()


@pytest.mark.parametrize(
    ("at", "wrong"),
    [
        ("2027-01-15T07:59:55+00:00", set()),
        ("2027-01-15T07:59:54+00:00", {"cause", "state", "onset", "before"}),
        ("2027-01-15T08:00:05Z", set()),
        ("2027-01-15T09:00:06+01:00", {"onset"}),
        ("soon", {"cause", "state", "onset"}),
    ],
)
def test_the_onset_must_lie_within_five_seconds_of_the_first_deletion(
    at: str, wrong: set[str]
) -> None:
    """Before or after, in any time zone."""
    assert failing(summary(finding={"at": at})) == wrong


def test_a_wrong_cause_fails_on_all_that_belongs_to_the_finding() -> None:
    """And the table shows which cause was named instead."""
    run = summary(finding={"cause": "unknown"})
    (cause, *_) = verdict.judge(EXPECT, run, Moments(onset_wall_ns=FIRST_NS))

    assert failing(run) == {"cause", "state", "onset"}
    assert (cause.expected, cause.found) == ("retention_cliff", "unknown")


@pytest.mark.parametrize(
    ("cause", "other", "at", "missed"),
    [
        ("network", "drive_gc", "2027-01-15T08:00:04Z", {"cause", "state", "onset"}),
        ("network", "unknown", "2027-01-15T08:00:04Z", set()),
        ("network", "leader_move", "2027-01-15T08:00:41Z", set()),  # as the fault was lifted
        ("client", "unknown", "2027-01-15T08:00:04Z", {"cause", "state", "onset"}),
        ("network", "client", "2027-01-15T08:00:04Z", {"cause", "state", "onset"}),
        ("network", "client", "2027-01-15T08:00:41Z", set()),
    ],
)
def test_who_blames_another_cause_too_has_not_found_it(
    cause: str, other: str, at: str, missed: set[str]
) -> None:
    """However near the right one lies; and where the client is to blame the cluster is not."""
    run = summary(finding={"cause": cause, "is_about_cluster": cause != "client"})
    run["findings"].append(
        {**run["findings"][0], "cause": other, "is_about_cluster": other != "client", "at": at}
    )
    moments = Moments(FIRST_NS, FIRST_NS + 40 * SECOND_NS)

    checks = verdict.judge(Expectation(cause=cause), run, moments)

    assert checks[0].found == ", ".join(sorted((cause, other)))
    assert {check.subject for check in checks if not check.is_met} == missed


@pytest.mark.parametrize(
    ("at", "about_cluster", "missed"),
    [
        ("2027-01-15T07:59:47Z", True, {"before"}),
        ("2027-01-15T07:59:47Z", False, set()),
        ("2027-01-15T08:01:40Z", True, set()),  # of what the lifting left behind
    ],
)
def test_a_false_alarm_before_the_fault_fails_the_drill_that_found_it(
    at: str, *, about_cluster: bool, missed: set[str]
) -> None:
    run = summary()
    other = {"cause": "broker_pause", "is_about_cluster": about_cluster, "at": at}
    run["findings"].append({**run["findings"][0], **other})

    checks = verdict.judge(EXPECT, run, Moments(FIRST_NS, FIRST_NS + 40 * SECOND_NS))

    assert {check.subject for check in checks if not check.is_met} == missed


@pytest.mark.parametrize(
    ("cause", "series", "missed"),
    [
        ("broker_cpu", "probe@a|host_cpu_steal_ratio", set()),
        ("broker_cpu", "probe@a|host_cpu_ratio", {"before"}),
        ("slow_drive", "probe@a|host_cpu_steal_ratio", {"before"}),  # a second thought
    ],
)
def test_cpu_that_the_hypervisor_took_before_the_fault_was_so_and_is_no_false_alarm(
    cause: str, series: str, missed: set[str]
) -> None:
    run = summary()
    evidence = [{"cause": "broker_cpu", "text": "", "numbers": {"series": series}}]
    early = {"cause": cause, "at": "2027-01-15T07:59:00Z", "evidence": evidence}
    run["findings"].append({**run["findings"][0], **early})

    assert failing(run) == missed
    assert bool(verdict.classify(EXPECT, run["findings"], Moments(FIRST_NS)).before) == bool(missed)


def test_the_client_may_be_blamed_for_cpu_that_the_hypervisor_took() -> None:
    """While the fault is at work, beside the right finding."""
    numbers = {"series": "probe@a|host_cpu_steal_ratio"}
    client = {
        "cause": "client",
        "is_about_cluster": False,
        "evidence": [{"cause": "client", "text": "", "numbers": numbers}],
    }
    run = summary()
    run["findings"].append({**run["findings"][0], **client})

    assert failing(run) == set()


def test_a_warning_and_a_step_back_down_are_not_what_was_expected() -> None:
    """The second is named `unknown`, as is everything without a known cause."""
    expect = Expectation(cause="unknown")
    found = summary(finding={"cause": "unknown"})
    back = summary(finding={"cause": "unknown", "is_about_cluster": False})
    warned = summary(finding={"cause": "unknown", "state": "warning"})

    assert lines(expect, found, Moments(FIRST_NS))["cause"] == ("unknown", True)
    assert lines(expect, back, Moments(FIRST_NS))["cause"] == ("no finding", False)
    assert lines(expect, warned, Moments(FIRST_NS))["cause"] == ("no finding", False)


def test_a_finding_that_went_away_is_not_the_confirmed_one() -> None:
    """The fault was still there at the end."""
    assert failing(summary(finding={"state": "gone"})) == {"state"}


def test_lost_and_doubled_messages_fail_the_drill_and_so_does_not_knowing() -> None:
    """Null is what the audit says when it cannot know."""
    assert failing(summary(lost=None, duplicated=2)) == {"lost", "duplicated"}


def test_a_run_without_a_deletion_proves_nothing() -> None:
    """The fault never acted, so a finding cannot be its."""
    assert failing(summary(), None) == {"cause", "state", "onset"}


@pytest.mark.parametrize(
    ("at", "wrong"),
    [
        ("2027-01-15T07:59:55Z", {"onset"}),
        ("2027-01-15T07:59:54Z", {"cause", "state", "onset", "before"}),
        ("2027-01-15T08:01:10Z", {"onset"}),
        ("2027-01-15T08:01:11Z", {"cause", "state", "onset"}),
    ],
)
def test_a_finding_of_another_time_is_not_the_faults(at: str, wrong: set[str]) -> None:
    """From 5 s before it was felt until 30 s after it was lifted."""
    expect = Expectation(cause="retention_cliff", onset_within=SECOND_NS)
    moments = Moments(FIRST_NS, FIRST_NS + 40 * SECOND_NS)

    checks = verdict.judge(expect, summary(finding={"at": at}), moments)

    assert {check.subject for check in checks if not check.is_met} == wrong


def test_what_was_written_at_the_onset_is_held_against_the_pool() -> None:
    """A finding 2 s late is 20 % too much where the pool lasts for ten seconds.

    One 3 s early is 20 % too little, for it may have begun at the end of its second.
    """

    class Drive:
        written_bytes = 0

        def status(self) -> DriveStatus:
            return DriveStatus(
                written_bytes=1000 + self.written_bytes,
                aged_written_bytes=1000,
                starved_written_bytes=2000,
            )

    drive = Drive()
    pool = DrivePool(drive)
    for second in range(20):
        drive.written_bytes = 100 * second
        pool.sample(FIRST_NS + (second - 10) * SECOND_NS)

    def found(within: float, begin: str = "2027-01-15T08:00:02+00:00") -> Check:
        expect = Expectation(cause="retention_cliff", pool_within=within)
        moments = Moments(FIRST_NS, pool=pool)
        checks = verdict.judge(expect, summary(finding={"at": begin}), moments)
        return next(check for check in checks if check.subject == "written")

    assert (pool.allowed_bytes, pool.written_bytes(FIRST_NS)) == (1000, 1000.0)
    assert (found(0.21).is_met, found(0.19).is_met) == (True, False)
    early = "2027-01-15T07:59:57+00:00"
    assert (found(0.21, early).is_met, found(0.19, early).is_met) == (True, False)
    assert pool.written_bytes(FIRST_NS + 60 * SECOND_NS) is None


def test_of_two_findings_with_the_cause_the_one_at_the_deletion_counts() -> None:
    """Another one later in the run does not hide it."""
    run = summary()
    late = run["findings"][0] | {"at": "2027-01-15T08:02:00+00:00"}
    run["findings"].insert(0, late)

    assert failing(run) == set()


def test_a_summary_without_anything_fails_and_does_not_break() -> None:
    """The run was cut short."""
    assert failing({}) == {"cause", "state", "onset", "lost", "duplicated"}


def test_when_people_are_notified_and_when_it_is_resolved_are_judged_where_a_limit_is_named() -> (
    None
):
    """Of the fault's onset, and of its lifting; never is not soon."""
    expect = Expectation(
        cause="retention_cliff", alert_within=30 * SECOND_NS, resolved_within=60 * SECOND_NS
    )
    run = summary(finding={"key": "a"})
    in_time = Moments(
        onset_wall_ns=FIRST_NS,
        lifted_wall_ns=FIRST_NS + 40 * SECOND_NS,
        notifications=Notifications(
            {"a": FIRST_NS + 30 * SECOND_NS}, {}, {"a": FIRST_NS + 101 * SECOND_NS}
        ),
    )

    found = {check.subject: check for check in verdict.judge(expect, run, in_time)}
    never = verdict.judge(expect, run, Moments(onset_wall_ns=FIRST_NS))

    assert (found["notified"].found, found["notified"].is_met) == ("after 30.0 s", True)
    assert (found["resolved"].found, found["resolved"].is_met) == ("after 61.0 s", False)
    assert [check.found for check in never if check.subject in ("notified", "resolved")] == [
        "never"
    ] * 2


def test_what_is_gone_before_the_fault_was_lifted_is_not_gone_in_time() -> None:
    """But where what is felt of it is over sooner."""
    limit = 60 * SECOND_NS
    run = summary(finding={"key": "a", "state": "gone"})
    moments = Moments(
        FIRST_NS,
        FIRST_NS + 40 * SECOND_NS,
        Notifications(resolved_wall_ns={"a": FIRST_NS + 30 * SECOND_NS}),
    )

    def resolved(*, until_lifted: bool) -> tuple[str, bool]:
        expect = Expectation(
            cause="retention_cliff", resolved_within=limit, until_lifted=until_lifted
        )
        return lines(expect, run, moments)["resolved"]

    assert resolved(until_lifted=True) == ("after -10.0 s", False)
    assert resolved(until_lifted=False) == ("after -10.0 s", True)


def test_a_quiet_run_has_no_finding_about_the_cluster() -> None:
    """One about the client, and a warning, do not count; a fault that was never felt proves nothing."""
    quiet = Expectation(cause="nothing")
    client = {"cause": "client", "state": "confirmed", "is_about_cluster": False}
    warned = {"cause": "unknown", "state": "warning", "is_about_cluster": True}
    loud = {"cause": "unknown", "state": "gone", "is_about_cluster": True}

    def is_met(*findings: dict[str, Any], onset_wall_ns: int | None = FIRST_NS) -> bool:
        run = summary() | {"findings": list(findings)}
        return all(check.is_met for check in verdict.judge(quiet, run, Moments(onset_wall_ns)))

    assert is_met(client, warned)
    assert not is_met(client, loud)
    assert not is_met(onset_wall_ns=None)


def lines(
    expect: Expectation, run: dict[str, Any], moments: Moments
) -> dict[str, tuple[str, bool]]:
    """Return what was found, and whether that was enough, by the subject of the line."""
    checks = verdict.judge(expect, run, moments)
    return {check.subject: (check.found, check.is_met) for check in checks}


def test_a_metric_that_must_have_stepped_may_stand_beside_the_headline() -> None:
    """Publishing is hurt by who catches up, though end-to-end latency steps most."""
    expect = Expectation(cause="retention_cliff", metric="publish_latency_seconds")
    moments = Moments(FIRST_NS)
    alone = summary(finding={"metric": "end_to_end_latency_seconds"})
    beside = summary(
        finding={
            "metric": "end_to_end_latency_seconds",
            "also": ['produce.0@here|publish_latency_seconds{quantile="0.99"}'],
        }
    )

    assert lines(expect, alone, moments)["stepped"] == ("end_to_end_latency_seconds", False)
    assert lines(expect, beside, moments)["stepped"][1]
    assert lines(expect, {}, moments)["stepped"] == ("no finding", False)
    assert "stepped" not in lines(EXPECT, alone, moments)


def test_what_a_phase_came_to_is_judged_where_it_is_named() -> None:
    """Beside the expectation that nothing is found."""
    expect = Expectation(cause="nothing", outcome="never drains")
    phases = [{"phase": "soak", "outcome": {}}, {"phase": "catch-up", "outcome": {"outcome": "x"}}]
    drained = {"phase": "catch-up", "outcome": {"outcome": "never drains"}}

    assert lines(expect, {"phases": phases}, Moments())["outcome"] == ("x", False)
    assert lines(expect, {"phases": [*phases, drained]}, Moments())["outcome"][1]
    assert lines(expect, {}, Moments())["outcome"] == ("none", False)


@pytest.mark.parametrize(
    ("notified", "found"),
    [((-60, 4), ("4.0 s from it", True)), ((6,), ("6.0 s from it", False)), ((), ("never", False))],
)
def test_an_event_that_must_be_reported_counts_near_the_fault(
    notified: tuple[int, ...], found: tuple[str, bool]
) -> None:
    """The nearest one; a fault that was never felt has none."""
    expect = Expectation(cause="nothing", event="clock_step")
    events = [FIRST_NS + at * SECOND_NS for at in notified]

    assert lines(expect, {}, Moments(FIRST_NS, events_wall_ns=events))["event"] == found
    assert lines(expect, {}, Moments(FIRST_NS))["records"] == ("in order", True)
    assert lines(expect, {}, Moments(records_out_of_order=2))["records"] == (
        "2 out of order",
        False,
    )
    assert lines(expect, {}, Moments(None, events_wall_ns=events))["event"] == ("never", False)


COLUMNS = (Column("a_seconds"),)


STEAL = (Column("host_cpu_steal_ratio", unit="ratio"),)


def write(
    folder: RunFolder,
    source: str,
    *records: tuple[int, str],
    columns: tuple[Column] = COLUMNS,
    value: float = 1.0,
) -> None:
    """Write a record for each second, with an event of that kind that began a nanosecond before k."""
    writer = JournalWriter(folder.journal / source, FakeClock()).open()
    for k, kind in records:
        events = (Event(kind, 10**18, k - 1),) if kind else ()
        name = columns_line(columns).id
        writer.append(Record(k, writer.epoch, 0, 1, name, (value,), events=events), columns)
    writer.close(is_end=True)


def test_a_machine_whose_cpu_others_take_is_said_to_be_one(tmp_path: Path) -> None:
    """What a drill measures there is theirs, too; the seconds of all hosts count once."""
    quiet, shared = RunFolder(tmp_path / "quiet"), RunFolder(tmp_path / "shared")
    seconds = [(k, "") for k in range(9)]
    write(quiet, "probe@h", *seconds, columns=STEAL, value=0.09)
    write(shared, "probe@h", *seconds, columns=STEAL, value=0.1)
    write(shared, "probe@h2", *seconds, columns=STEAL, value=0.3)

    assert verdict.stolen_text(quiet) == ""
    assert verdict.stolen_text(shared) == (
        "other virtual machines took 10% and more of the CPU in 9 of 9 s: "
        "repeat the drill when they are quiet"
    )


def test_events_of_a_kind_are_found_in_every_source(tmp_path: Path) -> None:
    """As of when they began at the earliest: the clock that stamps them may be what was set."""
    folder = RunFolder(tmp_path)
    write(folder, "consume.0@here", (7, "clock_step"), (8, ""))
    write(folder, "produce.0@here", (8, "segment_created"), (9, "clock_step"))

    assert verdict.event_times(folder, "clock_step") == [6, 8]
    assert verdict.event_times(folder, "suspend") == []


def test_records_that_come_after_a_later_one_are_counted(tmp_path: Path) -> None:
    """In each source by itself."""
    folder = RunFolder(tmp_path)
    write(folder, "consume.0@here", (7, ""), (8, ""), (9, ""))
    before = verdict.count_records_out_of_order(folder)
    write(folder, "produce.0@here", (3, ""), (2, ""), (5, ""), (4, ""))

    assert (before, verdict.count_records_out_of_order(folder)) == (0, 2)


def test_notified_is_when_the_first_message_was_sent_and_resolved_when_it_was_noticed(
    tmp_path: Path,
) -> None:
    """A pending message notifies nobody, and no message is sent about the client.

    Of one that came back the last time counts, and none while it is up.
    """
    folder = RunFolder(tmp_path)
    write_run(folder, Run("r", 0, "h", {}, "ended", "x"))
    folder.plan.write_text("name: x\nbroker: {kafka: {}}\n")
    change = Change("s", 20, 10, (9, 11), 1.0, 2.0, "confirmed", 0.9)
    finding = Finding(
        key="a",
        run="r",
        raised_k=change.raised_k,
        onset_k=change.onset_k,
        interval=change.interval,
        series=change.series,
        kind=change.kind,
        before=change.before,
        after=change.after,
        state="confirmed",
        confidence=0.9,
        is_about_cluster=True,
        causes=(Explanation("unknown", 0.5, ()),),
        changes=(),
    )
    with FindingsStore(folder.findings) as store:
        store.save_finding(finding, ["mail", "webhook"], 100)
        before = verdict.read_notifications(folder)
        for row, at_wall_ns in zip(store.due(10**6), (300, 200), strict=True):
            store.begin_try(row, at_wall_ns, at_wall_ns)
            store.mark_sent(row, at_wall_ns)
        store.save_finding(replace(finding, state="gone", resolved_k=30), ["mail", "webhook"], 400)

        of_client = replace(finding, key="b", is_about_cluster=False, state="gone", resolved_k=40)
        store.save_finding(of_client, ["mail"], 500)

    resolved = verdict.read_notifications(folder)
    with FindingsStore(folder.findings) as store:
        for row in store.due(10**6):
            store.mark_sent(row, 600)
        store.save_finding(finding, ["mail", "webhook"], 700)
        again = verdict.read_notifications(folder)
        for row in store.due(10**6):
            store.mark_sent(row, 800)
        store.save_finding(replace(finding, state="gone", resolved_k=90), ["mail", "webhook"], 900)

    first, cause = {"a": 200}, {"a": "unknown"}
    assert before == (Notifications(), frozenset("a"))
    both = frozenset("ab")
    seconds = {"b": 41 * SECOND_NS}
    assert resolved == (Notifications(first, cause, {"a": 400, **seconds}), both)
    assert again == (Notifications(first, cause, seconds), both)
    last = Notifications(first, cause, {"a": 900, **seconds})
    assert verdict.read_notifications(folder) == (last, both)


@pytest.mark.long
def test_findings_in_a_cluster_are_asked_there(tmp_path: Path) -> None:
    """One that does not answer is no run without findings."""
    folder = write_synthetic_run(tmp_path / "run", Shape(seconds=130))
    text = folder.plan.read_text().replace(
        "\nstore: null\n", "\nstore: {url: 'kafka://127.0.0.1:1', timeout: 1s}\n"
    )
    folder.plan.write_text(text)

    with pytest.raises(FindingsError, match=r"no Kafka broker answered at 127\.0\.0\.1:1"):
        verdict.read_notifications(folder)
