"""Drill files, and the verdict on a run that a drill was put into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from soak.core import plan_text, plugins
from soak.core.errors import PlanError
from soak.core.units import SECOND_NS
from soak.lab import drill
from soak.lab.drill import Expectation, Moments
from soak.lab.drive_control import Said
from soak.lab.faults import deletion_stall
from soak.lab.pool import Pool

DRILLS = Path(__file__).parent.parent / "configs" / "drills"
EXPECT = Expectation(cause="retention_cliff")
FIRST_NS = 1_800_000_000 * SECOND_NS  # 2027-01-15T08:00:00Z
GOOD = """\
plan: plan.yaml
fault:
  kind: deletion_stall
  stall: 40ms
expect:
  cause: retention_cliff
"""


def summary(**changes: Any) -> dict[str, Any]:
    finding = {"cause": "retention_cliff", "state": "confirmed", "at": "2027-01-15T08:00:02+00:00"}
    return {
        "findings": [finding | changes.pop("finding", {})],
        "audit": {"lost": 0, "duplicated": 0} | changes,
    }


def failing(summary: dict[str, Any], first_ns: int | None = FIRST_NS) -> set[str]:
    checks = drill.judge(EXPECT, summary, Moments(onset_wall_ns=first_ns))
    return {check.subject for check in checks if not check.is_met}


def test_a_drill_file_gives_the_faults_own_configuration(tmp_path: Path) -> None:
    """Defaults are filled in; the plan is looked for beside the file."""
    (tmp_path / "plan.yaml").touch()
    (tmp_path / "mine.yaml").write_text(GOOD)

    found = drill.load(tmp_path / "mine.yaml")

    assert (found.name, found.plan, found.fault_kind) == (
        "mine",
        tmp_path / "plan.yaml",
        "deletion_stall",
    )
    assert found.fault == deletion_stall.Config(stall=SECOND_NS // 25)
    assert found.expect.onset_within == 5 * SECOND_NS


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "kind: deletion_stall",
            "kind: deletion_stal",
            "3: fault.kind: unknown fault; did you mean",
        ),
        ("stall: 40ms", "stal: 40ms", "4: fault.stal: unknown key; did you mean 'stall'"),
        ("stall: 40ms", "stall: 40 blinks", "4: fault.stall: "),
        ("stall: 40ms", "stall: 240ms", "2: fault: stall must be at most half of every"),
        ("  cause: retention_cliff", "  cause: x\n  lose: 0", "7: expect.lose: unknown key"),
        ("plan: plan.yaml", "plan: other.yaml", "1: plan: there is no file"),
        ("plan: plan.yaml", "", "1: plan: is missing"),
        ("expect:", "fault:", "5: fault: duplicate key"),
    ],
)
def test_a_wrong_drill_file_is_refused_with_line_and_key(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    """As a wrong plan is."""
    (tmp_path / "plan.yaml").touch()
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace(old, new))

    with pytest.raises(PlanError) as caught:
        drill.load(path)

    assert str(caught.value).startswith(f"{path}:{message}")


@pytest.mark.parametrize("path", sorted(DRILLS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_drill_that_ships_names_a_known_fault(path: Path) -> None:
    """A new file is under test the moment it exists; so are its plan and the time left after the fault."""
    found = drill.load(path)
    plan = plan_text.load(found.plan.read_text(), str(found.plan)).plan
    judged_until_ns = plan.phases.warm_up + plan.phases.soak

    assert type(found.fault).__name__ == "Config"
    assert found.expect.cause in (*plugins.names("detectors.causes"), drill.NOTHING)
    assert found.begin_ns + found.length_ns + found.expect.gone_within <= judged_until_ns


def test_a_run_that_found_what_was_declared_meets_every_expectation() -> None:
    """Two seconds after the first deletion, nothing lost, nothing doubled."""
    assert failing(summary()) == set()


@pytest.mark.parametrize(
    ("at", "wrong"),
    [
        ("2027-01-15T07:59:55+00:00", set()),
        ("2027-01-15T07:59:54+00:00", {"cause", "state", "onset"}),
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
    (cause, *_) = drill.judge(EXPECT, run, Moments(onset_wall_ns=FIRST_NS))

    assert failing(run) == {"cause", "state", "onset"}
    assert (cause.expected, cause.found) == ("retention_cliff", "unknown")


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
        ("2027-01-15T07:59:54Z", {"cause", "state", "onset"}),
        ("2027-01-15T08:01:10Z", {"onset"}),
        ("2027-01-15T08:01:11Z", {"cause", "state", "onset"}),
    ],
)
def test_a_finding_of_another_time_is_not_the_faults(at: str, wrong: set[str]) -> None:
    """From 5 s before it was felt until 30 s after it was lifted."""
    expect = Expectation(cause="retention_cliff", onset_within=SECOND_NS)
    moments = Moments(FIRST_NS, FIRST_NS + 40 * SECOND_NS)

    checks = drill.judge(expect, summary(finding={"at": at}), moments)

    assert {check.subject for check in checks if not check.is_met} == wrong


def test_what_was_written_at_the_onset_is_held_against_the_pool() -> None:
    """A finding 2 s late is 20 % too much where the pool lasts for ten seconds."""

    class Drive:
        written_bytes = 0

        def said(self) -> Said:
            return Said(
                written_bytes=1000 + self.written_bytes,
                aged_written_bytes=1000,
                starved_written_bytes=2000,
            )

    drive = Drive()
    pool = Pool(drive)
    for second in range(20):
        drive.written_bytes = 100 * second
        pool.look(FIRST_NS + (second - 10) * SECOND_NS)

    def found(within: float) -> drill.Check:
        expect = Expectation(cause="retention_cliff", pool_within=within)
        moments = Moments(FIRST_NS, pool=pool)
        checks = drill.judge(expect, summary(), moments)
        return next(check for check in checks if check.subject == "written")

    assert (pool.allowed_bytes, pool.written_bytes(FIRST_NS)) == (1000, 1000.0)
    assert (found(0.21).is_met, found(0.19).is_met) == (True, False)
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


def test_the_declaration_says_what_is_injected_as_people_write_it(tmp_path: Path) -> None:
    """It is the first line of the fault log."""
    (tmp_path / "plan.yaml").touch()
    (tmp_path / "mine.yaml").write_text(GOOD)

    line = drill.declaration(drill.load(tmp_path / "mine.yaml"), at_wall_ns=7)

    assert (line["drill"], line["fault"], line["at_wall_ns"]) == ("mine", "deletion_stall", 7)
    assert dict(line["config"])["stall"] == "40ms"  # type: ignore[call-overload]  # JSON


def test_when_people_are_told_and_when_it_is_gone_are_judged_where_a_limit_is_named() -> None:
    """Of the fault's onset, and of its lifting; never is not soon."""
    expect = Expectation(
        cause="retention_cliff", alert_within=30 * SECOND_NS, gone_within=60 * SECOND_NS
    )
    run = summary(finding={"key": "a"})
    in_time = Moments(
        onset_wall_ns=FIRST_NS,
        lifted_wall_ns=FIRST_NS + 40 * SECOND_NS,
        told_wall_ns={"a": FIRST_NS + 30 * SECOND_NS},
        gone_wall_ns={"a": FIRST_NS + 101 * SECOND_NS},
    )

    found = {check.subject: check for check in drill.judge(expect, run, in_time)}
    never = drill.judge(expect, run, Moments(onset_wall_ns=FIRST_NS))

    assert (found["told"].found, found["told"].is_met) == ("after 30.0 s", True)
    assert (found["gone"].found, found["gone"].is_met) == ("after 61.0 s", False)
    assert [check.found for check in never if check.subject in ("told", "gone")] == ["never"] * 2


def test_a_quiet_run_has_no_finding_about_the_cluster() -> None:
    """One about the client, and a warning, do not count; a fault that was never felt proves nothing."""
    quiet = Expectation(cause="nothing")
    client = {"cause": "client", "state": "confirmed", "is_about_cluster": False}
    warned = {"cause": "unknown", "state": "warning", "is_about_cluster": True}
    loud = {"cause": "unknown", "state": "gone", "is_about_cluster": True}

    def is_met(*findings: dict[str, Any], onset_wall_ns: int | None = FIRST_NS) -> bool:
        run = summary() | {"findings": list(findings)}
        return all(check.is_met for check in drill.judge(quiet, run, Moments(onset_wall_ns)))

    assert is_met(client, warned)
    assert not is_met(client, loud)
    assert not is_met(onset_wall_ns=None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("begin: -1s", "begin"),
        ("length: -1s", "length"),
        ("expect: {cause: x, gone_within: 1s}", "needs a length: nothing goes that is never"),
    ],
)
def test_times_that_cannot_be_are_refused(line: str, message: str, tmp_path: Path) -> None:
    """As other wrong keys are."""
    (tmp_path / "plan.yaml").touch()
    path = tmp_path / "mine.yaml"
    text = GOOD.partition("expect:")[0] if line.startswith("expect") else GOOD
    path.write_text(text + line + "\n")

    with pytest.raises(PlanError, match=message):
        drill.load(path)
