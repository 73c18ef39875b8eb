"""`soak serve` in a real Chromium: news without a reload, a comparison by two clicks, names as text."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.app.live.jobs import spawn_command
from soak.store.findings.store import FindingsStore
from tests.support.browser import CHROMIUM, Browser, chromium
from tests.support.compared import ComparedShape, write_compared_run
from tests.support.fakes import FakeClock
from tests.support.live import FOUND, written_run
from tests.support.served import contents, served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium: make packages"),
]

GOOD = {"sent": 1000.0, "acked": 1000.0, "failed": 0.0, "publish_p99": 0.02, "slow": 30.0}
LIMIT_SECONDS = 120.0
EVIL = '<img src=x onerror="window.owned=1"><script>window.owned=1</script>\u202e'


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def test_a_page_shows_news_without_a_reload_and_says_when_none_comes(
    browser: Browser, tmp_path: Path
) -> None:
    """An outage appears as it begins; a server that ended is reported."""
    run, clock = written_run(tmp_path / "going on"), FakeClock()
    for k in range(100):
        run.write("produce.0@h", k, **GOOD)
    clock.advance(100)
    with served(tmp_path, clock) as found:
        browser.open(f"http://127.0.0.1:{found.serving.port}/run/going%20on/")
        browser.run("window.wasHere = true")
        for k in range(100, 140):
            run.write("produce.0@h", k, sent=0.0, acked=0.0, failed=300.0, missed=700.0)
        clock.advance(40)
        said = "nothing acknowledged for 40 s, 12,000 failed"
        browser.until(f"document.querySelector('.trouble')?.textContent === '{said}'")

        assert browser.run("window.wasHere")
        assert "soak 2:20 of 6:20" in browser.run("document.querySelector('.where').textContent")
        assert browser.problems == []
    browser.until("!document.getElementById('answer').hidden")


def test_two_clicks_show_a_comparison_and_change_nothing(browser: Browser, tmp_path: Path) -> None:
    """The second run is twice as slow."""
    for day, (name, factor) in enumerate((("before", 1.0), ("after", 2.0))):
        write_compared_run(tmp_path / name, ComparedShape(factor=factor, day=day))
    before = contents(tmp_path)
    with served(tmp_path, spawn=spawn_command) as found:
        browser.open(f"http://127.0.0.1:{found.serving.port}/")
        for run, text in (("before", "compare"), ("after", "compare with before")):
            link = f"document.querySelector('[aria-label=\"Compare {run}\"]')"
            # The page that is left has such links too.
            browser.until(f"document.readyState === 'complete' && {link}?.textContent === '{text}'")
            browser.run(f"{link}.click()")
        end = time.monotonic() + LIMIT_SECONDS
        while "Worse" not in browser.text():
            assert time.monotonic() < end
            found.jobs.step()
            time.sleep(0.1)

        assert browser.run("document.title") == "soakd: before against after"
    assert contents(tmp_path) == before


def test_no_name_runs_as_a_program(browser: Browser, tmp_path: Path) -> None:
    run, clock = written_run(tmp_path / EVIL.replace("/", "_")), FakeClock()
    clock.advance(100)
    with FindingsStore(run.folder.findings) as store:
        store.save_finding(
            dataclasses.replace(FOUND, series=f'consume.0@{EVIL}|x{{a="{EVIL}"}}'), (), 1
        )
    with served(tmp_path, clock) as found:
        for path in ("", "run/" + EVIL.replace("/", "_") + "/"):
            browser.open(f"http://127.0.0.1:{found.serving.port}/{path}")

            assert browser.run("typeof window.owned") == "undefined"
            assert browser.run("document.images.length") == 0
            assert browser.problems == []


@pytest.mark.parametrize("width", [390, 1440])
def test_no_page_is_wider_than_the_window(browser: Browser, tmp_path: Path, width: int) -> None:
    """A name of 200 letters and an incident of 10,000 break."""
    run, clock = written_run(tmp_path / ("n" * 200)), FakeClock()
    for k in range(100):
        run.write("produce.0@h", k, **GOOD)
        run.write("consume.0@h", k, received=1000.0, lag=7.0, end_to_end_p99=0.03)
    clock.advance(100)
    with FindingsStore(run.folder.findings) as store:
        store.save_finding(dataclasses.replace(FOUND, series="x" * 10_000), (), 1)
    with served(tmp_path, clock) as found:
        for path in ("", f"run/{'n' * 200}/"):
            browser.open(f"http://127.0.0.1:{found.serving.port}/{path}", width=width)

            assert browser.run("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_no_page_has_a_serious_fault_for_readers_with_aids(
    browser: Browser, tmp_path: Path, width: int, scheme: str
) -> None:
    """The list with one run chosen as the baseline, and a run in an outage with an incident."""
    run, clock = written_run(tmp_path / "going-on"), FakeClock()
    write_compared_run(tmp_path / "before", ComparedShape(incidents=("drive_gc",)))
    for k in range(100):
        run.write("produce.0@h", k, **(GOOD if k < 80 else GOOD | {"acked": 0.0, "failed": 900.0}))
        run.write("consume.0@h", k, received=1000.0, lag=7.0, end_to_end_p99=0.03)
    clock.advance(100)
    with FindingsStore(run.folder.findings) as store:
        store.save_finding(FOUND, (), 1)
    with served(tmp_path, clock) as found:
        for path in ("", "?with=before", "run/going-on/"):
            address = f"http://127.0.0.1:{found.serving.port}/{path}"
            browser.open(address, width=width, scheme=scheme)

            assert browser.faults() == []


def test_the_keyboard_stays_where_it_was_when_news_come(browser: Browser, tmp_path: Path) -> None:
    run, clock = written_run(tmp_path / "r"), FakeClock()
    for k in range(100):
        run.write("produce.0@h", k, **GOOD)
    clock.advance(100)
    with served(tmp_path, clock) as found:
        browser.open(f"http://127.0.0.1:{found.serving.port}/run/r/")
        browser.run("document.querySelector('main [tabindex]').focus()")
        run.write("produce.0@h", 100, **GOOD)
        clock.advance(3)
        browser.until("document.querySelector('.where').textContent.includes('1:43')")

        assert browser.run("document.activeElement.matches('main [tabindex]')")


def test_an_open_report_shows_a_newer_one_at_the_place_where_its_reader_was(
    browser: Browser, tmp_path: Path
) -> None:
    """The frame has an origin of its own: only what it tells is seen of it here."""
    run, clock = written_run(tmp_path / "r"), FakeClock()
    run.folder.report.parent.mkdir()
    for k in range(100):
        run.write("produce.0@h", k, **GOOD)
    clock.advance(100)
    run.folder.report.write_text(_report("old"))
    with served(tmp_path, clock) as found:
        browser.open(f"http://127.0.0.1:{found.serving.port}/run/r/report#far")
        browser.run(
            "window.posted = []; addEventListener('message', (event) => posted.push(event.data)); "
            "document.querySelector('iframe').src = 'report.html?again#far'"
        )
        browser.until("posted.includes('old') && posted.some((one) => one > 1000)")
        place = browser.run("posted.findLast((one) => one > 0)")
        browser.run("posted = []")
        run.folder.report.write_text(_report("newer"))
        browser.until("posted.includes('newer') && posted.some((one) => one > 1000)")

        assert browser.run("posted.findLast((one) => one > 0)") == place
        assert browser.run("document.getElementById('said').textContent.includes('ago')")
        assert browser.problems == []


def _report(name: str) -> str:
    """Return a report that is much longer than a window and whose own program tells its name."""
    program = f"parent.postMessage('{name}', '*')"
    digest = base64.b64encode(hashlib.sha256(program.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'"
    return (
        f'<!doctype html><meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<body><p style="height: 5000px">{name}</p><p id="far">far</p>'
        f'<p style="height: 5000px"></p><script>{program}</script></body>'
    )
