"""The pages of `soak serve`: the list of runs, a run as it is now, and messages.

Jinja2 escapes everything; before that, texts from outside pass `shown`, which leaves one short harmless line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader

from soak.app.live.follow import Latency
from soak.app.live.snapshot import Snapshot, clock_text
from soak.app.live.terminal import (
    BANDS,
    MAX_NAME,
    columns_of,
    count_text,
    incident_lines,
    latency_rows,
    latency_text,
    report_text,
    shown,
    time_text,
)
from soak.core import wording

ASSETS = Path(__file__).parent / "assets"
POLL_SECONDS = 2
REPORT_POLL_SECONDS = 10
"""A report is renewed while it is asked for at least once a minute."""
MAX_INCIDENTS = 50
_MAX_SUBSCRIPTIONS = 20
_HEAT_COLUMNS, _HEAT_LEFT, _HEAT_WIDTH, _ROW = 160, 80, 1040, 18
_SHADES = ((0.5, "h4"), (0.1, "h3"), (0.01, "h2"), (0.0, "h1"))
_LEAST_RATIO = 10.0  # of a sparkline from its foot to its top: noise of a few percent stays flat


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run in the list; `key` is the name of its folder, None where it is not shown."""

    name: str
    plan: str = "-"
    start: str = "-"
    state: str = "-"
    verdict: str = "-"
    p99: str = "-"
    incidents: str = "-"
    key: bytes | None = None


def run_url(key: bytes) -> str:
    """Return the address of a run; the name of a folder may hold any byte."""
    return f"/run/{quote(key, safe='')}/"


class Pages:
    """Renders the templates."""

    def __init__(self) -> None:
        self._templates = Environment(
            loader=FileSystemLoader(ASSETS), autoescape=True, trim_blocks=True, lstrip_blocks=True
        )

    def runs(
        self, folder: str, runs: Sequence[ListedRun], baseline: ListedRun | None, left_out: int
    ) -> str:
        """Return the list of runs; with a baseline, each other one has a link to the comparison."""
        rows = []
        for one in runs:
            row = {
                name: shown(value, MAX_NAME) for name, value in asdict(one).items() if name != "key"
            }
            row["url"] = "" if one.key is None else run_url(one.key)
            row["compare"], row["compare_text"] = _compare_link(one, baseline)
            rows.append(row)
        return self._render(
            "list.html",
            title="soakd: runs",
            folder=shown(folder),
            runs=rows,
            baseline=None if baseline is None else {"name": shown(baseline.name, MAX_NAME)},
            left_out=f"{left_out} older runs are not listed." if left_out else "",
        )

    def run(self, found: Snapshot, now_ns: int, renewal: str, *, has_home: bool) -> str:
        """Return the page of a run."""
        return self._render("run.html", home=has_home, **_context(found, now_ns, renewal))

    def now(self, found: Snapshot, now_ns: int, renewal: str) -> str:
        """Return the main part of the page of a run, which replaces the one that is shown."""
        return self._render("now.html", **_context(found, now_ns, renewal))

    def report(self, news: Mapping[str, object]) -> str:
        """Return the page around the report of a run that goes on; `news` as `report.json` has them."""
        return self._render(
            "report.html",
            title=f"{shown(str(news['name']), MAX_NAME)}: report",
            version=news["version"],
            text=shown(str(news["text"])),
            poll=news["again_seconds"],
        )

    def message(self, title: str, lines: Sequence[str], again_seconds: int = 0) -> str:
        """Return a page with some lines; it is asked for again after so many seconds."""
        return self._render(
            "message.html", title=title, lines=list(map(shown, lines)), again=again_seconds
        )

    def _render(self, template: str, **context: Any) -> str:  # noqa: ANN401  # as jinja2 takes it
        return self._templates.get_template(template).render(context)


def _compare_link(one: ListedRun, baseline: ListedRun | None) -> tuple[str, str]:
    if one.key is None or one.verdict in {"-", "no report"} or one == baseline:
        return "", ""
    if baseline is None or baseline.key is None:
        return f"/?{urlencode({'with': one.key})}", "compare"
    pair = urlencode({"a": baseline.key, "b": one.key})
    return f"/compare?{pair}", f"compare with {shown(baseline.name, 30)}"


def _context(found: Snapshot, now_ns: int, renewal: str) -> dict[str, Any]:
    state = "stopped" if found.state == "silent" else found.state
    report = found.report
    made = "" if report is None else f"made {age_text(now_ns - report.made_wall_ns)} ago"
    verdict = "" if report is None or not found.is_over else report.verdict
    return {
        "title": f"{shown(found.name, MAX_NAME)}: {shown(verdict or state, MAX_NAME)}",
        "name": shown(found.name, MAX_NAME),
        "state": shown(verdict or state, MAX_NAME),
        "badge": verdict if verdict in {"clean", "regressed", "inconclusive"} else _badge(state),
        "facts": f"run {shown(found.run_id, MAX_NAME)}, began {_began(found)}",
        "where": time_text(found),
        "percent": round(100.0 * found.k / max(1, found.total_seconds), 1),
        "phases": [
            {
                "text": f"{shown(one.name, MAX_NAME)} {clock_text(one.to_k - one.from_k)}",
                "is_now": one.from_k <= found.k < one.to_k and not found.is_over,
            }
            for one in found.phases[:100]
        ],
        "troubles": list(map(shown, found.troubles)),
        "headline": report_text(found) if found.is_over else "",
        "retention": found.retention,
        "invalid": "" if found.is_over else shown(found.invalid, MAX_NAME),
        "detection": found.detection,
        "tiles": _tiles(found),
        "history": f"p99 of the last {clock_text(len(found.publish_history))}",
        "latencies": _latencies(found),
        "heat": _heat(found),
        "incidents": [
            {"text": text, "is_bad": is_bad}
            for text, is_bad in incident_lines(found, MAX_INCIDENTS)
        ],
        "report": made,
        "renewal": shown(renewal),
        "read": "" if found.read_ratio >= 1 else f"{100 * found.read_ratio:.0f}%",
        "poll": 0
        if found.is_over and found.read_ratio >= 1 and not found.awaits_report(now_ns)
        else POLL_SECONDS,
    }


def _badge(state: str) -> str:
    return state if state in {"failed", "stopped"} else "running"


def _began(found: Snapshot) -> str:
    """Return the start of a run; a damaged run.json may have any."""
    if not found.has_begun:
        return "never" if found.is_over else "not yet"
    try:
        return wording.iso(found.start_wall_ns)
    except (OverflowError, ValueError, OSError):
        return "at an unknown time"


def age_text(age_ns: int) -> str:
    """Return how old a report is; one of the future, by a clock that was set, has no age."""
    return wording.span(max(0, age_ns) / 1e9)


def _tiles(found: Snapshot) -> list[dict[str, object]]:
    several = found.subscriptions[:_MAX_SUBSCRIPTIONS]
    if found.has_stopped:
        totals = found.totals
        counts = [
            ("sent", totals.sent),
            ("acknowledged", totals.acknowledged),
            ("failed", totals.failed),
        ]
        counts += [(f"received{_by(found, one.index)}", one.total) for one in several]
        return [
            {"name": name, "value": count_text(value), "is_bad": name == "failed" and value > 0}
            for name, value in counts
        ]
    has_trouble = bool(found.troubles)
    tiles: list[dict[str, object]] = [
        {"name": "sent", "value": f"{count_text(found.sent)}/s", "is_bad": False},
        {
            "name": "acknowledged",
            "value": f"{count_text(found.acknowledged)}/s",
            "is_bad": has_trouble,
        },
        {"name": "failed", "value": f"{count_text(found.failed)}/s", "is_bad": found.failed > 0},
    ]
    for one in several:
        by = _by(found, one.index)
        received, lag = f"{count_text(one.received)}/s", count_text(one.lag)
        tiles += [
            {"name": f"received{by}", "value": received, "is_bad": False},
            {"name": f"lag{by.replace(' by ', ' of ')}", "value": lag, "is_bad": False},
        ]
    return tiles


def _by(found: Snapshot, index: int) -> str:
    return f" by subscription {index}" if len(found.subscriptions) > 1 else ""


def _latencies(found: Snapshot) -> list[dict[str, object]]:
    rows = latency_rows(found, "end to end, subscription {}", _MAX_SUBSCRIPTIONS)
    return [_latency_row(*row) for row in rows]


def _latency_row(name: str, latency: Latency, history: Sequence[float]) -> dict[str, object]:
    return {
        "name": name,
        "p50": latency_text(latency.p50),
        "p99": latency_text(latency.p99),
        "p999": latency_text(latency.p999),
        "line": _polylines(history),
    }


def _polylines(values: Sequence[float]) -> list[str]:
    """Return the points of a sparkline, 240 by 28, on a log scale; a gap begins another line."""
    known = [value for value in values if value > 0]
    if not known:
        return []
    low = math.log(min(known))
    span = max(math.log(max(known)) - low, math.log(_LEAST_RATIO))
    lines: list[list[str]] = [[]]
    for at, value in enumerate(values):
        if value > 0:
            x = 240.0 * at / max(1, len(values) - 1)
            lines[-1].append(f"{x:.1f},{26.0 - 24.0 * (math.log(value) - low) / span:.1f}")
        elif lines[-1]:
            lines.append([])
    return [" ".join(points) for points in lines if len(points) > 1]


def _heat(found: Snapshot) -> dict[str, Any] | None:
    if not any(sum(one.bands) for one in found.bins):
        return None
    columns, each = columns_of(found.bins, _HEAT_COLUMNS)
    used = [at for at in range(len(BANDS)) if any(one.bands[at] for one in columns)]
    bands = list(range(max(used), min(used) - 1, -1))
    has_outage = any(one.silent_seconds for one in columns)
    first = 1 if has_outage else 0
    width = (_HEAT_WIDTH - _HEAT_LEFT) / len(columns)
    kinds = {
        first + row: [_shade(one.bands, band) for one in columns] for row, band in enumerate(bands)
    }
    if has_outage:
        kinds[0] = ["out" if one.silent_seconds else "" for one in columns]
    cells = [
        {
            "kind": kind,
            "x": round(_HEAT_LEFT + begin * width, 2),
            "y": row * _ROW,
            "width": round((end - begin) * width, 2),
        }
        for row, row_kinds in kinds.items()
        for kind, begin, end in _stretches(row_kinds)
    ]
    seconds = each * found.bin_seconds
    names = (["no answer"] if has_outage else []) + [BANDS[at] for at in bands]
    whole = len(columns) * seconds
    starts = {min(max(0, one.onset_k), whole) for one in found.findings}
    return {
        "width": _HEAT_WIDTH,
        "height": (first + len(bands)) * _ROW + 32,
        "left": _HEAT_LEFT,
        "rows": [{"name": name, "y": at * _ROW} for at, name in enumerate(names)],
        "cells": cells,
        "marks": sorted(
            {round(_HEAT_LEFT + k / whole * (_HEAT_WIDTH - _HEAT_LEFT), 1) for k in starts}
        )[:500],
        "has_outage": has_outage,
        "each": f"A column is {wording.span(seconds)}.",
        "end": clock_text(min(whole, max(found.k, 1))),
    }


def _shade(bands: Sequence[float], at: int) -> str:
    total = sum(bands)
    share = bands[at] / total if total else 0.0
    return next((kind for least, kind in _SHADES if share > least), "")


def _stretches(kinds: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return (kind, first column, the one after) of each stretch of equal cells, without empty ones."""
    found: list[tuple[str, int, int]] = []
    for at, kind in enumerate(kinds):
        if found and found[-1][0] == kind and found[-1][2] == at:
            found[-1] = (kind, found[-1][1], at + 1)
        elif kind:
            found.append((kind, at, at + 1))
    return found
