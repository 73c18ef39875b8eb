"""Prints what a calibration came to: sentences for people, or one object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from detectors import _excursions, calibration
from detectors._quiet import Quiet
from detectors.level_shift import Config
from soak.core import wording
from soak.core.units import format_per_duration


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What was put in and what came out; `set_ns` is the mean time between two alarms that is set."""

    many: Sequence[Quiet]
    config: Config
    set_ns: int
    spacing_seconds: float
    within_seconds: Sequence[int]
    alarms: calibration.FalseAlarms
    power: Sequence[calibration.Power]

    @property
    def a_month(self) -> tuple[float, float, float]:
        """Return the false alarms to expect: the lowest, the middle, and the highest with 95 %."""
        return self.alarms.ratio.of(calibration.MONTH_NS / self.set_ns)


def text(found: Calibrated) -> Iterator[str]:
    for one in found.many:
        yield (
            f"{_title(one.series)}: {one.values.size} quiet rows about "
            f"{wording.amount(one.level, one.unit)}, {one.cut} steps cut out"
        )
    low, middle, high = (wording.amount(number, "") for number in found.a_month)
    yield (
        f"false alarms to expect: {middle} a month over a panel of {found.config.panel_size} such series "
        f"(95 %: {low} to {high}); {format_per_duration(found.set_ns)} is set"
    )
    for rung in found.alarms.rungs:
        apart = wording.span(rung.allowed_seconds * found.spacing_seconds)
        yield (
            f"  counted at 1 per {apart}: {rung.allowed:.0f} allowed, {rung.confirmed} confirmed, "
            f"{rung.warned} warned"
        )
    yield "  extended from there to the set rate on a straight line in the logs of both"
    piece, known = (
        wording.span(rows * found.spacing_seconds)
        for rows in (calibration.RUN_ROWS, _excursions.LEAST_ROWS)
    )
    yield (
        f"  counted in pieces of {piece}: from {known} of rows on, or later where rows hang together, the "
        "threshold comes to follow the noise, towards the set rate"
    )
    yield f"  of the kind {calibration.KIND}: drift, spikes and shares of slow messages are not simulated"
    yield f"smallest step up that is confirmed with {calibration.PROBABILITY:.0%} probability:"
    for seen in found.power:
        times = [
            f"within {wording.span(seconds)} {_step(seen, at)}"
            for at, seconds in enumerate(found.within_seconds)
        ]
        if not seen.is_known:
            times = ["not known: steps up are factors, and the level is not above zero"]
        yield f"  {_title(seen.series)}: {'; '.join(times)}"


def jsonl(found: Calibrated) -> Iterator[str]:
    low, middle, high = found.a_month
    yield json.dumps(
        {
            "what": "false_alarms",
            "kinds": [calibration.KIND],
            "set_seconds": found.set_ns / 1e9,
            "panel_size": found.config.panel_size,
            "expected_a_month": middle,
            "interval": [low, high],
            "counted": [
                {
                    "set_seconds": rung.allowed_seconds * found.spacing_seconds,
                    "allowed": rung.allowed,
                    "confirmed": rung.confirmed,
                    "warned": rung.warned,
                }
                for rung in found.alarms.rungs
            ],
        }
    )
    for seen in found.power:
        for at, seconds in enumerate(found.within_seconds):
            yield json.dumps(
                {
                    "what": "power",
                    "series": seen.series,
                    "within_seconds": seconds,
                    "probability": calibration.PROBABILITY,
                    "before": seen.before,
                    "after": seen.after[at],
                    "ratio": seen.ratio(at),
                    "is_known": seen.is_known,
                }
            )


def _step(seen: calibration.Power, at: int) -> str:
    after = seen.after[at]
    return "none that was tried" if after is None else wording.step(seen.before, after, seen.unit)


def _title(series: str) -> str:
    return wording.printable(wording.placed(series) if "|" in series else series)
