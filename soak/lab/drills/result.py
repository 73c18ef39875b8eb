"""The result of one run of a drill as a line of JSON, with the machine and version that it was made on."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field, TypeAdapter
from pydantic.dataclasses import dataclass as config_dataclass

from soak.core import wording
from soak.core.model import Column
from soak.core.plan.config import STRICT
from soak.core.units import SECOND_NS
from soak.lab.drills.drill import CLIENT, NOTHING, Cell, Drill
from soak.lab.drills.verdict import Check, Moments, began_wall_ns, classify

CHECKOUT = Path(__file__).resolve().parents[3]
NO_FINDING = "no finding"
_GIT_SECONDS = 20.0
_MAX_INVALID_RATIO = 0.1  # of the seconds of a run
_MIN_RECORDED_RATIO = 0.9  # of the seconds of all sources
_FORMER_SUBJECTS = {"told": "notified", "gone": "resolved"}


def _with_current_subjects(missed: object) -> object:
    return (
        [_FORMER_SUBJECTS.get(one, one) for one in missed] if isinstance(missed, list) else missed
    )


def _formerly(name: str, former: str) -> AliasChoices:
    """Accept the key of earlier results too."""
    return AliasChoices(name, former)


@config_dataclass(frozen=True, kw_only=True, config=STRICT)
class Result:
    """One run of a drill; a number of seconds is None if there was no such moment."""

    drill: str
    seed: int
    fault: str
    expected: str
    # In the report: a wrong cause for the fault, else the expected one, else another, or NO_FINDING.
    cause: str
    is_passed: bool  # always False if the run proves nothing
    missed: Annotated[list[str], BeforeValidator(_with_current_subjects)] = field(
        default_factory=list
    )  # subjects of the checks that were not met
    onset_seconds: float | None = None  # of the finding, after the fault's onset
    notified_seconds: float | None = Field(
        default=None, validation_alias=_formerly("notified_seconds", "told_seconds")
    )  # after the fault's onset
    resolved_seconds: float | None = Field(
        default=None, validation_alias=_formerly("resolved_seconds", "gone_seconds")
    )  # after the lifting
    extra: int = 0  # other confirmed findings about the cluster in the whole run
    false_alarms: int | None = None  # those before the fault; None: not counted
    late_alarms: int | None = None  # those of another cause after the lifting; None: not counted
    series: str = ""  # the column of the finding
    before: float | None = None
    after: float | None = None
    cell: Cell | None = None
    why: str = ""  # the first evidence
    invalid_seconds: int = Field(
        default=0, validation_alias=_formerly("invalid_seconds", "untrusted_seconds")
    )
    is_judged: bool = True  # False: it proves nothing, as it failed or was not read as a whole
    broker: str = ""  # its kind; early results lack this and the following
    at: str = ""  # UTC
    host: str = ""
    revision: str = ""  # of the program
    form: str = ""  # see `drill.fingerprint`
    notified_cause: str = Field(
        default="", validation_alias=_formerly("notified_cause", "told_cause")
    )  # in the first message about the finding
    left_out: str = ""  # by hand: why it no longer counts

    @property
    def counts(self) -> bool:
        return self.is_judged and not self.left_out

    @property
    def is_detected(self) -> bool:
        """True with a finding about the cluster, or about the client if that is expected."""
        return self.cause != NO_FINDING and (self.cause != CLIENT or self.expected == CLIENT)


@dataclass(frozen=True, slots=True)
class Origin:
    """When, where and by which version of the program a result was made."""

    at: str  # UTC, ISO 8601
    host: str
    revision: str  # of the checkout, marked if it was changed, or the version of the package


def current_origin(wall_ns: int, checkout: Path = CHECKOUT) -> Origin:
    """Return the origin of a result that is made on this machine now."""
    return Origin(wording.iso(wall_ns), platform.node(), _git_revision(checkout) or _version())


def make_result(
    drill: Drill,
    seed: int,
    summary: Mapping[str, Any],
    moments: Moments,
    checks: Sequence[Check],
) -> Result:
    """Return the result of a run with a `summary.json`; `checks` are those of `verdict.judge`."""
    findings = classify(drill.expect, summary.get("findings", []), moments)
    is_quiet = drill.expect.cause == NOTHING
    found = findings.shown or {}
    # A false alarm or a wrong cause counts, however little the detector read.
    is_judged = bool(findings.before or (findings.relevant if is_quiet else findings.wrong))
    is_judged = is_judged or _was_read(summary, is_quiet=is_quiet)
    key = str(found.get("key", ""))
    evidence = found.get("evidence") or [{}]
    onset_ns, sent = moments.onset_wall_ns, moments.notifications
    return Result(
        drill=drill.name,
        seed=seed,
        fault=drill.fault_kind,
        expected=drill.expect.cause,
        cause=str(found.get("cause", NO_FINDING)),
        is_passed=is_judged and all(one.is_met for one in checks),
        missed=[one.subject for one in checks if not one.is_met],
        onset_seconds=_seconds(onset_ns, began_wall_ns(found)),
        notified_seconds=_seconds(onset_ns, sent.sent_wall_ns.get(key)),
        resolved_seconds=_seconds(moments.lifted_wall_ns, sent.resolved_wall_ns.get(key)),
        extra=sum(
            one is not findings.shown and bool(one.get("is_about_cluster"))
            for one in findings.relevant
        ),
        false_alarms=len(findings.before),
        late_alarms=len(findings.after),
        series=_column(found),
        before=found.get("before"),
        after=found.get("after"),
        cell=drill.cell,
        why=str(evidence[0].get("text", "")),
        invalid_seconds=_invalid_seconds(summary),
        is_judged=is_judged,
        notified_cause=sent.cause.get(key, ""),
    )


def failed_result(drill: Drill, seed: int, why: str) -> Result:
    """Return the result of a run that did not come to its end."""
    return Result(
        drill=drill.name,
        seed=seed,
        fault=drill.fault_kind,
        expected=drill.expect.cause,
        cause=NO_FINDING,
        is_passed=False,
        cell=drill.cell,
        why=why,
        is_judged=False,
    )


def stamped(result: Result, broker: str, form: str, origin: Origin) -> Result:
    """Return the result with its kind of broker, the fingerprint of its drill, and its origin."""
    at, host, revision = origin.at, origin.host, origin.revision
    return replace(result, broker=broker, form=form, at=at, host=host, revision=revision)


def format_result(result: Result) -> str:
    return TypeAdapter(Result).dump_json(result).decode() + "\n"


def parse_result(text: str) -> Result:
    """Return the result in a line of `format_result`, or of an earlier version.

    Raises:
        ValueError: it is not a result.
    """
    return TypeAdapter(Result).validate_json(text)


def step_text(result: Result) -> str:
    """Return which series stepped and by how much, or ""."""
    if result.before is None or result.after is None:
        return ""
    levels = wording.level_text(result.series, "step", result.before, result.after)
    return f"{wording.title(result.series)} {levels}"


def table_row(result: Result) -> tuple[str, ...]:
    """Return the cells of a table: drill, injected, found, when, why, verdict."""
    when = [
        f"{name} {_distance(round(value, decimals), decimals)} {edge}"
        for name, value, decimals, edge in (
            ("onset", result.onset_seconds, 1, "the fault"),
            ("notified", result.notified_seconds, 0, "the fault"),
            ("resolved", result.resolved_seconds, 0, "its end"),
        )
        if value is not None
    ]
    verdict = "ok" if result.is_passed else f"MISSED: {', '.join(result.missed)}"
    if not result.is_judged:
        verdict = "INCONCLUSIVE: the run failed, or the detector did not read all of it"
    found = ": ".join(part for part in (result.cause, step_text(result)) if part)
    return result.drill, result.fault, found, ", ".join(when), result.why, verdict


def _distance(seconds: float, decimals: int) -> str:
    """Return such as `0.3 s before`; seconds are rounded first, so 0 is never `before`."""
    return f"{abs(seconds):.{decimals}f} s {'after' if seconds >= 0 else 'before'}"


def _was_read(summary: Mapping[str, Any], *, is_quiet: bool) -> bool:
    """Return whether the detector read the run, and enough of a quiet run to prove that nothing was there."""
    coverage = summary.get("coverage", {})
    if "detector" in {gap.get("source") for gap in coverage.get("gaps", ())}:
        return False
    if not is_quiet:
        return True
    seconds = coverage.get("seconds", 0)
    is_valid = bool(seconds > 0) and _invalid_seconds(summary) <= _MAX_INVALID_RATIO * seconds
    return is_valid and bool(coverage.get("ratio", 1.0) >= _MIN_RECORDED_RATIO)


def _invalid_seconds(summary: Mapping[str, Any]) -> int:
    return int(summary.get("coverage", {}).get("untrusted_seconds", 0))


def _column(finding: Mapping[str, Any]) -> str:
    """Return the name of a finding's column, without its source, which would name the host."""
    labels = {key: text for key, text in finding.get("labels", {}).items() if key != "source"}
    return Column(str(finding.get("metric", "")), tuple(labels.items())).name


def _seconds(since_ns: int | None, at_ns: int | None) -> float | None:
    return None if since_ns is None or at_ns is None else (at_ns - since_ns) / SECOND_NS


def _git_revision(checkout: Path) -> str:
    """Return the revision of a checkout; "" if there is none, or no git.

    Changes below docs do not count: results are written there.
    """
    if not (checkout / ".git").exists():
        return ""
    try:
        described = _git(checkout, "describe", "--always", "--tags")
        changed = _git(checkout, "diff", "--quiet", "HEAD", "--", ".", ":(exclude)docs")
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if described.returncode:
        return ""
    return described.stdout.strip() + ("-dirty" if changed.returncode else "")


def _git(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "-C", str(checkout), *words],  # noqa: S607  # any git will do
        capture_output=True,
        text=True,
        timeout=_GIT_SECONDS,
        check=False,
    )


def _version() -> str:
    try:
        return version("soakd")
    except PackageNotFoundError:
        return ""
