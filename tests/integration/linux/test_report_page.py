"""The report in a real Chromium: fast, small, silent towards networks, for keyboards, phones and the dark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from soak.app.comparison import compare_runs, write_page
from soak.core.model import Column
from soak.core.plan.phases import decision_line, parse_phases
from soak.core.series import series_name
from spark.batch.comparison.comparison import Settings
from spark.batch.coverage import coverage
from spark.batch.digest import Extremes
from spark.batch.offline_analysis import Judged
from spark.batch.timeline import Timeline, assemble
from spark.report import job as report
from spark.report.page import Page
from tests.support.browser import CHROMIUM, Browser, chromium
from tests.support.compared import ComparedShape, write_compared_run
from tests.support.spark.report_run import finding_of, read
from tests.support.spark.synthetic_run import Shape, write_synthetic_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium: make packages"),
]

HOURS_36, STEP, PROBE_SERIES = 129_600, 10, 490
ONSETS = (20_000, 40_000, 60_000, 80_000, 100_000)
EVIL = (
    "<script>alert(1)</script>",
    "orders\u202egnp.exe\u200f",
    "n" * 10_240,
    "</script><!--<script>",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a drill of four minutes with one incident."""
    folder = write_synthetic_run(
        tmp_path_factory.mktemp("page") / "run", Shape(lifted_k=175, is_drill=True)
    )
    found = finding_of(state="gone", resolved_k=190)
    report.write(assemble(folder, read), [found], report.drill_of)
    return folder.report


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of 36 hours and 500 series with five incidents."""
    return wide_page(tmp_path_factory.mktemp("wide"))


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a comparison of two runs, of which the second is slower and less durable."""
    folder = tmp_path_factory.mktemp("compared")
    before = ComparedShape(objectives=(), incidents=("drive_gc",))
    after = ComparedShape(factor=1.5, seed=2, day=1, level=1, incidents=("gc_pause",))
    paths = [
        write_compared_run(folder / name, shape)
        for name, shape in (("before", before), ("after", after))
    ]
    write_page(folder / "page.html", compare_runs(paths, Settings(), is_cached=False))
    return folder / "page.html"


def shown(browser: Browser, path: Path, **options: Any) -> None:
    """Open a page and wait until its first chart is drawn."""
    browser.open(path, **options)
    browser.until("performance.getEntriesByName('first-chart').length > 0")
    browser.until("document.querySelectorAll('.cells canvas').length > 0")


def text(browser: Browser, selector: str) -> str:
    return str(browser.run(f"document.querySelector({json.dumps(selector)}).textContent"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_is_drawn_without_an_error_or_a_request(
    browser: Browser, page: Path, scheme: str
) -> None:
    shown(browser, page, scheme=scheme)

    assert browser.problems == []
    assert browser.run("document.querySelectorAll('#main canvas').length") == 1
    assert "Sent400/s" in text(browser, ".numbers")


def drawn_titles(browser: Browser) -> list[str]:
    return list(
        browser.run(
            "[...document.querySelectorAll('.chart figcaption b')].map((one) => one.firstChild?.data)"
        )
    )


def test_a_run_in_which_nothing_was_received_has_all_its_charts(
    browser: Browser, tmp_path: Path
) -> None:
    folder = write_synthetic_run(tmp_path / "run", Shape(fault_k=None, is_read=False))
    report.write(assemble(folder, read), [], None)

    browser.open(folder.report)
    browser.until("document.querySelectorAll('#hosts-grid .chart').length > 0")

    titles = drawn_titles(browser)
    assert {"Messages by publish latency", "Failed and skipped sends", "fsync latency"} <= set(
        titles
    )
    assert browser.problems == []


def test_a_part_of_the_page_that_is_missing_stops_no_other_chart(
    browser: Browser, page: Path, tmp_path: Path
) -> None:
    without = tmp_path / "without.html"
    without.write_text(page.read_text().replace('<div class="wide js-only"', "<div"))

    shown(browser, without)
    browser.until("document.querySelectorAll('#hosts-grid .chart').length > 0")

    assert "Messages by end to end latency" not in drawn_titles(browser)
    assert browser.problems == []


def test_an_incident_is_opened_by_keyboard_and_all_charts_follow(
    browser: Browser, page: Path
) -> None:
    shown(browser, page)
    browser.run("document.querySelector('.list [data-pick]').focus()")
    browser.key("Enter")

    browser.until("document.querySelector('#range').textContent !== 'Whole run'")
    follow = """[...document.querySelectorAll('.chart')].filter((one) => one.chart?.plot && one.chart.isNear)
        .every(({ chart }) => Math.abs(chart.plot.scales.x.min - chart.range()[0]) < 1e-6)"""
    browser.until(follow)
    browser.key("Escape")
    browser.until("document.querySelector('#range').textContent === 'Whole run'")
    assert browser.problems == []


SHOWN_RANKS = """[...document.querySelectorAll('.finding')]
    .filter((one) => !one.hidden).map((one) => Number(one.id.split('-')[1]))"""


CLICK = "document.querySelector('.list [data-pick=\"2\"]').click()"
CLICK_WHILE_DRAWING = f"""new MutationObserver((found, observer) => {{ observer.disconnect(); {CLICK} }})
    .observe(document.querySelector("#main"), {{ childList: true }})"""


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("early", [CLICK, CLICK_WHILE_DRAWING], ids=["before", "while drawing"])
def test_a_click_before_the_page_is_ready_is_kept(
    browser: Browser, wide: Path, width: int, early: str
) -> None:
    """The second incident is chosen before the first chart is there; text and charts show it."""
    shown(browser, wide, width=width, early=early)
    browser.until("performance.getEntriesByName('ready-for-paper').length > 0")
    browser.until("document.querySelector('#main .chart').chart.data[0].length > 2160")

    assert browser.run(SHOWN_RANKS) == [2]
    begin = browser.run("document.querySelector('#main .chart').chart.plot.scales.x.min")
    assert ONSETS[1] - 600 < begin < ONSETS[1]
    assert browser.run("document.querySelectorAll('#incident-2 .cells .chart').length") > 0
    assert browser.problems == []


def test_a_link_to_an_incident_shows_that_incident(browser: Browser, wide: Path) -> None:
    browser.open(f"{wide.resolve().as_uri()}#incident-3")
    browser.until(f"{SHOWN_RANKS}.length === 1")

    assert browser.run(SHOWN_RANKS) == [3]


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("how", ["row", "flag", "key"])
def test_an_incident_that_is_chosen_comes_into_view(
    browser: Browser, wide: Path, how: str, width: int, motion: str
) -> None:
    """Who wants less motion sees it at once. The keyboard goes on in what came into view."""
    shown(browser, wide, width=width)
    feature = {"name": "prefers-reduced-motion", "value": motion}
    browser.call("Emulation.setEmulatedMedia", features=[feature])
    browser.run("scrollTo(0, 0)")
    if how == "key":
        browser.run(
            "document.querySelector('.list [data-pick=\"2\"]').focus({preventScroll: true})"
        )
        browser.key("Enter")
    else:
        place = {"row": ".list tr[data-rank='2'] td", "flag": ".flag:nth-of-type(2)"}[how]
        browser.run(f"document.querySelector({json.dumps(place)}).click()")

    top = "document.querySelector('#incident-2').getBoundingClientRect().top"
    if motion == "reduce":
        assert 0 <= browser.run(top) <= 450
    browser.until(f"{top} >= 0 && {top} <= innerHeight / 2")
    assert browser.run("document.activeElement.id") == "title-2"
    assert browser.run(SHOWN_RANKS) == [2]
    assert browser.problems == []


def test_the_title_of_each_chart_ends_with_the_times_that_it_shows(
    browser: Browser, page: Path
) -> None:
    shown(browser, page)
    titles = """[...document.querySelectorAll('.chart')].filter((one) => one.chart)
        .map(({ chart }) => chart.times.textContent)"""
    browser.until(f"{titles}.length > 5 && {titles}.every((one) => one.includes(' to '))")
    whole = browser.run(f"{titles}[0]")
    browser.run("document.querySelector('[data-move=\"[0.5]\"]').click()")

    browser.until(f"{titles}[0] !== {json.dumps(whole)}")
    assert browser.problems == []


COLUMNS_OF_LINE = """((chart) => {
    const { ctx, bbox: { left, top, width, height } } = chart.plot, inked = [];
    const { data } = ctx.getImageData(left, top, width, height);
    for (let x = 0; x < width; x++) for (let y = 0; y < height && !inked[x]; y++) {
        const [red, green, blue] = data.slice(4 * (y * width + x), 4 * (y * width + x) + 3);
        inked[x] = blue - red > 90; }
    return Array.from({ length: 10 }, (_, part) => Array.from({ length: width / 10 },
        (_, at) => inked[Math.round(part * width / 10) + at]).filter(Boolean).length / (width / 10));
    })(document.querySelector("#brokers-grid .chart").chart)"""
"""Of each tenth of a broker's chart, the share in which there is a line; it is blue."""


def test_a_series_that_is_read_every_ten_seconds_is_a_line_that_breaks_where_reads_are_missing(
    browser: Browser, tmp_path: Path
) -> None:
    """Nothing was read in the fourth and fifth tenth. Between two reads the cursor says the one before."""
    found = assemble(write_synthetic_run(tmp_path / "run", Shape(fault_k=None)), read)
    column = Column("kafka_log_flush_total", (), "")
    name = series_name("probe@host", column.name)
    k = np.arange(0, found.end_k, 10)
    k = k[(k < 0.3 * found.end_k) | (k >= 0.5 * found.end_k)]
    found = replace(
        found,
        columns={**found.columns, name: column},
        series={**found.series, name: (k, np.linspace(5, 10, k.size))},
    )
    out = tmp_path / "page.html"
    out.write_text(report.html(Page(found, [], coverage(found), "clean", None)))

    browser.open(out)
    browser.until("document.querySelectorAll('#brokers-grid .chart').length > 0")
    browser.run("document.querySelector('#brokers-grid').scrollIntoView()")
    browser.until("document.querySelectorAll('#brokers-grid canvas').length > 0")
    box = browser.run(
        "(({ x, y, width }) => ({ x, y, width }))"
        "(document.querySelector('#brokers-grid .u-over').getBoundingClientRect())"
    )
    x = box["x"] + box["width"] * 0.155
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=box["y"] + 60)
    browser.until("document.querySelector('#cursor').textContent.startsWith('cursor at ')")
    shares = browser.run(COLUMNS_OF_LINE)

    assert min(shares[:2] + shares[6:9]) > 0.9
    assert max(shares[3:5]) < 0.3
    assert text(browser, "#brokers-grid .value") not in {"", "no data"}
    assert browser.problems == []


def test_the_cursor_of_one_chart_is_that_of_all(browser: Browser, page: Path) -> None:
    shown(browser, page)
    box = browser.run(
        "(({ x, y }) => ({ x, y }))(document.querySelector('#main .u-over').getBoundingClientRect())"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=box["x"] + 300, y=box["y"] + 60)

    browser.until("document.querySelector('#cursor').textContent.startsWith('cursor at ')")
    assert browser.run("document.querySelector('#rates .chart').chart.plot.cursor.left") > 0


TIPS = """[...document.querySelectorAll('.tip')].filter((one) => !one.hidden)
    .map((one) => one.textContent)"""


def test_an_event_says_what_it_was_and_when_to_pointer_and_keyboard(
    browser: Browser, page: Path
) -> None:
    """The run has one deletion, in second 110."""
    shown(browser, page)
    where = """(() => { const { plot } = document.querySelector('#main .chart').chart;
        const { x, y, height } = document.querySelector('.lane').getBoundingClientRect();
        return { x: x + plot.valToPos(110, 'x'), y: y + height / 2 }; })()"""
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", **browser.run(where))
    browser.until(f"{TIPS}.length === 1")
    hovered = browser.run(TIPS)
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=5, y=5)
    browser.until(f"{TIPS}.length === 0")
    browser.run("document.querySelector('.lane').focus({ focusVisible: true })")
    browser.until(f"{TIPS}.length === 1")

    begin = "JSON.parse(document.getElementById('numbers').textContent).start"
    at = browser.run(f"new Date(({begin} + 110) * 1000).toISOString().slice(11, 19)")
    assert hovered == [f"retention deletion at {at}"]
    assert browser.run(TIPS) == hovered
    assert browser.problems == []


def test_the_axis_may_be_run_time_or_bytes(browser: Browser, page: Path) -> None:
    shown(browser, page)
    for name, sign in (("elapsed", "h"), ("written", "B")):
        browser.run(f"document.querySelector('input[value={name}]').click()")
        browser.run("zoomed = document.querySelector('[data-move=\"[0.5]\"]').click()")
        browser.until(f"document.querySelector('#range').textContent.endsWith('{sign}')")
    assert browser.problems == []


def test_a_phone_needs_no_sideways_scrolling(browser: Browser, page: Path) -> None:
    shown(browser, page, width=390, height=844)

    assert browser.run("document.documentElement.scrollWidth") <= 390


def test_tables_break_no_number_and_no_word_on_a_phone(browser: Browser, page: Path) -> None:
    """A number, a time or a word of a table is on one line; a table that is too wide scrolls."""
    shown(browser, page, width=390, height=844)
    broken = """[...document.querySelectorAll('.wide :is(td, th)')].flatMap((cell) => {
        const found = [], range = document.createRange();
        const walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
        while (walk.nextNode())
          for (const { index, 0: word } of walk.currentNode.data.matchAll(/[^ -]+/g)) {
            range.setStart(walk.currentNode, index);
            range.setEnd(walk.currentNode, index + word.length);
            if (new Set([...range.getClientRects()].map(({ top }) => top)).size > 1) found.push(word); }
        return found; })"""

    assert browser.run("document.querySelectorAll('.wide td.number').length") > 0
    assert browser.run(broken) == []


def test_without_a_program_the_page_has_pictures_tables_and_all_evidence(
    browser: Browser, page: Path
) -> None:
    browser.open(page, has_script=False)

    tree = browser.call("DOMSnapshot.captureSnapshot", computedStyles=["display"])
    whole = browser.call("Page.captureSnapshot", format="mhtml")["data"]
    assert "canvas" not in [one.lower() for one in tree["strings"]]
    assert "Incidents" in whole
    assert browser.problems == []


def test_a_damaged_block_leaves_the_still_page(
    browser: Browser, page: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.html"
    body = page.read_text()
    damaged.write_text(re.sub(r'(id="block-0">.{300})[^<]*', r"\1", body))

    browser.open(damaged)

    browser.until("document.documentElement.className === ''")
    assert browser.run("document.querySelector('#main .still svg').checkVisibility()")


def test_the_policy_refuses_a_program_that_is_not_ours(browser: Browser, page: Path) -> None:
    shown(browser, page)
    browser.run(
        "made = document.createElement('script'); made.textContent = 'window.isInjected = true';"
        " document.body.append(made); 0"
    )

    assert browser.run("window.isInjected") is None


def wide_timeline(path: Path, names: Sequence[str] = ()) -> Timeline:
    """Return 36 hours of 500 series, 10,000 deletions and a gap, without their journals."""
    folder = write_synthetic_run(path / "run", Shape(seconds=40, warm_up=10, fault_k=None))
    found = assemble(folder, read)
    rng = np.random.default_rng(1)
    k, minutes = np.arange(0, HOURS_36, STEP), np.arange(0, HOURS_36, 60)
    slow = np.ones(k.size)
    for onset in ONSETS:
        slow[(k >= onset) & (k < onset + 1800)] = 8.0
    columns, series, extremes = dict(found.columns), {}, {}
    for number in range(PROBE_SERIES):
        labels = (("device", names[number % len(names)] if names else f"nvme{number}n1"),)
        column = Column("disk_write_await_seconds", (*labels, ("n", str(number))), "seconds")
        columns[series_name("probe@b1", column.name)] = column
    for name, column in columns.items():
        values = np.exp(rng.normal(0.0, 0.1, k.size)) * 0.004 * slow
        if column.metric.endswith("_messages"):
            values = rng.poisson(4000, k.size).astype(np.float64)
        if "_above_" in column.metric:
            values = 4000 * np.exp(-float(dict(column.labels)["threshold"]) / (0.004 * slow))
        series[name] = (k, values)
        rows = values.reshape(-1, 6)
        low, high = rows.min(axis=1) * 0.8, rows.max(axis=1) * 1.3
        extremes[name] = Extremes(minutes, low.astype(np.float32), high.astype(np.float32))
    phases = decision_line("warm-up", 0) + decision_line("soak", 300)
    phases += decision_line("drain", HOURS_36 - 20) + decision_line("end", HOURS_36)
    sources = {*found.seconds, "probe@b1"}
    return replace(
        found,
        step=STEP,
        columns=columns,
        series=series,
        extremes=extremes,
        phases=parse_phases(phases),
        seconds={
            source: np.setdiff1d(np.arange(HOURS_36), np.arange(70_000, 70_900))
            for source in sources
        },
        event_seconds={
            "retention_deletion": np.linspace(50_000, HOURS_36 - 1, 10_000).astype(np.int64)
        },
    )


def wide_page(path: Path, names: Sequence[str] = ()) -> Path:
    timeline = wide_timeline(path, names)
    cited = next(name for name in timeline.series if name.startswith("probe@b1"))
    judged = [
        Judged(
            finding_of(
                key=f"synthetic-1-{onset}",
                onset_k=onset,
                interval=(onset, onset),
                resolved_k=onset + 1800,
                state="gone",
                changes=(cited,),
            ),
            "both",
        )
        for onset in ONSETS
    ]
    rng = np.random.default_rng(2)

    def each(function: Any, things: Any) -> Any:
        if function.__name__ != "_read_seconds":
            return [function(one) for one in things]
        return [
            (0.004 * np.exp(rng.normal(0, 0.1, (len(names), b - a)))).astype(np.float32)
            for _, a, b, names in things
        ]

    made = Page(timeline, judged, coverage(timeline), "regressed", None, each=each)
    out = path / "wide.html"
    out.write_text(report.html(made))
    return out


def test_a_page_of_36_hours_and_500_series_is_small_and_fast(browser: Browser, wide: Path) -> None:
    """All five incidents are on the first screen."""
    shown(browser, wide)

    assert wide.stat().st_size <= 8_000_000
    assert browser.run("performance.getEntriesByName('first-chart')[0].startTime") <= 2000
    flags = """[...document.querySelectorAll('.flag')]
        .filter((one) => !one.hidden && one.getBoundingClientRect().bottom < innerHeight).length"""
    assert browser.run(flags) == 5
    assert (
        browser.run("JSON.parse(document.getElementById('numbers').textContent).series.length")
        >= 500
    )
    browser.run("document.querySelector('.list [data-pick=\"2\"]').click()")
    browser.until("document.querySelector('#main .chart').chart.data[0].length > 2160")
    assert browser.problems == []


def test_hostile_names_are_text_in_charts_too(browser: Browser, tmp_path: Path) -> None:
    hostile = wide_page(tmp_path, EVIL)

    shown(browser, hostile)
    for y in range(0, 8000, 500):
        browser.run(f"scrollTo(0, {y}); new Promise((done) => setTimeout(done, 60))")

    assert browser.problems == []
    assert browser.run("document.querySelectorAll('main script, main img').length") == 0
    assert browser.run("document.documentElement.scrollWidth") <= 1440


INKED = """(canvas) => canvas.width * canvas.height > 0 && canvas.getContext("2d")
    .getImageData(0, 0, canvas.width, canvas.height).data.some((one) => one > 0)"""


@pytest.mark.parametrize("width", [390, 1440])
def test_paper_has_the_charts_of_every_incident(browser: Browser, wide: Path, width: int) -> None:
    """None of them was scrolled to. Afterwards the screen is as it was."""
    shown(browser, wide, width=width, scheme="dark")
    browser.run("document.querySelector('.list [data-pick=\"2\"]').click()")
    browser.until("performance.getEntriesByName('ready-for-paper').length > 0")
    screen = """[document.documentElement.dataset.theme ?? "dark",
        document.querySelector("#range").textContent,
        [...document.querySelectorAll(".finding")].map((one) => one.hidden)]"""
    before = browser.run(screen)
    browser.run(f"""addEventListener("beforeprint", () => {{
        const inked = (box) => [...box.querySelectorAll("canvas")].filter({INKED}).length;
        window.onPaper = [...document.querySelectorAll(".finding")].map(inked);
        window.ofHosts = inked(document.querySelector("#hosts-grid")); }})""")
    paper = browser.pdf()

    assert paper.startswith(b"%PDF")
    assert len(browser.run("window.onPaper")) == len(ONSETS)
    assert min(browser.run("window.onPaper")) >= 3
    assert browser.run("window.ofHosts") >= 1
    assert browser.run(screen) == before
    assert browser.problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("name", ["page", "wide"])
def test_a_report_has_no_serious_fault_for_readers_with_aids(
    browser: Browser, request: pytest.FixtureRequest, name: str, width: int, scheme: str
) -> None:
    shown(browser, request.getfixturevalue(name), width=width, scheme=scheme)

    assert browser.faults() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_a_comparison_has_no_serious_fault_for_readers_with_aids(
    browser: Browser, compared: Path, width: int, scheme: str
) -> None:
    browser.open(compared, width=width, scheme=scheme)

    assert browser.faults() == []
    assert browser.problems == []
