"""What changed in the latencies of a run, looking back at all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from detectors import drift, kinds, level_shift, segmentation
from soak.core.model import Change, Series
from soak.core.units import SECOND_NS

_LEVEL_SECONDS, _LEVEL_ROWS = 10, 3  # that a level lasts at least, whichever is longer
_RESERVE = 0.3  # of the threshold of other kinds than steps


def changes_together(
    many: Sequence[Series], step: int, plan: level_shift.Config
) -> list[tuple[Change, ...]]:
    """Return steps, drifts, spikes and tails in order of onset; `step` seconds lie between two rows.

    What several series did at one time is one step: a change of each, clearest first. What is worth telling
    is what the plan tells online.
    """
    config = segmentation.Config(
        smallest_step_ratio=plan.smallest_step_ratio,
        smallest_step_seconds=plan.smallest_step_seconds,
        least_rows=max(_LEVEL_ROWS, _LEVEL_SECONDS // step),
    )
    worth = drift.Config(
        threshold=log(plan.false_alarms / SECOND_NS) + log(plan.panel_size) + _RESERVE,
        smallest_step_ratio=plan.smallest_step_ratio,
        smallest_step_seconds=plan.smallest_step_seconds,
    )
    steps = segmentation.detect_together(many, config)
    return kinds.told_together([(series, worth) for series in many], steps)
