"""The pressure probe on recorded kernels."""

from __future__ import annotations

import shutil
from pathlib import Path, PosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.pressure import Config, Pressure, parse
from soak.core.errors import NotAvailableError, ProbeError
from tests.support.fakes import FakeClock, refuse
from tests.support.paths import RECORDED

TEXT = (RECORDED / "linux-6.18/before/pressure/io").read_text()

WITHOUT_IRQ = {
    "node_pressure_cpu_waiting_seconds": 0.023,
    "node_pressure_io_waiting_seconds": 0.46,
    "node_pressure_io_stalled_seconds": 0.345,
    "node_pressure_memory_waiting_seconds": 0.0,
    "node_pressure_memory_stalled_seconds": 0.0,
}


def readings(tmp_path: Path, kernel: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return two readings two seconds apart."""
    clock = FakeClock()
    probe = Pressure(Config(), clock, proc=tmp_path)
    found = []
    for moment in ("before", "after"):
        shutil.copytree(RECORDED / kernel / moment, tmp_path, dirs_exist_ok=True)
        found.append({column.metric: value for column, value in probe.read().samples})
        clock.advance(2)
    return found[0], found[1]


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("linux-5.4", WITHOUT_IRQ),
        ("linux-6.18", WITHOUT_IRQ | {"node_pressure_irq_stalled_seconds": 0.00115}),
    ],
)
def test_each_kernel_has_its_ratios_of_waiting(
    tmp_path: Path, kernel: str, expected: dict[str, float]
) -> None:
    """Irq exists in newer kernels, and the `full` line of cpu means nothing."""
    first, second = readings(tmp_path, kernel)

    assert first == {}
    assert second == pytest.approx(expected)


def test_a_kernel_without_pressure_is_not_available() -> None:
    """Reported once, and not counted as a failure."""
    probe = Pressure(Config(), FakeClock(), proc=RECORDED / "linux-3.10/before")

    with pytest.raises(NotAvailableError, match="no pressure information"):
        probe.read()


class HiddenPath(PosixPath):
    """A file that a sandbox hides."""

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        refuse(encoding, errors)


def test_pressure_that_is_hidden_from_this_process_is_not_available() -> None:
    """Reported once: it stays so for as long as the process lives."""
    probe = Pressure(Config(), FakeClock(), proc=HiddenPath("/proc"))

    with pytest.raises(NotAvailableError, match="hidden from this process"):
        probe.read()


@pytest.mark.long
@given(cut=st.integers(0, len(TEXT) - 1))
def test_a_cut_text_is_an_error_or_correct(cut: int) -> None:
    """A cut total must not be taken for a smaller one."""
    try:
        found = parse(TEXT[:cut])
    except ProbeError:
        return

    assert found.items() <= parse(TEXT).items()


@given(text=st.text())
def test_any_other_text_is_an_error(text: str) -> None:
    """Never a crash."""
    with pytest.raises(ProbeError):
        parse(text)
