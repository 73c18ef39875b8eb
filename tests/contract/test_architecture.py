"""The map in docs/explanation/architecture.md names modules, packages and seams that exist."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.paths import ROOT

TEXT = (ROOT / "docs/explanation/architecture.md").read_text()
PACKAGES = ("soak", "probes", "detectors", "spark")
PATHS = sorted(set(re.findall(r"`((?:soak|probes|detectors|spark)/[a-z_/]+(?:\.py)?)`", TEXT)))
SEAMS = sorted(set(re.findall(r"`((?:soak|probes|detectors|spark)/[a-z_/]*)<", TEXT)))
ROADS = re.findall(r"^### (From .+)\n((?:\n|.)*?)(?=^#)", TEXT, flags=re.MULTILINE)


def steps(road: str) -> list[str]:
    """Return the modules of a road in the order of its numbered list."""
    return re.findall(r"^\d+\. `([a-z_/]+\.py)`", road, flags=re.MULTILINE)


@pytest.mark.parametrize("path", PATHS)
def test_a_module_or_package_that_the_map_names_exists(path: str) -> None:
    """A module that moves takes its place on the map with it."""
    assert (ROOT / path).exists()


@pytest.mark.parametrize("folder", SEAMS)
def test_a_seam_that_the_map_names_is_a_package_with_plug_ins(folder: str) -> None:
    """A seam without a single plug-in is none."""
    assert list((ROOT / folder).glob("*.py"))


@pytest.mark.parametrize(("name", "text"), ROADS)
def test_a_road_passes_at_most_six_modules(name: str, text: str) -> None:
    """A reader follows a task through few files."""
    assert 4 <= len(steps(text)) <= 6, name


def test_the_map_has_every_package_of_the_layers() -> None:
    """A package of `soak` that is not on the map cannot be found by it."""
    packages = {f"soak.{path.parent.name}" for path in (ROOT / "soak").glob("*/__init__.py")}

    assert [name for name in sorted(packages) if name not in TEXT] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_says_what_it_is_for(package: str) -> None:
    """Its purpose, who imports it and which module to open first, in the docstring of the package."""
    silent = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / package).rglob("__init__.py"))
        if len((ast.get_docstring(ast.parse(path.read_text())) or "").split()) < 8
    ]

    assert silent == []
