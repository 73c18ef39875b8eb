"""What the brokers' drives can do without load, and whether they are alike.

Published comparisons hang on this: fsync p99 of drives of one instance type differs from 1 to 6 ms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

Moment = Literal["before", "during", "after"]
Trim = Literal["enabled", "disabled", "unknown"]

MAX_RATIO = 2.0
"""Drives that differ by more than this get a warning."""

_FULL_RATIO = 0.9


@dataclass(frozen=True, slots=True)
class DriveState:
    """The setup of a drive. `discard_bytes`: maximum of one trim request, 0 if it cannot be trimmed."""

    filesystem: str
    options: str  # of the mount and of its filesystem
    devices: tuple[str, ...]
    total_bytes: int
    free_bytes: int
    discard_bytes: int | None
    write_cache: str  # "write back", "write through", or "" if the kernel does not say
    trim_timer: Trim
    trimmed_wall_ns: int | None  # when the timer last ran
    used_bytes: int | None = None  # None in checks of earlier versions

    @property
    def fill_ratio(self) -> float:
        """Return how full the filesystem is, as df does: blocks kept for root are neither used nor free."""
        used = self.total_bytes - self.free_bytes if self.used_bytes is None else self.used_bytes
        whole = used + self.free_bytes
        return used / whole if whole else 0.0

    @property
    def is_trimmed_at_once(self) -> bool:
        words = {word.partition("=")[0] for word in self.options.split(",")}
        return "discard" in words

    @property
    def words(self) -> str:
        """Return the setup as one line of text."""
        return "; ".join(
            [
                f"{self.filesystem} on {', '.join(self.devices) or 'no block device'}",
                f"{self.fill_ratio:.0%} full",
                f"fstrim.timer {self.trim_timer}",
                f"mounted {self.options}",
            ]
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one drive at one moment; None: could not be measured, `trouble` says why."""

    host: str
    directories: tuple[str, ...]  # on this drive
    moment: Moment
    at_wall_ns: int
    flushes: int = 0
    fsync_p50_seconds: float | None = None
    fsync_p99_seconds: float | None = None
    write_bytes_per_second: float | None = None
    state: DriveState | None = None
    trouble: str = ""

    @property
    def name(self) -> str:
        return f"{self.host}:{self.directories[0]}"


_FIGURES = {
    "fsync_p50_seconds": "fsync p50",
    "fsync_p99_seconds": "fsync p99",
    "write_bytes_per_second": "write throughput",
}


def warnings(several: Sequence[Measured]) -> list[str]:
    """Return differences that make a comparison of runs or brokers unfair, one sentence each."""
    return [*_unequal(several), *_changed(several), *_settings(several)]


def to_json(one: Measured) -> dict[str, Any]:
    return asdict(one)


def from_json(body: Mapping[str, Any]) -> Measured:
    """Return the measurements that `to_json` described.

    Raises:
        TypeError, KeyError: it is something else.
    """
    state = body["state"]
    if state is not None:
        state = DriveState(**{**state, "devices": tuple(state["devices"])})
    return Measured(**{**body, "directories": tuple(body["directories"]), "state": state})


def _unequal(several: Sequence[Measured]) -> Iterator[str]:
    """Yield a warning for each moment and figure in which drives differ too much; the last value counts."""
    for moment in dict.fromkeys(one.moment for one in several):
        newest = {one.name: one for one in several if one.moment == moment}
        for figure, words in _FIGURES.items():
            found = [
                (value, name)
                for name, one in newest.items()
                if (value := getattr(one, figure)) is not None
            ]
            low, high = min(found, default=(0.0, "")), max(found, default=(0.0, ""))
            if low[0] > 0 and high[0] > MAX_RATIO * low[0]:
                times = f"{high[0] / low[0]:.1f} times"
                yield f"{words} {moment} the load: {high[1]} has {times} that of {low[1]}"


def _changed(several: Sequence[Measured]) -> Iterator[str]:
    """Yield a warning for each drive that became slower."""
    for name in dict.fromkeys(one.name for one in several):
        of_one = sorted(
            (one for one in several if one.name == name), key=lambda one: one.at_wall_ns
        )
        for earlier, later in pairwise(of_one):
            before, after = earlier.fsync_p99_seconds, later.fsync_p99_seconds
            if before and after and after > MAX_RATIO * before:
                times = f"{after / before:.1f} times"
                yield (
                    f"fsync p99 of {name} was {times} as long {later.moment} the load as "
                    f"{earlier.moment} it"
                )


def _settings(several: Sequence[Measured]) -> Iterator[str]:
    latest = {one.name: one for one in several}
    for name, one in latest.items():
        state = one.state
        if one.trouble:
            yield f"{name}: {one.trouble}"
        if state is None:
            continue
        is_never_trimmed = state.trim_timer == "disabled" and not state.is_trimmed_at_once
        if state.discard_bytes and is_never_trimmed:
            yield (
                f"{name} is never trimmed, neither by fstrim.timer nor by the mount option discard: "
                "a flash drive runs out of erased blocks the sooner"
            )
        if state.fill_ratio > _FULL_RATIO:
            yield f"{name} is {state.fill_ratio:.0%} full"
