"""Damaged files of /proc: an error or a partial reading, never a crash or a wrong number."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from probes import disk_io as diskstats
from probes import pressure
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.plan import plugins
from tests.support.paths import RECORDED, ROOT
from tests.support.probes.damaged_proc import ROUNDS, damaged

KERNELS = ("linux-3.10", "linux-5.4", "linux-6.18")
COUNTS = (50, pytest.param(1000, marks=pytest.mark.slow))


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"),
    reason="needs root and unshare to cover files of /proc",
)
def test_every_probe_reads_or_refuses_what_it_finds_in_a_damaged_proc(tmp_path: Path) -> None:
    """All probes of the package, with their defaults: none ends with an error of another kind."""
    script = [sys.executable, "-m", "tests.support.probes.damaged_proc", str(tmp_path)]
    done = subprocess.run(
        ["unshare", "--mount", *script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    outcomes = json.loads(done.stdout)

    assert sorted(outcomes) == sorted(plugins.names("probes"))
    assert {kind for found in outcomes.values() for kind in found} == {"read", "refused"}
    assert all(sum(found.values()) == ROUNDS for found in outcomes.values())


def numbers(text: str) -> dict[str, tuple[int, ...]]:
    """Return the fields of each device of a diskstats, by `major:minor`, split at blanks and nothing else."""
    rows = (line.split() for line in text.splitlines())
    return {f"{row[0]}:{row[1]}": tuple(map(int, row[3:])) for row in rows}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_damaged_diskstats_give_an_error_or_the_fields_as_they_stand(
    kernel: str, count: int
) -> None:
    """A line that was cut in a number has too few fields, or none of the numbers before it changed.

    Of all fields only the requests in flight may have a sign; below zero they are left out.
    """
    text = (RECORDED / kernel / "before" / "diskstats").read_text()
    truth = numbers(text)
    chance = random.Random(23)
    refused = 0
    for _ in range(count):
        hurt = damaged(text, chance)
        for device, fields in truth.items():
            major, minor = map(int, device.split(":"))
            try:
                line = diskstats.find_line(hurt, (major, minor))
            except (ProbeError, NotAvailableError):
                refused += 1
                continue
            whole = dict(enumerate(fields))
            assert line.fields in (whole, {k: v for k, v in whole.items() if k != diskstats.IO_NOW})

    assert refused > count // 10


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kernel", KERNELS[1:])
def test_damaged_pressures_give_an_error_or_the_totals_as_they_stand(
    kernel: str, count: int
) -> None:
    """A line without its end may have lost digits."""
    chance = random.Random(23)
    refused = 0
    for path in sorted((RECORDED / kernel / "before" / "pressure").iterdir()):
        text = path.read_text()
        truth = pressure.parse(text)
        for _ in range(count):
            try:
                found = pressure.parse(damaged(text, chance))
            except ProbeError:
                refused += 1
                continue
            assert found.items() <= truth.items()

    assert refused > count
