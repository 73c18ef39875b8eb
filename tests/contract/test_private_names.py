"""Private modules and names: no package imports those of another package."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGES = ("soak", "probes", "detectors", "spark")


def imports(text: str) -> Iterator[str]:
    """Give every absolute name that a module imports: modules, and names of modules."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{one.name}" for one in node.names)


def foreign_private(module: str, imported: str) -> bool:
    """Return whether a name is private to a package that the module does not belong to."""
    parts = imported.split(".")
    if parts[0] not in PACKAGES:
        return False
    private = next((at for at, part in enumerate(parts) if is_private(part)), None)
    if private is None:
        return False
    owner = ".".join(parts[:private])
    if not is_package(owner):  # a name of a module: for the modules next to it
        owner = owner.rpartition(".")[0]
    if owner.startswith("detectors."):  # the helpers of its plug-ins belong to the whole package
        owner = "detectors"
    return not f"{module}.".startswith(f"{owner}.")


def is_private(part: str) -> bool:
    return part.startswith("_") and not part.startswith("__")


def is_package(name: str) -> bool:
    return (ROOT / Path(*name.split(".")) / "__init__.py").is_file()


@pytest.mark.long
def test_no_package_imports_what_is_private_to_another() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {imported}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for imported in imports(path.read_text(encoding="utf-8"))
        if foreign_private(".".join(path.relative_to(ROOT).with_suffix("").parts), imported)
    ]

    assert found == []


def test_private_is_judged_by_the_package_that_holds_it() -> None:
    """A package's own modules may import it, sub-packages included; others may not."""
    assert not foreign_private("detectors.panel", "detectors._recent.Recent")
    assert foreign_private("soak.app.check", "detectors._recent.Recent")
    assert foreign_private("soak.app.check", "soak.core.errors._hidden")
    assert not foreign_private("soak.core.units", "soak.core.errors._hidden")
    assert not foreign_private("soak.core.units", "soak.core.errors.PlanError")
