"""The skeletons of docs/contributing pass, in their places, their own tests and those of every plug-in."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PAGES = sorted((ROOT / "docs" / "contributing").glob("add-a-*.md"))
_BLOCK = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXTENDED = """
import detectors.causes, probes, soak.brokers
for package in (detectors.causes, probes, soak.brokers):
    package.__path__.append({folder!r} + "/" + package.__name__.replace(".", "/"))
"""
CONTRACTS = ("test_probes.py", "test_brokers.py", "test_plugins.py")


def skeletons() -> dict[str, str]:
    """Return the text of each file that the pages show, by its path."""
    return {path: body for page in PAGES for path, body in _BLOCK.findall(page.read_text())}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with every file that the pages show, at its place."""
    folder = tmp_path_factory.mktemp("skeletons")
    for path, body in skeletons().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(body)
    (folder / "extended.py").write_text(_EXTENDED.format(folder=str(folder)))
    return folder


def call(
    *words: str, folder: Path = ROOT, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{folder}"},
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_each_page_shows_a_module_and_its_test() -> None:
    shown = [
        [path.startswith("tests/") for path, _ in _BLOCK.findall(p.read_text())] for p in PAGES
    ]

    assert [page.stem for page in PAGES] == ["add-a-broker", "add-a-cause", "add-a-probe"]
    assert shown == [[False, True]] * 3


@pytest.mark.long
def test_the_skeletons_pass_their_tests_and_those_of_every_plugin(written: Path) -> None:
    """They are plug-ins of their packages, as files of the repository are."""
    own = [str(written / path) for path in skeletons() if path.startswith("tests/")]
    contracts = [str(ROOT / "tests" / "contract" / name) for name in CONTRACTS]
    names = "handle or logstore or Handle"
    rules = ["-p", "extended", "-p", "no:cacheprovider", "-n", "0", "--import-mode=importlib"]

    done = call("pytest", *rules, "-k", names, *own, *contracts, folder=written)

    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 15


@pytest.mark.parametrize("path", sorted(skeletons()))
def test_a_skeleton_is_in_the_style_of_the_house(path: str) -> None:
    """As a file at that place, where ruff has rules of its own for tests and detectors."""
    ours = "lint.isort.known-first-party = ['probes']"  # the file is not there
    for rule in (("check", "--config", ours), ("format", "--check", "--diff")):
        words = ("ruff", *rule, "--no-cache", "--stdin-filename", path, "-")
        done = call(*words, text=skeletons()[path])

        assert done.returncode == 0, done.stdout + done.stderr
