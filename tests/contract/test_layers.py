from __future__ import annotations

import pkgutil
import tomllib

from tests.support.paths import ROOT


def test_every_package_stands_in_the_layers() -> None:
    """A package that the contract does not list would be free to import anything."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    listed = {
        name.strip() for line in contract["contracts"][0]["layers"] for name in line.split("|")
    }
    there = {
        f"soak.{item.name}" for item in pkgutil.iter_modules([str(ROOT / "soak")]) if item.ispkg
    }

    assert there | {"probes", "detectors", "spark"} == listed


def test_folders_of_text_are_no_packages() -> None:
    """A package named systemd would hide the journal's bindings of that name."""
    assert not [name for name in ("configs", "systemd") if (ROOT / name / "__init__.py").exists()]
