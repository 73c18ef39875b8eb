"""What daemons hold over hours, memory, descriptors and threads, and whether that is flat."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

KINDS = ("rss_bytes", "descriptors", "threads")
ALLOWED = {"rss_bytes": 16 * 2**20, "descriptors": 4, "threads": 4}
ALLOWED_RATIO = {"rss_bytes": 0.1, "descriptors": 0.2, "threads": 0.2}
"""What a half may be above the one before: this share of it, or the amount above if that is more.

A JVM's pools breathe.
"""
LEAST_SAMPLES = 4  # of a half


@dataclass(frozen=True, slots=True)
class Sample:
    """All processes of one daemon together; `life` is another one after each start."""

    second: float
    daemon: str
    life: float
    rss_bytes: int
    descriptors: int
    threads: int


@dataclass(frozen=True, slots=True)
class Course:
    """One kind of what a daemon holds: the medians of two halves, of all or of the life that grew most."""

    daemon: str
    kind: str
    over: str  # "all" or "a life"
    first: float
    second: float

    @property
    def is_flat(self) -> bool:
        return self.second - self.first <= max(
            ALLOWED[self.kind], ALLOWED_RATIO[self.kind] * self.first
        )


def samples(second: float, unit: re.Pattern[str]) -> list[Sample]:
    """Return what is held now by each daemon whose group of processes matches; group 1 is its name."""
    found: dict[str, list[tuple[float, int, int, int]]] = {}
    for process in psutil.process_iter():
        try:
            group = unit.search(Path(f"/proc/{process.pid}/cgroup").read_text())
            if group is None:
                continue
            with process.oneshot():
                held = process.memory_info().rss, process.num_fds(), process.num_threads()
                found.setdefault(group[1], []).append((process.create_time(), *held))
        except (OSError, psutil.Error):  # it ended meanwhile
            continue
    return [_together(second, daemon, those) for daemon, those in sorted(found.items())]


def _together(second: float, daemon: str, those: Sequence[tuple[float, int, int, int]]) -> Sample:
    began, rss_bytes, descriptors, threads = zip(*those, strict=True)
    return Sample(second, daemon, min(began), sum(rss_bytes), sum(descriptors), sum(threads))


def courses(seen: Sequence[Sample], warm_up_seconds: float) -> list[Course]:
    """Return how what is held went, the first seconds of each life apart; too short a life is left out."""
    found = []
    for daemon, lives in _lives(seen, warm_up_seconds).items():
        together = [sample for life in lives for sample in life]
        for kind in KINDS:
            whole = _halves(together, kind)
            parts = [halves for life in lives if (halves := _halves(life, kind)) is not None]
            if whole is not None:
                found.append(Course(daemon, kind, "all", *whole))
            if parts:
                found.append(Course(daemon, kind, "a life", *max(parts, key=_growth)))
    return found


def table(found: Iterable[Course], lives: Mapping[str, int]) -> list[str]:
    """Return lines of Markdown: a row a daemon."""
    by_place = {(one.daemon, one.kind, one.over): one for one in found}
    lines = [
        "| daemon | lives | resident MiB: first half, second; most in a life | descriptors | threads |",
        "|---|---|---|---|---|",
    ]
    for daemon in sorted(lives):
        cells = [_cell(by_place, daemon, kind) for kind in KINDS]
        lines.append(f"| `{daemon}` | {lives[daemon]} | {' | '.join(cells)} |")
    return lines


def _cell(by_place: Mapping[tuple[str, str, str], Course], daemon: str, kind: str) -> str:
    unit = 2**20 if kind == "rss_bytes" else 1
    both = [by_place.get((daemon, kind, over)) for over in ("all", "a life")]
    return (
        "; ".join(f"{one.first / unit:.0f}, {one.second / unit:.0f}" for one in both if one) or "-"
    )


def _lives(seen: Sequence[Sample], warm_up_seconds: float) -> dict[str, list[list[Sample]]]:
    began: dict[tuple[str, float], float] = {}
    lives: dict[str, dict[float, list[Sample]]] = {}
    for sample in seen:
        first = began.setdefault((sample.daemon, sample.life), sample.second)
        if sample.second - first >= warm_up_seconds:
            lives.setdefault(sample.daemon, {}).setdefault(sample.life, []).append(sample)
    return {daemon: list(parts.values()) for daemon, parts in lives.items()}


def _halves(those: Sequence[Sample], kind: str) -> tuple[float, float] | None:
    """Return the medians of two halves by time; None when one has too few samples."""
    middle = (those[0].second + those[-1].second) / 2
    halves = (
        [getattr(one, kind) for one in those if one.second <= middle],
        [getattr(one, kind) for one in those if one.second > middle],
    )
    if min(map(len, halves)) < LEAST_SAMPLES:
        return None
    return median(halves[0]), median(halves[1])


def _growth(halves: tuple[float, float]) -> float:
    return halves[1] - halves[0]
