"""The site of `make docs`: `stage` collects pages and navigation, `check` finds what would need a network.

Only the standard library is used: the Python of the machine calls it, without `make setup`.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = Path(__file__).resolve().parent / "site_files"
ASSETS = ("iframe-worker.js", "site.css", "favicon.svg")
TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
FOLDERS = {"Evidence": "evidence", "Decisions": "adr"}
"""Pages that their own index lists, and docs/index.md does not."""
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+\.md)\)")

Page = dict[str, object]
"""An entry of the navigation: a title, and a page or entries below it."""


def navigation(root: Path = ROOT) -> list[Page]:
    """Return the navigation: the sections of docs/index.md, with the parts that they name."""
    found: list[Page] = [{"Home": "README.md"}, {"Tutorials": _folder(root, "tutorials")}]
    text = (root / "docs" / "index.md").read_text()
    for section in text.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        entries: list[Page] = [{"Index": "docs/index.md"}] if title == "How-to guides" else []
        for paragraph in body.split("\n\n"):
            pages: list[Page] = [{name: _place(path)} for name, path in _LINK.findall(paragraph)]
            part = re.match(r"\s*([^\[\n:]+): ", paragraph)
            entries += [{part[1]: pages}] if part and len(pages) > 1 else pages
        found.append({title: entries})
    last = next(iter(found[-1].values()))
    named = set(pages_of(found))
    if isinstance(last, list):
        last.append({"Changelog": "CHANGELOG.md"})
        for title, folder in FOLDERS.items():
            own = [page for page in _folder(root, folder) if not named & set(pages_of([page]))]
            last.append({title: own})
    listed = set(pages_of(found))
    others = [
        page for page in sorted((root / "docs").glob("*.md")) if _name(root, page) not in listed
    ]
    found[0] = {
        "Home": [{"soakd": "README.md"}, *({_title(one): _name(root, one)} for one in others)]
    }
    return found


def pages_of(entries: Sequence[Page]) -> Iterator[str]:
    """Give the pages of a navigation."""
    for entry in entries:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            elif isinstance(value, list):
                yield from pages_of(value)


def _place(path: str) -> str:
    """Return a link of docs/index.md as a path from the root of the repository."""
    return path.removeprefix("../") if path.startswith("../") else f"docs/{path}"


def _folder(root: Path, name: str) -> list[Page]:
    pages = sorted((root / "docs" / name).glob("*.md"), key=lambda one: (one.stem != "index", one))
    return [{_title(page): _name(root, page)} for page in pages]


def _name(root: Path, page: Path) -> str:
    return str(page.relative_to(root))


def _title(page: Path) -> str:
    head = re.search(r"^# (.+)$", page.read_text(), re.MULTILINE)
    return head[1].replace("`", "") if head else page.stem


def stage(folder: Path, root: Path = ROOT) -> None:
    """Write the pages, in the folders that their links expect, and the configuration into a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = folder / "pages"
    shutil.copytree(root / "docs", pages / "docs")
    for name in TOP:
        shutil.copyfile(root / name, pages / name)
    (pages / "assets").mkdir()
    for name in ASSETS:
        shutil.copyfile(FILES / name, pages / "assets" / name)
    added = {"docs_dir": "pages", "nav": navigation(root)}
    lines = [f"{key}: {json.dumps(value)}" for key, value in added.items()]
    (folder / "mkdocs.yml").write_text("\n".join([(FILES / "mkdocs.yml").read_text(), *lines, ""]))


class _Loaded(HTMLParser):
    """Collects what a page loads by itself: scripts, styles, icons, pictures, frames; no link of its text."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag != "a":
            self.found += [values[key] or "" for key in ("src", "srcset", "data") if key in values]
        if tag == "link":
            self.found.append(values.get("href") or "")
        self.found += re.findall(r"url\(([^)]+)\)", values.get("style") or "")


def loaded_from_elsewhere(site: Path) -> list[str]:
    """Return what pages and styles of a site load from another server, with the file that does."""
    found = []
    for path in sorted(site.rglob("*")):
        if path.suffix == ".html":
            page = _Loaded()
            page.feed(path.read_text())
            loaded = page.found
        elif path.suffix == ".css":
            loaded = re.findall(r"(?:url\(|@import )[\"']?([^\"')]+)", path.read_text())
        else:
            continue
        found += [
            f"{path.relative_to(site)}: {one}" for one in loaded if re.match(r"(https?:)?//", one)
        ]
    return found


def run(arguments: Sequence[str]) -> int:
    what, folder = arguments[0], Path(arguments[1])
    if what == "stage":
        stage(folder)
        return 0
    elsewhere = loaded_from_elsewhere(folder)
    sys.stdout.write("".join(f"loaded from elsewhere: {one}\n" for one in elsewhere))
    pages = len(list(folder.rglob("*.html")))
    sys.stdout.write(f"{folder}/index.html: {pages} pages\n")
    return bool(elsewhere) or not pages


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
