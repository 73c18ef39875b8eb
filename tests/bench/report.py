"""`make bench-report`: the report of a long run with every kind of trouble: what is seen, what it costs.

The run is written here: 36 hours of 500 series with five steps, a drift, spikes, a gap and 10,000 deletions.
The drift and the spikes are stored as the detector stores them during a run. The report finds the steps.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from soak.core.model import Finding
from soak.store.findings.store import FindingsStore
from soak.store.run_folder import RunFolder, read_run
from spark.report.page import in_microseconds
from tests.bench.pipeline import Cost, report_cost
from tests.support.browser import CHROMIUM, Browser, chromium
from tests.support.spark.long_run import RUN, LongShape, write_long_run

RESULT, PICTURE = Path("build/bench/report.json"), Path("build/bench/report.png")
DELETIONS, NEAR_SECONDS = 10_000, 60
MOST_BYTES, MOST_CHART_MS, MOST_MIB = 8_000_000, 2000.0, 1500.0
_SERIES = 'produce.0@load|publish_latency_seconds{quantile="0.99"}'
_NUMBERS = re.compile(r'<script type="application/json" id="numbers">(.*?)</script>', re.DOTALL)
_FLAGS = """[...document.querySelectorAll(".flag")]
    .filter((one) => !one.hidden && one.getBoundingClientRect().bottom < innerHeight).length"""
_DRAWN = "performance.getEntriesByName('first-chart').length > 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure, and whether it is as it should be."""

    figure: str
    value: float | str
    goal: str = ""
    holds: bool = True


def main() -> int:
    """Measure, print the table, and write the result; exit 1 where something does not hold."""
    parser = argparse.ArgumentParser(prog="make bench-report", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two hours instead of 36")
    parser.add_argument("--folder", type=Path, default=Path("build/bench/runs"), help="of the run")
    parser.add_argument("--only", choices=("write", "report", "look"), help="one step of it")
    arguments = parser.parse_args()
    hours = 2 if arguments.quick else 36
    path, shape = arguments.folder / f"report-{hours}h", shape_of(hours)
    if not path.exists():
        write_run(path, shape)
    found: list[Figure] = []
    if arguments.only in {None, "report"}:
        found += _cost_figures(report_cost(path), hours)
    if arguments.only in {None, "look"}:
        found += _page_figures(RunFolder(path), shape)
    _print(found)
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    return 0 if all(one.holds for one in found) else 1


def shape_of(hours: int) -> LongShape:
    """Return a run with every kind of trouble, one after the other."""
    seconds = 3600 * hours
    length = seconds // 30
    last_spike = seconds * 19 // 20
    return LongShape(
        seconds=seconds,
        series=500,
        deletions=DELETIONS,
        steps=tuple((seconds * at // 7, length, 3.0) for at in range(2, 7)),
        gap=range(seconds // 3, seconds // 3 + 90),
        drift=(seconds // 20, seconds // 8, 3.0),
        spikes=tuple(range(seconds * 9 // 10, last_spike, max(30, seconds // 1000))),
    )


def write_run(path: Path, shape: LongShape) -> None:
    """Write the run, with the drift and the spikes as the detector stored them while it went on."""
    folder = write_long_run(path, shape)
    assert shape.drift is not None
    first, seconds, _ = shape.drift
    stored = [
        _finding("drift", first, first + seconds, 0.008, 0.024),
        _finding("spikes", shape.spikes[0], shape.spikes[-1], 0.008, 0.16),
    ]
    folder.findings.unlink(missing_ok=True)
    with FindingsStore(folder.findings) as store:
        for one in stored:
            store.save_finding(one, (), read_run(folder).start_wall_ns)


def _finding(kind: Any, onset_k: int, resolved_k: int, before: float, after: float) -> Finding:
    return Finding(
        key=f"{RUN}-{onset_k}",
        run=RUN,
        raised_k=onset_k + 60,
        onset_k=onset_k,
        interval=(onset_k - 30, onset_k + 30),
        series=_SERIES,
        kind=kind,
        before=before,
        after=after,
        state="gone",
        confidence=0.999,
        is_about_cluster=True,
        resolved_k=resolved_k,
    )


# --- What is seen at once.


def troubles_seen(folder: RunFolder, shape: LongShape) -> Iterator[tuple[str, bool]]:
    """Give each trouble, and whether both `summary.json` and the first chart of the page have it."""
    body = json.loads(folder.summary.read_text())
    page = folder.report.read_text()
    numbers = json.loads(_NUMBERS.search(page)[1])  # type: ignore[index]  # a report has it
    start = read_run(folder).start_wall_ns / 1e9
    listed = [
        (one["kind"], _seconds(one["at"]) - start)
        for one in body["findings"]
        if one["is_about_cluster"]
    ]
    drawn = [one["span"][0] for one in numbers["incidents"]]

    def is_there(kinds: set[str], k: int) -> bool:
        in_list = any(kind in kinds and abs(at - k) <= NEAR_SECONDS for kind, at in listed)
        return in_list and any(abs(at - k) <= NEAR_SECONDS for at in drawn)

    assert shape.drift is not None
    yield (
        "verdict",
        body["verdict"] == "regressed" and in_microseconds(body["headline"]) in _text(page),
    )
    for number, (k, _, _) in enumerate(shape.steps, 1):
        yield f"step {number}", is_there({"step"}, k)
    yield "drift", is_there({"drift"}, shape.drift[0])
    yield "spikes", is_there({"spikes"}, shape.spikes[0])
    gap = [shape.gap.start, shape.gap.stop, "probe@broker0"]
    in_summary = any(one["source"] == "probe@broker0" for one in body["coverage"]["gaps"])
    yield "gap", in_summary and gap in [one[:3] for one in numbers["gaps"]]
    drawn_seconds = numbers["events"].get("deletions", {"count": 0})[
        "count"
    ]  # a second with several is one mark
    yield (
        f"{DELETIONS:,} deletions",
        drawn_seconds >= 0.99 * min(DELETIONS, shape.seconds // 2 - 60),
    )


def _seconds(iso: str) -> float:
    return datetime.strptime(iso, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()


def _text(page: str) -> str:
    plain = re.sub(r"<[^>]+>", "", page.partition("</header>")[2][:20_000])
    for sign, name in (("<", "&lt;"), (">", "&gt;"), ("&", "&amp;")):
        plain = plain.replace(name, sign)
    return plain


# --- Figures.


def _cost_figures(cost: Cost, hours: int) -> Iterator[Figure]:
    what = f"report of {hours} h x 500 series, cold"
    yield Figure(figure=f"{what}: seconds", value=round(cost.seconds, 1))
    yield Figure(figure=f"{what}: CPU seconds", value=round(cost.cpu_seconds, 1))
    yield _bounded(f"{what}: MiB of all processes (PSS), highest", round(cost.pss_mib), MOST_MIB)


def _page_figures(folder: RunFolder, shape: LongShape) -> Iterator[Figure]:
    for name, is_seen in troubles_seen(folder, shape):
        yield Figure(figure=f"at first look: {name}", value="", goal="seen", holds=is_seen)
    yield _bounded("bytes of the page", folder.report.stat().st_size, MOST_BYTES)
    if not CHROMIUM:
        yield Figure(figure="in Chromium", value="there is no Chromium: make packages")
        return
    with chromium() as browser:
        yield from _browser_figures(browser, folder)


def _browser_figures(browser: Browser, folder: RunFolder) -> Iterator[Figure]:
    times = []
    for _ in range(3):
        browser.open(folder.report)
        browser.until(_DRAWN)
        script = "performance.getEntriesByName('first-chart')[0].startTime"
        times.append(float(browser.run(script)))
    yield _bounded(
        "first chart in Chromium, ms (median of 3)", round(sorted(times)[1]), MOST_CHART_MS
    )
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    browser.picture(PICTURE)
    count = len(json.loads(folder.summary.read_text())["findings"])
    flags = int(browser.run(_FLAGS))
    goal = f"{count}, as there are incidents"
    yield Figure(figure="flags on the first screen", value=flags, goal=goal, holds=flags == count)
    elements = browser.run("document.getElementsByTagName('*').length")
    yield Figure(figure="elements of the page", value=int(elements))
    heap = float(browser.run("performance.memory.usedJSHeapSize")) / 2**20
    yield Figure(figure="MiB of the page's program", value=round(heap, 1))
    problems = len(browser.problems)
    yield Figure(figure="errors and requests", value=problems, goal="0", holds=problems == 0)


def _bounded(figure: str, value: float, most: float) -> Figure:
    return Figure(figure=figure, value=value, goal=f"<= {most:,.0f}", holds=value <= most)


def _print(found: list[Figure]) -> None:
    table = Table(title="report")
    for name in ("figure", "value", "goal", "holds"):
        table.add_column(name)
    for one in found:
        value = f"{one.value:,}" if isinstance(one.value, int | float) else one.value
        table.add_row(
            one.figure, value, one.goal, "" if not one.goal else "yes" if one.holds else "no"
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    raise SystemExit(main())
