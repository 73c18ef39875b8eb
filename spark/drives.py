"""The brokers' drives in a run: what they could do alone, and how much was written to them for whom."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from soak.core.cluster.drives import Measured, to_json, warnings
from soak.core.series import SeriesId, host_of, source_of
from soak.store import run_folder
from spark.timeline import Timeline

_TURNED = "disk_device_turnover_ratio"
_CAPACITY = "disk_capacity_bytes"


def drives(timeline: Timeline) -> dict[str, object]:
    """Return what `summary.json` says of drives.

    `written` is by drive that a probe saw, over the whole run, whoever wrote. `client_bytes` are the
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
    """Return by how much a counter grew; where it fell it began anew."""
    steps = np.diff(counter)
    return float(steps[steps > 0].sum())


def _client_bytes(timeline: Timeline) -> float | None:
    acked = timeline.audit.get("acked")
    return None if not acked else acked * timeline.plan.load.mean_size
