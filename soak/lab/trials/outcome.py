"""What became of each trouble of a trial: its true size, whether it was reported, when, and under which name.

Method:  the true size is p99 of all messages of the window over that of the last two minutes before it that
         belong to no other trouble or its recovery, from the counts above thresholds that the load's own
         daemons recorded: of acknowledgements or of deliveries, whichever grew more. A trouble is reported by
         the first incident that begins in its window, give or take some seconds. An incident about the
         cluster that begins in a quiet stretch is a false one.
Assumes: one trouble at a time, and journals without gaps around it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from soak.core.clock import SystemClock
from soak.core.model import THRESHOLDS_SECONDS, Finding
from soak.core.units import SECOND_NS
from soak.lab.drills.verdict import read_notifications
from soak.lab.trials.schedule import RECOVERY_SECONDS, quiet_stretches
from soak.lab.trials.side_task import Injected
from soak.store.findings.topic import findings_place
from soak.store.journal.history import History, Window
from soak.store.run_folder import RunFolder, read_phases, read_plan, read_run

BEFORE_SECONDS = 120
_LOOK_BACK_SECONDS = 1200
"""In which there are so many seconds between troubles: every third one is followed by a quiet stretch."""
EARLY_SECONDS, LATE_SECONDS = 10, 20
"""An incident belongs to a trouble when it begins so long before its begin, or after its end, at most."""
CLEAR_RATIO, MODERATE_RATIO = 2.0, 1.5
LASTING_SECONDS = 30
"""A trouble has a size when p99 is so many times as high for so long; a shorter one may be a few seconds."""
UNKNOWN = "unknown"
_FAMILIES = ("publish_latency", "end_to_end_latency")
_SHARE = 0.01  # above p99


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One trouble; seconds count from its begin. `cause` is "" where it was not reported."""

    kind: str
    strength: float
    begin_k: int
    length_seconds: int
    ratio: float  # p99 of the window over before; infinite where nothing came through
    doubled_seconds: int  # in which p99 was at least twice that before
    slower_seconds: int = 0  # and at least 1.5 times
    causes: tuple[str, ...]  # that are right
    cause: str = ""
    onset_seconds: float | None = None
    raised_seconds: float | None = None
    notified_seconds: float | None = None
    incidents: int = 0

    @property
    def is_reported(self) -> bool:
        return self.incidents > 0

    @property
    def is_right(self) -> bool:
        return self.cause in self.causes

    @property
    def is_wrong(self) -> bool:
        return self.is_reported and not self.is_right and self.cause != UNKNOWN

    @property
    def size(self) -> str:
        """Return how clear it was: `clear` (p99 doubled), `moderate` (1.5 times), `short` or `faint`."""
        if self.ratio < MODERATE_RATIO:
            return "faint"
        if self.ratio >= CLEAR_RATIO and self.doubled_seconds >= LASTING_SECONDS:
            return "clear"
        return "moderate" if self.slower_seconds >= LASTING_SECONDS else "short"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """All troubles of one run, its quiet stretches, and the incidents that began in them."""

    run: str
    outcomes: tuple[Outcome, ...]
    quiet_stretches: int
    false_incidents: int
    failures: tuple[str, ...] = ()  # troubles that were not injected, or not undone

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(folder: RunFolder, injected: Sequence[Injected]) -> Trial:
    """Return what became of the troubles of a finished run.

    Raises:
        SoakError: the run folder cannot be read.
    """
    run = read_run(folder)
    place = findings_place(folder, read_plan(folder), run.id, SystemClock())
    try:
        with place.open() as store:
            findings = [one for one in store.findings(run.id) if one.state != "warning"]
    finally:
        place.close()
    sent = read_notifications(folder)[0].sent_wall_ns
    history = History(folder.journal)
    first, last = _judged_seconds(folder)
    times = [
        (
            one,
            (onset_ns - run.start_wall_ns) / SECOND_NS,
            (lifted_ns - run.start_wall_ns) / SECOND_NS,
        )
        for one in injected
        if (onset_ns := one.onset_wall_ns) is not None
        and (lifted_ns := one.lifted_wall_ns) is not None
    ]
    windows = [(begin, end) for _, begin, end in times]
    outcomes = []
    for one, begin, end in times:
        around = history.window(
            max(int(first), int(begin) - _LOOK_BACK_SECONDS),
            int(end) + RECOVERY_SECONDS,
            with_counts=True,
        )
        size = effect(around, int(begin), math.ceil(end), windows)
        outcomes.append(_outcome(one, begin, end, size, findings, sent, run.start_wall_ns))
    quiet = quiet_stretches(windows, first, last)
    false = sum(
        one.is_about_cluster
        and any(low <= one.onset_k < high for low, high in quiet)
        and not any(_is_within(one, *window) for window in windows)
        for one in findings
    )
    failures = tuple(f"{one.trouble.kind}: {one.failure}" for one in injected if one.failure)
    return Trial(
        run=run.id,
        outcomes=tuple(outcomes),
        quiet_stretches=len(quiet),
        false_incidents=false,
        failures=failures,
    )


def _judged_seconds(folder: RunFolder) -> tuple[float, float]:
    """Return the first and last second of the soak."""
    phases = read_phases(folder.phases)
    soak = phases.first_k("soak") or 0
    return float(soak), float(phases.first_k("drain") or soak)


def _outcome(
    one: Injected,
    begin: float,
    end: float,
    size: Effect,
    findings: Sequence[Finding],
    sent: Mapping[str, int],
    start_wall_ns: int,
) -> Outcome:
    own = [found for found in findings if _is_within(found, begin, end)]
    first = min(own, key=lambda found: found.raised_k, default=None)
    known = Outcome(
        kind=one.trouble.kind,
        strength=one.trouble.strength,
        begin_k=int(begin),
        length_seconds=round(end - begin),
        ratio=size.ratio,
        doubled_seconds=size.doubled_seconds,
        slower_seconds=size.slower_seconds,
        causes=one.trouble.causes,
        incidents=len(own),
    )
    if first is None:
        return known
    sent_ns = sent.get(first.key)
    body = asdict(known) | {
        "cause": first.cause,
        "onset_seconds": first.onset_k - begin,
        "raised_seconds": first.raised_k - begin,
        "notified_seconds": None
        if sent_ns is None
        else (sent_ns - start_wall_ns) / SECOND_NS - begin,
    }
    return Outcome(**body)


def _is_within(finding: Finding, begin: float, end: float) -> bool:
    """True when an incident began in a trouble's window, give or take some seconds."""
    return begin - EARLY_SECONDS <= finding.onset_k <= end + LATE_SECONDS


class Effect(NamedTuple):
    """Of a trouble on p99: see `Outcome`."""

    ratio: float
    doubled_seconds: int
    slower_seconds: int


def effect(
    around: Window, begin_k: int, end_k: int, troubles: Sequence[tuple[float, float]]
) -> Effect:
    """Return what a trouble between two seconds did to p99.

    `around` has seconds before and the recovery after; seconds are counted up to its end. What counts as
    before are the last two minutes outside all `troubles` (begins and ends) and their recoveries.
    """
    found = [_effect(around, family, begin_k, end_k, troubles) for family in _FAMILIES]
    return max((one for one in found if one is not None), default=Effect(math.nan, 0, 0))


def _effect(
    around: Window,
    family: str,
    begin_k: int,
    end_k: int,
    troubles: Sequence[tuple[float, float]],
) -> Effect | None:
    """Return the effect on one family of latencies; None where nothing was measured before."""
    k, above = _counts(around, family)
    if not k.size:
        return None
    is_usual = k < begin_k
    for begin, end in troubles:
        is_usual &= (k < math.floor(begin)) | (k > end + RECOVERY_SECONDS)
    before = _p99(above[is_usual][-BEFORE_SECONDS:].sum(axis=0))
    if not math.isfinite(before):
        return None
    during = _p99(above[(k >= begin_k) & (k < end_k)].sum(axis=0))
    each = np.array([_p99(row) for row in above[k >= begin_k]])
    doubled, slower = (  # a second in which nothing came through is slow too
        int((~(each < ratio * before)).sum()) for ratio in (CLEAR_RATIO, MODERATE_RATIO)
    )
    return Effect(during / before if math.isfinite(during) else math.inf, doubled, slower)


def _counts(around: Window, family: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return seconds, and messages above each threshold in them, of all sources together."""
    total: dict[int, NDArray[np.float64]] = {}
    metric = f"{family}_above_messages"
    for seconds in around.sources.values():
        places = [
            (i, f"{float(dict(column.labels)['threshold']):g}")
            for i, column in enumerate(seconds.columns)
            if column.metric == metric and [name for name, _ in column.labels] == ["threshold"]
        ]
        if not places:
            continue
        order = {f"{one:g}": at for at, one in enumerate(THRESHOLDS_SECONDS)}
        for row, k in zip(seconds.values, seconds.k.tolist(), strict=True):
            counts = total.setdefault(k, np.zeros(len(THRESHOLDS_SECONDS)))
            for i, threshold in places:
                counts[order[threshold]] += np.nan_to_num(row[i])
    k = np.array(sorted(total), np.int64)
    return k, np.array([total[one] for one in k.tolist()])


def _p99(above: NDArray[np.float64]) -> float:
    """Return the latency that one message in a hundred exceeds, on a log scale; NaN without messages."""
    if not above.size or above[0] <= 0.0:
        return math.nan
    share = above / above[0]
    at = int(np.searchsorted(-share, -_SHARE))  # the first threshold with a smaller share
    if at >= share.size:
        return THRESHOLDS_SECONDS[-1]
    high, low = math.log(max(share[at - 1], 1e-9)), math.log(max(share[at], 1e-9))
    part = (high - math.log(_SHARE)) / (high - low) if high > low else 0.0
    left, right = (math.log(THRESHOLDS_SECONDS[i]) for i in (at - 1, at))
    return math.exp(left + part * (right - left))
