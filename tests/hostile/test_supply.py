"""What is installed is what was locked: files of a runtime without those of development, each with a hash."""

from __future__ import annotations

import json
import re

from soak.lab.jars.lock import parse_lock
from tests.support.locks import (
    BUILD_LOCK,
    JARS,
    LOCK,
    RUNTIME,
    build_lock,
    read_lock,
    runtime_lock,
    sbom,
)
from tests.support.paths import ROOT

PROJECT = (ROOT / "pyproject.toml").read_text()


def test_the_runtime_lock_is_the_part_that_servers_need() -> None:
    """Written by `make lock`; a test runner or a linter is installed on no server."""
    assert RUNTIME.read_text() == runtime_lock(LOCK.read_text(), PROJECT)
    assert BUILD_LOCK.read_text() == build_lock(LOCK.read_text())
    names = {one.name for one in read_lock(RUNTIME.read_text())}
    assert names >= {"pyspark", "confluent-kafka", "scipy", "setuptools", "certifi"}
    assert not names & {"pytest", "hypothesis", "mypy", "ruff", "import-linter"}


def test_each_locked_file_has_a_hash_and_no_address() -> None:
    for path in (LOCK, RUNTIME, BUILD_LOCK):
        for one in read_lock(path.read_text()):
            assert re.search(r"--hash=sha256:[0-9a-f]{64}", one.text), one.name
            assert "://" not in one.text


def test_the_bill_of_materials_names_each_package_and_jar() -> None:
    packages = read_lock(RUNTIME.read_text())
    jars = {path.stem: parse_lock(path.read_text(), str(path)) for path in JARS}

    document = json.loads(json.dumps(sbom(packages, jars)))

    urls = {one["purl"] for one in document["components"]}
    assert "pkg:pypi/pyspark@4.2.1" in urls
    assert {
        f"pkg:maven/{one.group}/{one.name}@{one.version}"
        for every in jars.values()
        for one in every
    } <= urls
