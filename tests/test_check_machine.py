"""What `soak check` tells of this machine, and what it warns of."""

from __future__ import annotations

from dataclasses import replace

from probes._timex import Timex
from soak.cli._machine import told
from soak.core.drive_check import DriveState
from soak.core.errors import NotAvailableError

KEPT = Timex(
    is_synchronised=True,
    offset_seconds=0.0,
    maxerror_seconds=0.023,
    estimated_error_seconds=0.0,
    frequency_adjustment_ratio=1.0,
)
STATE = DriveState(
    filesystem="ext4",
    options="rw,noatime",
    devices=("sda",),
    total_bytes=100,
    free_bytes=77,
    discard_bytes=2**30,
    write_cache="write back",
    trim_timer="disabled",
    trimmed_wall_ns=None,
)


def test_a_kept_clock_and_an_untrimmed_drive_are_told() -> None:
    """The bound of the one, the setting of the other and what it leads to."""
    clock, drive, warning = told(["/nowhere/data"], lambda: KEPT, lambda _: STATE)

    assert clock == "Clock: kept, off by at most 23 ms."
    assert drive == (
        "Drive of /nowhere/data: ext4 on sda; 23% full; fstrim.timer disabled; mounted rw,noatime."
    )
    assert "is never trimmed" in warning


def test_a_clock_that_nobody_keeps_is_a_warning() -> None:
    """End-to-end latency between hosts would then mean little."""
    (line,) = told([], lambda: replace(KEPT, is_synchronised=False))

    assert line.startswith("Warning: nobody keeps this host's clock")


def test_what_cannot_be_looked_at_is_told_and_refuses_no_plan() -> None:
    """A load's host has no broker's drive; a container may have no adjtimex."""

    def refused() -> Timex:
        raise NotAvailableError("adjtimex is refused")

    def absent(_directory: str) -> DriveState:
        raise FileNotFoundError(2, "No such file or directory")

    assert told(["/nowhere/data"], refused, absent) == [
        "Clock: unknown, adjtimex is refused.",
        "Drive of /nowhere/data: not on this host.",
    ]
