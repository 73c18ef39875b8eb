"""What a whole run came to: distributions of latency, deletions as forecast, drives, objectives."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.objectives import Objectives, Standing, settings_of
from soak.core import wording
from soak.core.cluster.drives import Measured, to_json, warnings
from soak.core.cluster.forecast import compare_with_event
from soak.core.model import THRESHOLDS_SECONDS, Change
from soak.core.series import SeriesId, host_of, source_of
from soak.service.files import read_json
from soak.store import run_folder
from soak.store.run_folder import RunFolder, reporting_damage
from spark.batch.timeline import Timeline, summed

Floats = NDArray[np.float64]

_DELETION = "retention_deletion"
_WATCHED = "retention_deletions"
_HELD = "retention_held_bytes"
_FREED = ("segment_unlinked", "space_reclaimed")


def forecast_of(folder: RunFolder) -> Mapping[str, Any]:
    """Return what was forecast when the load began; empty where it was not made.

    Raises:
        RunFolderError: the file is damaged.
    """
    if not folder.forecast.exists():
        return {}
    with reporting_damage(folder.forecast):
        return dict(read_json(folder.forecast))


def retention(timeline: Timeline, forecast: Mapping[str, Any]) -> dict[str, object]:
    """Return what `summary.json` says of retention: what was forecast, what happened, and the difference."""
    begin, end = timeline.soak
    seconds = timeline.event_seconds.get(_DELETION)
    happened = compare_with_event(
        forecast,
        {
            "first_deletion": first_of(timeline, _DELETION),
            "first_free": min(
                (at for kind in _FREED if (at := first_of(timeline, kind)) is not None),
                default=None,
            ),
        },
        _watched_until(timeline),
    )
    within = 0 if seconds is None else int(((seconds >= begin) & (seconds < end)).sum())
    return {
        "forecast": dict(forecast),
        "happened": {
            **happened,
            "soak_seconds_with_deletions": within,
            "most_held_bytes": _most_held(timeline),
        },
    }


def _most_held(timeline: Timeline) -> float | None:
    """Return the most bytes that all topics together held at one time; None where no probe looked."""
    held = [
        timeline.series[name]
        for name, column in timeline.columns.items()
        if column.metric == _HELD and timeline.series[name][0].size
    ]
    if not held:
        return None
    return float(summed(held)[1].max())


def _watched_until(timeline: Timeline) -> float | None:
    """Return until when there was load and a probe looked for deletions; None: none did."""
    looks = [
        int(seconds[-1]) + 1.0
        for name, (seconds, _) in timeline.series.items()
        if timeline.columns[name].metric == _WATCHED and seconds.size
    ]
    load_end = timeline.phases.first_k("drain")
    ends = [max(looks), *([] if load_end is None else [load_end])] if looks else []
    return min(ends, default=None)


def first_of(timeline: Timeline, kind: str) -> float | None:
    """Return the second since the load's start in which the first event of a kind was seen, or None."""
    found = timeline.event_seconds.get(kind)
    return None if found is None or not found.size else float(found[0])


_TURNED = "disk_device_turnover_ratio"
_CAPACITY = "disk_capacity_bytes"


def drives(timeline: Timeline) -> dict[str, object]:
    """Return what `summary.json` says of drives.

    `written` is by drive that a probe saw, over the whole run, by all writers. `client_bytes` are the
    payload of what was acknowledged. `write_amplification` is null where either is not known.
    """
    checks = run_folder.read_drive_checks(timeline.folder)
    written = _written(timeline)
    client = _client_bytes(timeline)
    total = sum(one["bytes"] for one in written.values())
    is_known = bool(client) and bool(total)
    return {
        "checks": [to_json(one) for one in checks],
        "warnings": warnings(checks),
        "written": written,
        "client_bytes": client,
        "write_amplification": round(total / client, 3) if client and is_known else None,
    }


def checks_of(timeline: Timeline) -> list[Measured]:
    return run_folder.read_drive_checks(timeline.folder)


def _written(timeline: Timeline) -> Mapping[str, Mapping[str, float]]:
    """Return by drive the turns and bytes of the run; a gap of the probe's loses nothing."""
    found = {}
    for name, column in timeline.columns.items():
        if column.metric != _TURNED:
            continue
        source = source_of(name)
        device = dict(column.labels)["device"]
        _, turned = timeline.series[name]
        capacity = timeline.series.get(str(SeriesId(source, _CAPACITY, (("device", device),))))
        if turned.size < 2 or capacity is None or not capacity[1].size:  # noqa: PLR2004  # a difference
            continue
        turns = _grown(turned)
        host = host_of(source)
        found[f"{host}:{device}"] = {"turns": turns, "bytes": turns * float(capacity[1][-1])}
    return found


def _grown(counter: NDArray[np.float64]) -> float:
    """Return by how much a counter grew; where it fell it was reset."""
    steps = np.diff(counter)
    return float(steps[steps > 0].sum())


def _client_bytes(timeline: Timeline) -> float | None:
    acked = timeline.audit.get("acked")
    return None if not acked else acked * timeline.plan.load.mean_size


@dataclass(frozen=True, slots=True)
class Judgement:
    """How the objectives of a run stand, in the order of the plan, and the breaches among them."""

    standings: Sequence[Standing] = ()
    breaches: Sequence[Change] = ()


def judge(timeline: Timeline) -> Judgement:
    """Return how the objectives stand; a soak that is over has the length that it had."""
    soak_seconds = None if timeline.is_running else int(timeline.soak_seconds.size)
    objectives = Objectives(settings_of(timeline.plan, soak_seconds))
    for minutes in timeline.minutes:
        objectives.merge(minutes)
    breaches = list({one.series: one for one in objectives.conclude()}.values())
    return Judgement(objectives.standings(), breaches)


def objective_json(timeline: Timeline, one: Standing) -> dict[str, object]:
    """Return an objective as `summary.json` has it."""
    objective, quantile = one.objective, one.objective.quantile
    return {
        "objective": str(objective),
        "latency": objective.latency,
        "quantile": None if quantile is None else float(quantile),
        "limit_seconds": objective.limit_seconds,
        "target_ratio": float(objective.target),
        "unit": objective.unit,
        "bad": one.bad,
        "judged": one.judged,
        "whole": one.whole,
        "budget": round(one.budget, 6),
        "budget_left": round(one.left, 6),
        "state": state_of(one),
        "missed_at": None if one.missed_k is None else wording.iso(timeline.wall_ns(one.missed_k)),
    }


def state_of(one: Standing) -> str:
    """Return "missed", "kept", or "not judged" when nothing counted."""
    if one.missed_k is not None:
        return "missed"
    return "kept" if one.judged else "not judged"


# --- Distributions of latency.

CURVE = np.linspace(0.0, 4.0, 33)
"""Minus the logarithm of the share of slower messages, at which distributions are drawn: p0 to p99.99."""
_LEAST_COUNTED = 20


def counts_above(timeline: Timeline, metric: str) -> tuple[list[float], Floats] | None:
    """Return thresholds, and how many messages of all clients were slower: (thresholds, steps of the run)."""
    by_threshold = defaultdict(list)
    for name, column in timeline.columns.items():
        if column.metric == metric and timeline.series[name][0].size:
            by_threshold[float(dict(column.labels)["threshold"])].append(timeline.series[name])
    if len(by_threshold) < 2:  # noqa: PLR2004  # a band has two ends
        return None
    thresholds = sorted(by_threshold)
    above = np.zeros((len(thresholds), -(-max(timeline.end_k, 1) // timeline.step)))
    for row, threshold in enumerate(thresholds):
        for k, counts in by_threshold[threshold]:
            at = k // timeline.step
            keep = (at >= 0) & (at < above.shape[1])
            np.add.at(above[row], at[keep], counts[keep])
    return thresholds, above


def shares(timeline: Timeline, metric: str, bucket: int) -> tuple[list[float], Floats] | None:
    """Return thresholds, and the share of messages between two of them: (bands, buckets of `bucket` seconds).

    Messages of all clients count together; above the highest threshold they belong to the topmost band. The
    bucket is a multiple of the timeline's step. Bands are those of `THRESHOLDS_SECONDS`.
    """
    counted = counts_above(timeline, metric)
    if counted is None:
        return None
    thresholds, fine = counted
    is_kept = np.isin(thresholds, THRESHOLDS_SECONDS)  # the limits of objectives are no bands
    thresholds, fine = np.array(thresholds)[is_kept].tolist(), fine[is_kept]
    if len(thresholds) < 2:  # noqa: PLR2004  # a band has two ends
        return None
    starts = np.arange(0, fine.shape[1], max(1, bucket // timeline.step))
    above = np.add.reduceat(fine, starts, axis=1)
    between = above[:-1] - above[1:]
    between[-1] += above[-1]  # no bound lies between these
    used = np.flatnonzero(between.sum(axis=1))
    if used.size == 0:
        return None
    first, last = int(used[0]), int(used[-1])
    return thresholds[first : last + 2], between[first : last + 1] / np.maximum(above[0], 1.0)


def shares_shown(timeline: Timeline, bucket: int) -> tuple[str, list[float], Floats] | None:
    """Return the latency of the heat map, and its `shares`: `publish` where nothing was received."""
    for latency in ("end_to_end", "publish"):
        found = shares(timeline, f"{latency}_latency_above_messages", bucket)
        if found is not None:
            return latency, *found
    return None


def curve(thresholds: Sequence[float], above: Floats) -> list[float | None]:
    """Return latencies at `CURVE`; None where too few messages, or none, were slower."""
    total = float(above[0])
    if total < _LEAST_COUNTED:
        return []
    known = above > 0
    x = -np.log10(above[known] / total)
    log = np.log(np.array(thresholds)[known])
    end = min(float(x[-1]), math.log10(total))
    found = np.exp(np.interp(CURVE, x, log))
    return [
        float(f"{value:.4g}") if at <= end else None for at, value in zip(CURVE, found, strict=True)
    ]
