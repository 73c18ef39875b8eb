"""Draw the report of a run as a screen, a phone and paper show it, for the pages that explain it.

python -m tests.bench.page_pictures RUN_DIR --into docs/images
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from soak.store.run_folder import RunFolder
from tests.support.browser import Browser, chromium

INTO = Path("docs/images")
_DRAWN = "performance.getEntriesByName('first-chart').length > 0"
_SETTLED = (
    "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
)
_COLOURS = 128
_INCIDENT = ".finding:not([hidden])"


@dataclass(frozen=True, slots=True)
class View:
    """One picture: its size in pixels, and what of the page is in it."""

    name: str
    width: int
    height: int
    scheme: str = "light"
    place: str = ""  # of what is at the top, as a CSS selector
    is_print: bool = False


VIEWS = (
    View("report-first-screen", 1440, 900),
    View("report-incident", 1440, 900, place=_INCIDENT),
    View("report-dark", 1440, 900, scheme="dark"),
    View("report-phone", 390, 844),
    View("report-phone-incident", 390, 844, place=_INCIDENT),
    View("report-print", 794, 1123, is_print=True),  # A4 at 96 dots an inch
)


def draw(browser: Browser, page: Path, view: View, path: Path) -> None:
    """Write one picture of a page."""
    browser.open(page, width=view.width, height=view.height, scheme=view.scheme)
    browser.until(_DRAWN)
    if view.is_print:
        browser.run("dispatchEvent(new Event('beforeprint')) || true")
        browser.call("Emulation.setEmulatedMedia", media="print")
    if view.place:
        browser.run(f"document.querySelector('{view.place}').scrollIntoView() || true")
    browser.run(_SETTLED)
    browser.picture(path)
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(_COLOURS)
    small.save(path, optimize=True)


def run() -> None:
    """Draw what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--into", type=Path, default=INTO)
    given = parser.parse_args()
    given.into.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for view in VIEWS:
            page = RunFolder(given.run_dir.resolve()).report
            draw(browser, page, view, given.into / f"{view.name}.png")


if __name__ == "__main__":
    run()
