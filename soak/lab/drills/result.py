"""The result of one run of a drill as a line of JSON, with the machine and version that it was made on."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as config_dataclass

from soak.core import wording
from soak.core.model import Column
from soak.core.plan.config import STRICT
from soak.core.units import SECOND_NS
from soak.lab.drills.drill import CLIENT, NOTHING, Cell, Drill
from soak.lab.drills.verdict import (
    Check,
    Moments,
    after_lifting,
    at_wall_ns,
    before_fault,
    closest,
    nearest,
    of_fault,
    relevant,
    wrong,
)

CHECKOUT = Path(__file__).resolve().parents[3]
_GIT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Origin:
    at: str  # UTC, ISO 8601
    host: str
    revision: (
        str  # of the checkout, with a mark where it was changed, or the version of the package
    )


def current_origin(wall_ns: int, checkout: Path = CHECKOUT) -> Origin:
    """Return the origin of what is found out on this machine now."""
    return Origin(wording.iso(wall_ns), platform.node(), _described(checkout) or _version())


def _described(checkout: Path) -> str:
    """Return the revision of a checkout; "" where there is none, or nobody who could tell.

    What the docs are changed to is no other program: results are written there.
    """
    if not (checkout / ".git").exists():
        return ""
    try:
        told = _git(checkout, "describe", "--always", "--tags")
        changed = _git(checkout, "diff", "--quiet", "HEAD", "--", ".", ":(exclude)docs")
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if told.returncode:
        return ""
    return told.stdout.strip() + ("-dirty" if changed.returncode else "")


def _git(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "-C", str(checkout), *words],  # noqa: S607  # any will do
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


# --- How one run of a drill went, as a line of JSON: what `drill all` shows and `matrix` keeps.

NONE = "no finding"
_MAX_INVALID = 0.1  # of the seconds of a run
_LEAST_RECORDED = 0.9  # of those of all sources


@config_dataclass(frozen=True, kw_only=True, config=STRICT)
class Result:
    """Seconds are None where there was no such moment."""

    drill: str
    seed: int
    fault: str
    expected: str
    # by the last word: a wrong one blamed for the fault, else the expected one, else another; or NONE
    cause: str
    is_passed: bool  # never where the run proves nothing
    missed: list[str] = field(default_factory=list)  # subjects of the checks that were not met
    onset_seconds: float | None = None  # of the finding, after the fault's
    told_seconds: float | None = None  # sent, after the fault's onset
    gone_seconds: float | None = None  # noticed, after the lifting
    extra: int = 0  # other confirmed findings about the cluster in the whole run
    false_alarms: int | None = None  # of these, begun before the fault; None: not counted
    late_alarms: int | None = (
        None  # of these, of another cause and begun after the lifting; as above
    )
    series: str = ""  # the column of the finding, as Prometheus writes it
    before: float | None = None
    after: float | None = None
    cell: Cell | None = None  # of a table of steps
    why: str = ""  # the first evidence
    untrusted_seconds: int = 0
    is_judged: bool = (
        True  # False: it failed, or the detector did not read it all: it proves nothing
    )
    broker: str = ""  # its kind; this and the rest are empty in lines of before they were noted
    at: str = ""  # when it was judged, UTC
    host: str = ""
    revision: str = ""  # of the program
    form: str = ""  # of the drill and its plan, see `drill.form`
    told_cause: str = ""  # by the first message about the finding
    left_out: str = (
        ""  # why it counts no more, by hand: what it showed was mended, or it was no fair run
    )

    @property
    def counts(self) -> bool:
        return self.is_judged and not self.left_out

    @property
    def is_detected(self) -> bool:
        """True for a finding about the cluster, or about the client where that is what was expected."""
        return self.cause != NONE and (self.cause != CLIENT or self.expected == CLIENT)


def judged_result(
    drill: Drill,
    seed: int,
    summary: Mapping[str, Any],
    moments: Moments,
    checks: Sequence[Check],
) -> Result:
    """Return the result of a run whose checks were made."""
    about = relevant(drill.expect, summary.get("findings", []), moments)
    own = about if drill.expect.cause == NOTHING else of_fault(about, moments)
    found = _shown(drill, own, moments) or {}
    key = str(found.get("key", ""))
    evidence = found.get("evidence") or [{}]
    onset, coverage = moments.onset_wall_ns, summary.get("coverage", {})
    is_judged = "detector" not in {gap.get("source") for gap in coverage.get("gaps", ())}
    early = before_fault(about, moments)
    if early or (about if drill.expect.cause == NOTHING else wrong(drill.expect, own, moments)):
        is_judged = True  # a false alarm or a wrong name is one, however little was looked at
    elif drill.expect.cause == NOTHING:
        # what no detector looked at is no proof that nothing was there
        seconds, invalid = (coverage.get(name, 0) for name in ("seconds", "untrusted_seconds"))
        is_judged &= seconds > 0 and invalid <= _MAX_INVALID * seconds
        is_judged &= coverage.get("ratio", 1.0) >= _LEAST_RECORDED
    return Result(
        drill=drill.name,
        seed=seed,
        fault=drill.fault_kind,
        expected=drill.expect.cause,
        cause=str(found.get("cause", NONE)),
        is_passed=is_judged and all(one.is_met for one in checks),
        missed=[one.subject for one in checks if not one.is_met],
        onset_seconds=_seconds(onset, at_wall_ns(found)),
        told_seconds=_seconds(onset, moments.told_wall_ns.get(key)),
        gone_seconds=_seconds(moments.lifted_wall_ns, moments.gone_wall_ns.get(key)),
        extra=sum(one is not found and bool(one.get("is_about_cluster")) for one in about),
        false_alarms=len(early),
        late_alarms=len(after_lifting(drill.expect, about, moments)),
        series=_column(found),
        before=found.get("before"),
        after=found.get("after"),
        cell=drill.cell,
        why=str(evidence[0].get("text", "")),
        untrusted_seconds=int(coverage.get("untrusted_seconds", 0)),
        is_judged=is_judged,
        told_cause=moments.told_cause.get(key, ""),
    )


def failed_result(drill: Drill, seed: int, why: str) -> Result:
    """Return the result of a run that did not come to its end."""
    return Result(
        drill=drill.name,
        seed=seed,
        fault=drill.fault_kind,
        expected=drill.expect.cause,
        cause=NONE,
        is_passed=False,
        cell=drill.cell,
        why=why,
        is_judged=False,
    )


def stamped(result: Result, broker: str, form: str, origin: Origin) -> Result:
    """Return a result that says of which broker and drill it is, and when, where and of what it was made."""
    return replace(
        result,
        broker=broker,
        form=form,
        at=origin.at,
        host=origin.host,
        revision=origin.revision,
    )


def format_result(result: Result) -> str:
    return TypeAdapter(Result).dump_json(result).decode() + "\n"


def parse_result(text: str) -> Result:
    """Return what `line` wrote.

    Raises:
        ValueError: it is something else.
    """
    return TypeAdapter(Result).validate_json(text)


def step(result: Result) -> str:
    """Return what stepped and by how much, or ""."""
    if result.before is None or result.after is None:
        return ""
    series = result.series
    moved = wording.level_text(series, "step", result.before, result.after)
    return f"{wording.title(series)} {moved}"


def table_row(result: Result) -> tuple[str, ...]:
    """Return the cells of a table: drill, injected, found, when, why, verdict."""
    when = [
        f"{name} {_beside(round(value, decimals), decimals)} {edge}"
        for name, value, decimals, edge in (
            ("onset", result.onset_seconds, 1, "the fault"),
            ("told", result.told_seconds, 0, "the fault"),
            ("gone", result.gone_seconds, 0, "its end"),
        )
        if value is not None
    ]
    verdict = "ok" if result.is_passed else f"MISSED: {', '.join(result.missed)}"
    if not result.is_judged:
        verdict = "INCONCLUSIVE: it failed, or the detector has not judged it"
    found = ": ".join(part for part in (result.cause, step(result)) if part)
    return result.drill, result.fault, found, ", ".join(when), result.why, verdict


def _beside(seconds: float, decimals: int) -> str:
    """Return such as `0.3 s before`, of rounded seconds: nothing is before its own moment."""
    return f"{abs(seconds):.{decimals}f} s {'after' if seconds >= 0 else 'before'}"


def _shown(
    drill: Drill, own: Sequence[Mapping[str, Any]], moments: Moments
) -> Mapping[str, Any] | None:
    """Return the finding that says how it went, of those that are the fault's."""
    onset_wall_ns = moments.onset_wall_ns
    return (
        closest(wrong(drill.expect, own, moments), onset_wall_ns)
        or nearest(drill.expect, own, onset_wall_ns)
        or closest(own, onset_wall_ns)
    )


def _column(finding: Mapping[str, Any]) -> str:
    """Return the name of a finding's column; the source would say on which host it was."""
    labels = {key: text for key, text in finding.get("labels", {}).items() if key != "source"}
    return Column(str(finding.get("metric", "")), tuple(labels.items())).name


def _seconds(since_ns: int | None, at_ns: int | None) -> float | None:
    return None if since_ns is None or at_ns is None else (at_ns - since_ns) / SECOND_NS
