"""The site of the documentation: every page has its place, and nothing is loaded from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.docs import prose, site
from tests.support.locks import read_lock
from tests.support.paths import ROOT


def test_every_page_is_in_the_navigation_once() -> None:
    named = list(site.pages_of(site.navigation()))

    assert sorted(named) == sorted(str(page.relative_to(ROOT)) for page in prose.all_pages())


def test_the_navigation_follows_the_sections_of_the_index() -> None:
    titles = [title for entry in site.navigation() for title in entry]

    assert titles == [
        "Home",
        "Tutorials",
        "How-to guides",
        "Reference",
        "Explanation",
        "Contributing",
    ]


def test_the_pages_are_staged_where_their_links_expect_them(tmp_path: Path) -> None:
    site.stage(tmp_path / "docs")
    lines = (tmp_path / "docs" / "mkdocs.yml").read_text().splitlines()
    nav = next(line for line in lines if line.startswith("nav: "))

    assert (tmp_path / "docs" / "pages" / "README.md").read_text() == (
        ROOT / "README.md"
    ).read_text()
    assert (tmp_path / "docs" / "pages" / "docs" / "images" / "report-phone.png").is_file()
    assert json.loads(nav.removeprefix("nav: ")) == site.navigation()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.html", '<script src="https://cdn.example/x.js"></script>'),
        ("a.html", '<link rel="preconnect" href="https://fonts.example" crossorigin>'),
        ("a.html", '<img src="//img.example/x.png">'),
        ("a.html", '<p style="background: url(http://img.example/x.png)">'),
        ("a.css", "@font-face { src: url('https://fonts.example/x.woff2') }"),
        ("a.css", '@import "https://fonts.example/x.css";'),
    ],
)
def test_what_a_page_loads_from_another_server_is_found(
    name: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)

    assert len(site.loaded_from_elsewhere(tmp_path)) == 1
    assert site.run(["check", str(tmp_path)]) == 1


def test_links_and_files_of_the_site_itself_are_no_loads_from_elsewhere(tmp_path: Path) -> None:
    page = (
        '<a href="https://kafka.apache.org">Kafka</a><img src="x.png"><script src="y.js"></script>'
    )
    (tmp_path / "a.html").write_text(page)

    assert site.loaded_from_elsewhere(tmp_path) == []
    assert site.run(["check", str(tmp_path)]) == 0


def test_every_package_of_the_site_is_pinned_by_hashes() -> None:
    locked = read_lock((ROOT / "requirements-docs.lock").read_text())

    assert "mkdocs-material" in {one.name for one in locked}
    assert [one.name for one in locked if "--hash=sha256:" not in one.text] == []
