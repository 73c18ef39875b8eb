"""Damaged files of /proc: an error or a partial reading, never a crash or a wrong number."""

from __future__ import annotations

import random

import pytest

from probes import disk_io as diskstats
from probes import pressure
from soak.core.errors import NotAvailableError, ProbeError
from tests.support.paths import RECORDED

KERNELS = ("linux-3.10", "linux-5.4", "linux-6.18")
COUNTS = (50, pytest.param(1000, marks=pytest.mark.slow))
GARBAGE = (
    "xZ_\x00\ufffd{}=-."  # no digit and no blank: a number that became another cannot be noticed
)


def damaged(text: str, chance: random.Random) -> str:
    """Return a file that was cut, or has garbage in it, or has lost or mixed its lines."""
    lines = text.splitlines(keepends=True)
    at = chance.randrange(len(text))
    kind = chance.randrange(4)
    if kind == 0:
        return text[:at]
    if kind == 1:
        garbage = "".join(chance.choice(GARBAGE) for _ in range(chance.randint(1, 4)))
        return text[:at] + garbage + text[at:]
    if kind == 2:
        chance.shuffle(lines)
        return "".join(lines)
    begin = chance.randrange(len(lines))
    return "".join(lines[:begin] + lines[begin + 1 :])


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
