"""Many runs of drills: which are left, what they came to, and the page that shows it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from soak.core.errors import LabError
from soak.lab.drills import matrix, result
from soak.lab.drills.drill import Cell, Drill, Expectation
from soak.lab.drills.result import NO_FINDING, Result
from soak.lab.drills.verdict import Check, Moments, Notifications

ONE = Result(
    drill="drive_gc",
    seed=1,
    fault="drive_gc",
    expected="drive_gc",
    cause="drive_gc",
    is_passed=True,
    onset_seconds=1.0,
    notified_seconds=20.0,
    resolved_seconds=40.0,
)
SECOND_NS = 10**9


def test_what_is_there_is_not_run_again_and_each_drill_has_some_early() -> None:
    """Seed by seed, not drill by drill."""
    wanted = {"a": 2, "b": 1}
    done = [replace(ONE, drill="a", seed=1)]

    assert matrix.remaining_runs(wanted, []) == [("a", 1), ("b", 1), ("a", 2)]
    assert matrix.remaining_runs(wanted, done) == [("b", 1), ("a", 2)]


def test_a_state_file_gives_back_what_was_written(tmp_path: Path) -> None:
    """One line a run; a line that is none of ours is named, and one of before origins were noted is read."""
    path = tmp_path / "state"
    assert matrix.read_results(path) == []

    path.write_text(result.format_result(ONE) + result.format_result(replace(ONE, seed=2)))
    assert matrix.read_results(path) == [ONE, replace(ONE, seed=2)]

    old = json.loads(result.format_result(ONE))
    for key in ("broker", "at", "host", "revision", "late_alarms"):
        del old[key]
    path.write_text(json.dumps(old) + "\n")
    assert matrix.read_results(path) == [ONE]

    path.write_text(result.format_result(ONE) + "{}\n")
    with pytest.raises(LabError, match="state:2: not a result"):
        matrix.read_results(path)


def test_a_last_line_that_a_kill_has_cut_is_made_anew(tmp_path: Path) -> None:
    """It neither keeps the others from being read nor spoils the next one; a whole one stays."""
    path = tmp_path / "state"
    second, third = replace(ONE, seed=2), replace(ONE, seed=3)

    path.write_text(result.format_result(ONE) + result.format_result(second)[:40])
    assert matrix.read_results(path) == [ONE]

    matrix.append_result(path, second)
    assert matrix.read_results(path) == [ONE, second]

    path.write_text(path.read_text().rstrip("\n"))
    matrix.append_result(path, third)
    assert matrix.read_results(path) == [ONE, second, third]


def test_a_run_that_proved_nothing_is_kept_and_run_again() -> None:
    """It does not count in the tables, but is mentioned there."""
    lost = replace(ONE, seed=2, cause=NO_FINDING, is_passed=False, is_judged=False)

    text = matrix.tables([ONE, lost, lost], {})

    assert matrix.remaining_runs({"drive_gc": 2}, [ONE, lost]) == [("drive_gc", 2)]
    assert "Detected: 1 of 1." in text
    assert "Runs that failed or were not read as a whole, and do not count: drive_gc 2." in text


def test_the_tables_count_right_wrong_unknown_and_missed() -> None:
    """Runs in which nothing may be found stand apart, and what has no name from what has one."""
    runs = [
        replace(ONE, broker="pulsar"),
        replace(
            ONE, seed=2, cause="unknown", false_alarms=0, late_alarms=0, notified_cause="drive_gc"
        ),
        replace(
            ONE,
            seed=3,
            cause="network",
            missed=["notified"],
            extra=2,
            false_alarms=1,
            late_alarms=1,
        ),
        replace(
            ONE,
            seed=4,
            cause=NO_FINDING,
            missed=["onset", "notified", "resolved"],
            onset_seconds=None,
            notified_seconds=None,
            resolved_seconds=None,
        ),
        replace(ONE, seed=5, resolved_seconds=None),  # it is never lifted
        replace(ONE, drill="quiet", fault="quiet", expected="nothing", cause=NO_FINDING),
        replace(ONE, drill="limit", expected="nothing", cause="network", is_passed=False),
        replace(ONE, drill="hang", fault="hang", expected="unknown", cause="unknown"),
    ]

    text = matrix.tables(runs, {})

    assert "Detected: 5 of 6." in text
    assert "Of these, cause right: 2 of 4, `unknown` instead: 1 of 4; " in text
    assert "`unknown` where no cause is known: 1 of 1. " in text
    assert "\n- cause wrong, at most 5%: 1 of 6, DOES NOT HOLD\n" in text
    assert "may be found, at least 100%: 1 of 2, DOES NOT HOLD\n" in text
    assert "\n- onset in time, at least 95%: 3 of 3, holds\n" in text
    assert "\n- notified in time, at least 95%: 3 of 3, holds\n" in text
    assert "\n- resolved in time, at least 90%: 2 of 2, holds\n" in text
    # Of the rest it is not known.
    assert "Same cause in the first message as in the report: 0 of 1 " in text
    assert "\n- an alarm before the fault, at most 0%: 1 of 2, DOES NOT HOLD\n" in text
    assert "Runs with a finding of another cause after the lifting: 1 of 2." in text
    assert "Other findings about the cluster at any time: 2.\n" in text
    assert "| drive_gc | pulsar | drive_gc | drive_gc | 5 | 5 | 4 |" in text
    assert "| 1 (1 to 1) | 20 (20 to 20) | 40 (40 to 40) | - |" in text


def test_what_was_left_out_by_hand_is_listed_counts_for_nothing_and_is_run_again() -> None:
    """It stays in the state file, with why."""
    out = replace(ONE, seed=2, cause=NO_FINDING, is_passed=False, left_out="mended since")

    text = matrix.tables([ONE, out], {})

    assert matrix.remaining_runs({"drive_gc": 2}, [ONE, out]) == [("drive_gc", 2)]
    assert "Detected: 1 of 1." in text
    assert "\n\nLeft out by hand: drive_gc 1.\n" in text


def test_runs_of_a_drill_that_says_something_else_by_now_are_listed_and_count() -> None:
    """Where their form was noted."""
    runs = [ONE, replace(ONE, seed=2, form="a"), replace(ONE, seed=3, form="b")]

    text = matrix.tables(runs, {"drive_gc": "b"})

    assert "Detected: 3 of 3." in text
    assert "\n\nMade before the drill or its plan was changed: drive_gc 1.\n" in text


def test_times_and_step_are_of_the_runs_that_were_named_right() -> None:
    """What was found under a wrong name says nothing of the drill's fault."""
    other = replace(ONE, seed=2, cause="network", onset_seconds=9.0, before=1.0, after=2.0)

    text = matrix.tables([replace(ONE, series="x", before=1.0, after=5.0), other], {})

    assert "| 1 (1 to 1) | 20 (20 to 20) | 40 (40 to 40) | x 1 -> 5 (x5) |" in text


def test_the_time_in_the_middle_of_two_lies_between_them() -> None:
    """Two runs are what most drills have."""
    text = matrix.tables([ONE, replace(ONE, seed=2, notified_seconds=30.0)], {})

    assert "| 25 (20 to 30) |" in text


def test_steps_of_several_drills_stand_in_a_table_of_their_own() -> None:
    """The one in the middle of those that were named right; a cell without one is empty."""
    seen = replace(ONE, series='publish_latency_seconds{quantile="0.99"}', before=0.01)
    small = replace(seen, cell=Cell(table="Cliff", row="1 MiB/s", column="filled to 40%"))
    large = replace(seen, cell=Cell(table="Cliff", row="2 MiB/s", column="filled to 95%"))
    runs = [
        *(replace(small, seed=seed, after=after) for seed, after in enumerate([0.03, 0.05, 0.02])),
        replace(small, seed=9, after=7.0, cause="network"),
        replace(large, drill="other", after=0.2),
    ]

    text = matrix.tables(runs, {})

    assert text.partition("\nCliff:\n")[2] == (
        "\n| | filled to 40% | filled to 95% |\n|---|---|---|\n"
        "| 1 MiB/s | p99 publish latency 10 ms -> 30 ms (x3), +20 ms | - |\n"
        "| 2 MiB/s | - | p99 publish latency 10 ms -> 200 ms (x20), +190 ms |\n"
    )
    assert "\n- Cliff, the step grows along each row and column: 2 of 4 cells, no run\n" in text


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ((1, 2, 3, 4), "holds"),
        ((1, 3, 2, 4), "holds"),
        ((2, 1, 3, 4), "DOES NOT HOLD"),
        ((1, 4, 3, 4), "DOES NOT HOLD"),
        ((1, 1, 3, 4), "DOES NOT HOLD"),
    ],
)
def test_a_step_must_grow_with_both_things_in_which_its_drills_differ(
    steps: tuple[int, ...], says: str
) -> None:
    """Sizes of the upper row, then of the lower one."""
    places = [(row, column) for row in "ab" for column in "xy"]
    runs = [
        replace(
            ONE,
            drill=row + column,
            before=0.5,
            after=0.5 + size,
            cell=Cell(table="t", row=row, column=column),
        )
        for (row, column), size in zip(places, steps, strict=True)
    ]

    assert (
        f"\n- t, the step grows along each row and column: 4 of 4 cells, {says}\n"
        in matrix.tables(runs, {})
    )


def test_a_page_gets_its_tables_between_the_marks_and_keeps_the_rest() -> None:
    """Written twice it is the same."""
    page = "# Drills\n\nText.\n"

    once = matrix.with_tables(page, "table\n")
    twice = matrix.with_tables(once + "More.\n", "other\n")

    assert once == f"# Drills\n\nText.\n\n{matrix.BEGIN}\ntable\n{matrix.END}\n"
    assert twice == f"# Drills\n\nText.\n\n{matrix.BEGIN}\nother\n{matrix.END}\nMore.\n"


def test_a_result_is_made_of_the_finding_nearest_to_the_fault() -> None:
    """Its cause may be a wrong one; a warning is no finding."""
    at_ns = 1_800_000_000 * SECOND_NS
    findings = [
        {
            "key": "far",
            "cause": "drive_gc",
            "state": "gone",
            "is_about_cluster": True,
            "at": "2027-01-15T08:01:00Z",
        },
        {
            "key": "near",
            "cause": "network",
            "state": "confirmed",
            "is_about_cluster": True,
            "at": "2027-01-15T08:00:03Z",
            "metric": "publish_latency_seconds",
            "labels": {"source": "produce.0@here", "quantile": "0.5"},
            "before": 0.001,
            "after": 0.002,
            "evidence": [{"text": "it rose"}],
        },
        {"key": "w", "cause": "unknown", "state": "warning", "is_about_cluster": True},
    ]
    drill = Drill("d", "", Path("p"), "drive_gc", None, Expectation(cause="drive_gc"))
    moments = Moments(at_ns, None, Notifications({"near": at_ns + 9 * SECOND_NS}))
    checks = [Check("cause", "drive_gc", "network", is_met=False)]

    found = result.make_result(drill, 3, {"findings": findings}, moments, checks)

    assert (found.cause, found.onset_seconds, found.notified_seconds) == ("network", 3.0, 9.0)
    assert (found.is_passed, found.missed, found.why) == (False, ["cause"], "it rose")
    assert found.series == 'publish_latency_seconds{quantile="0.5"}'
    assert result.table_row(found)[2:4] == (
        "network: p50 publish latency 1 ms -> 2 ms (x2)",
        "onset 3.0 s after the fault, notified 9 s after the fault",
    )
    assert result.parse_result(result.format_result(found)) == found


def test_a_result_shows_the_wrong_name_before_the_right_one() -> None:
    """A fault with two causes is not named right; `unknown` is no cause."""
    about = {"state": "confirmed", "is_about_cluster": True}
    right = {**about, "key": "r", "cause": "drive_gc", "at": "2027-01-15T08:00:03Z"}
    other = {**about, "key": "o", "cause": "unknown", "at": "2027-01-15T08:00:01Z"}
    drill = Drill("d", "", Path("p"), "drive_gc", None, Expectation(cause="drive_gc"))
    moments = Moments(1_800_000_000 * SECOND_NS)

    def cause(*findings: object) -> str:
        return result.make_result(drill, 1, {"findings": findings}, moments, []).cause

    assert cause(right, other) == "drive_gc"
    assert cause(right, {**other, "cause": "network"}) == "network"


def test_what_the_report_alone_found_was_not_detected() -> None:
    """Under whatever name; nor what was a warning in the run, and is confirmed in the offline analysis."""
    drill = Drill("d", "", Path("p"), "drive_gc", None, Expectation(cause="drive_gc"))
    back = {"key": "b", "state": "confirmed", "is_about_cluster": True}

    def is_detected(cause: str, *in_run: str) -> bool:
        finding = {**back, "cause": cause, "at": "2027-01-15T08:00:01Z"}
        moments = Moments(1_800_000_000 * SECOND_NS, confirmed_in_run=in_run)
        return result.make_result(drill, 1, {"findings": [finding]}, moments, []).is_detected

    assert not any(is_detected(cause, "a") for cause in ("drive_gc", "unknown", "network"))
    assert is_detected("drive_gc", "a", "b")


def test_a_result_keeps_the_name_that_people_saw_first() -> None:
    """The report may name another cause."""
    drill = Drill("d", "", Path("p"), "drive_gc", None, Expectation(cause="drive_gc"))
    finding = {"key": "a", "cause": "drive_gc", "state": "gone", "is_about_cluster": True}
    moments = Moments(
        1_800_000_000 * SECOND_NS, notifications=Notifications(cause={"a": "slow_drive"})
    )

    found = result.make_result(
        drill, 1, {"findings": [{**finding, "at": "2027-01-15T08:00:01Z"}]}, moments, []
    )

    assert (found.cause, found.notified_cause) == ("drive_gc", "slow_drive")


@pytest.mark.parametrize(
    ("at", "cause"), [("2027-01-15T08:00:01Z", "network"), ("2027-01-15T07:59:00Z", "drive_gc")]
)
def test_a_wrong_name_or_an_early_alarm_counts_however_little_was_read(at: str, cause: str) -> None:
    """The same run with the right name proves nothing."""
    drill = Drill("d", "", Path("p"), "drive_gc", None, Expectation(cause="drive_gc"))
    finding = {"key": "a", "cause": cause, "state": "gone", "is_about_cluster": True, "at": at}
    right = {**finding, "cause": "drive_gc", "at": "2027-01-15T08:00:01Z"}
    coverage = {"gaps": [{"source": "detector"}]}
    moments = Moments(1_800_000_000 * SECOND_NS)

    def is_judged(one: object) -> bool:
        summary = {"findings": [one], "coverage": coverage}
        return result.make_result(drill, 1, summary, moments, []).is_judged

    assert (is_judged(finding), is_judged(right)) == (True, False)


def test_an_alarm_before_the_fault_does_not_make_it_found() -> None:
    """It is counted as another one."""
    at_ns = 1_800_000_000 * SECOND_NS
    early = {
        "key": "a",
        "cause": "drive_gc",
        "state": "gone",
        "is_about_cluster": True,
        "at": "2027-01-15T07:59:00Z",
    }
    drill = Drill("d", "", Path("p"), "drive_gc", None, Expectation(cause="drive_gc"))

    found = result.make_result(drill, 1, {"findings": [early]}, Moments(at_ns), [])

    assert (found.cause, found.is_detected, found.extra) == (NO_FINDING, False, 1)
    assert found.false_alarms == 1


def test_an_alarm_of_something_else_after_the_lifting_is_counted() -> None:
    """What is blamed for the fault itself is not, nor the fault found late, nor what is the client's."""
    at_ns = 1_800_000_000 * SECOND_NS
    about = {"state": "confirmed", "is_about_cluster": True}
    findings = [
        {**about, "key": "own", "cause": "drive_gc", "at": "2027-01-15T08:00:01Z"},
        {**about, "key": "other", "cause": "network", "at": "2027-01-15T08:01:30Z"},
        {**about, "key": "late", "cause": "drive_gc", "at": "2027-01-15T08:01:20Z"},
        {**about, "key": "client", "cause": "client", "at": "2027-01-15T08:01:40Z"}
        | {"is_about_cluster": False},
        {**about, "key": "again", "cause": "unknown", "at": "2027-01-15T08:01:05Z"},
    ]
    drill = Drill("d", "", Path("p"), "drive_gc", None, Expectation(cause="drive_gc"))
    moments = Moments(at_ns, at_ns + 60 * SECOND_NS)

    found = result.make_result(drill, 1, {"findings": findings}, moments, [])

    assert (found.cause, found.late_alarms, found.false_alarms) == ("drive_gc", 2, 0)


@pytest.mark.parametrize(
    ("coverage", "is_judged"),
    [
        ({"seconds": 200, "ratio": 0.95, "untrusted_seconds": 20}, True),
        ({"seconds": 200, "ratio": 0.95, "untrusted_seconds": 21}, False),
        ({"seconds": 200, "ratio": 0.85, "untrusted_seconds": 0}, False),
        ({"seconds": 0, "ratio": 0.0, "untrusted_seconds": 0}, False),
    ],
)
def test_a_quiet_run_of_which_little_was_seen_proves_nothing(
    coverage: dict[str, float], *, is_judged: bool
) -> None:
    drill = Drill("d", "", Path("p"), "quiet", None, Expectation(cause="nothing"))

    found = result.make_result(drill, 1, {"findings": [], "coverage": coverage}, Moments(0), [])

    assert (found.is_judged, found.is_passed) == (is_judged, is_judged)


@pytest.mark.parametrize("gap", [{}, {"source": "detector", "why": "ended early"}])
def test_a_false_alarm_counts_however_little_was_seen(gap: dict[str, str]) -> None:
    drill = Drill("d", "", Path("p"), "quiet", None, Expectation(cause="nothing"))
    finding = {"cause": "unknown", "state": "gone", "is_about_cluster": True}
    coverage = {"seconds": 200, "ratio": 0.5, "untrusted_seconds": 100, "gaps": [gap]}

    found = result.make_result(
        drill, 1, {"findings": [finding], "coverage": coverage}, Moments(0), []
    )

    assert (found.is_judged, found.cause) == (True, "unknown")


def test_a_run_whose_detector_never_wrote_proves_nothing() -> None:
    """It says so and has not passed, whatever was expected."""
    drill = Drill("d", "", Path("p"), "quiet", None, Expectation(cause="nothing"))
    gap = {"source": "detector", "why": "never wrote"}
    summary = {"findings": [], "coverage": {"gaps": [gap], "untrusted_seconds": 4}}

    found = result.make_result(drill, 1, summary, Moments(), [])

    assert (found.is_judged, found.is_passed) == (False, False)
    assert result.table_row(found)[-1].startswith("INCONCLUSIVE")
