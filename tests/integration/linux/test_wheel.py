"""A wheel in an environment of its own, outside the repository: it ships the plans, drills and units."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.slow


CLEAN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with our wheel, which has the installed dependencies but not this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("soak", "probes", "detectors", "spark", "configs", "systemd"):
        shutil.copytree(
            ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    found = folder / "env"
    venv.create(found, with_pip=False)
    pip(
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
        str(folder / "source"),
    )
    (wheel,) = folder.glob("soakd-*.whl")
    pip("--python", str(found), "install", "--no-deps", "--no-index", str(wheel))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    dependencies = sysconfig.get_path("purelib")
    (found / "lib" / version / "site-packages" / "dependencies.pth").write_text(f"{dependencies}\n")
    return found


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, env=CLEAN, timeout=300)


def soak(environment: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(environment / "bin" / "soak"), *arguments]
    return subprocess.run(
        command, cwd=folder, env=CLEAN, capture_output=True, text=True, check=False, timeout=120
    )


def test_it_ships_every_file_of_configs_and_of_systemd(environment: Path) -> None:
    shipped = environment / "share" / "soakd"
    for folder in ("configs", "systemd"):
        ours = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file()}

        assert {
            path.relative_to(shipped) for path in (shipped / folder).rglob("*") if path.is_file()
        } == ours


def test_a_plan_that_ships_is_checked_by_its_name(environment: Path, tmp_path: Path) -> None:
    done = soak(environment, tmp_path, "check", "demo-clean")

    assert (done.returncode, "Storage:" in done.stdout) == (0, True), done.stderr


def test_a_name_that_no_plan_has_is_an_error_with_those_that_ship(
    environment: Path, tmp_path: Path
) -> None:
    done = soak(environment, tmp_path, "check", "demo-clea")

    assert done.returncode == 2
    assert done.stderr.startswith(
        "soak: there is no file demo-clea, and no plan of this name; did you mean 'demo-clean'? known: "
    )


def test_the_drills_are_listed(environment: Path, tmp_path: Path) -> None:
    done = soak(environment, tmp_path, "lab", "drill")

    assert "retention_cliff" in done.stdout


def test_versions_are_printed_for_a_report_of_a_fault(environment: Path, tmp_path: Path) -> None:
    lines = soak(environment, tmp_path, "--version").stdout.splitlines()

    names = [line.split()[0] for line in lines]
    assert names[:2] == ["soakd", "Python"]
    assert {"confluent-kafka", "librdkafka", "pulsar-client", "pyspark", "Java"} <= set(names)
