"""What `soak probe --once` says of each probe: its numbers, or in a person's words why it has none."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from soak.cli._once import Seen, look, show
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.model import Column, Reading
from tests.fakes import FakeClock, FakeProbe, HangingProbe

DEVICE = (("device", "vda"),)
AWAIT = Column("disk_write_await_seconds", DEVICE, "seconds")
BYTES = Column("disk_capacity_bytes", DEVICE, "bytes")
P99 = Column("fsync_latency_seconds", (("directory", "/d"), ("quantile", "0.99")), "seconds")


def shown(seen: dict[str, Seen]) -> str:
    text = io.StringIO()
    show(seen, Console(file=text, width=100, highlight=False))
    return text.getvalue()


def test_each_probe_is_a_block_with_what_it_gave_in_any_of_its_readings() -> None:
    """Labels that all share stand above; the names of real probes say what they are."""
    first, later = Reading(((BYTES, 2.74877906944e11),)), Reading(((AWAIT, 0.000132304),))
    flush = FakeProbe(Reading(((P99, 0.0023),)))

    text = shown(look({"disk_io": FakeProbe(first, later), "fsync": flush}, FakeClock()))

    assert text.splitlines()[2:5] == [
        "  device=vda",
        "  disk_capacity_bytes        274,877,906,944  bytes",
        "  disk_write_await_seconds       0.000132304  seconds",
    ]
    assert "  directory=/d quantile=0.99" in text
    assert text.endswith("here: disk_io, fsync\n")


def test_what_gives_nothing_says_why() -> None:
    """Absent, failed and silent are different things."""
    probes = {
        "smart": FakeProbe(NotAvailableError("no smartctl")),
        "clock": FakeProbe(ProbeError("cannot read it")),
        "pressure": FakeProbe(Reading(())),
        "disk_io": FakeProbe(Reading(((AWAIT, 1.0),))),
    }

    text = shown(look(probes, FakeClock()))

    assert "  not here: no smartctl\n" in text
    assert "  failed: cannot read it\n" in text
    assert "  nothing to tell within these seconds\n" in text
    assert text.splitlines()[-4:] == [
        "here: disk_io",
        "not here: smart",
        "failed: clock",
        "silent: pressure",
    ]


def test_one_that_hangs_is_said_to_hang() -> None:
    """And is not waited for again."""
    hanging = HangingProbe(Reading(()))

    text = shown(look({"host": hanging}, FakeClock(), patience_seconds=0.05))
    hanging.let_go.set()

    assert "  it has not answered: something that it reads hangs\n" in text
    assert text.endswith("here: none\nhanging: host\n")


class InterruptedClock(FakeClock):
    """Somebody presses Ctrl-C while the second reading is waited for."""

    def sleep_until(self, mono_ns: int) -> None:
        super().sleep_until(mono_ns)
        if mono_ns:
            raise KeyboardInterrupt


def test_an_interrupt_closes_the_probes_too() -> None:
    """One of them has a file on the drive that is looked at."""
    probe = FakeProbe(Reading(()))

    with pytest.raises(KeyboardInterrupt):
        look({"fsync": probe}, InterruptedClock())

    assert probe.is_closed
