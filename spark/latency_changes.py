"""What changed in the latencies of a run, looking back at all of them together."""

from __future__ import annotations

from collections.abc import Sequence

from detectors import drift, kinds, segmentation
from soak.core.model import Change, Series

_LEVEL_SECONDS, _LEVEL_ROWS = 10, 3  # that a level lasts at least, whichever is longer


def changes_together(many: Sequence[Series], step: int) -> list[tuple[Change, ...]]:
    """Return steps, drifts, spikes and tails in order of onset; `step` seconds lie between two rows.

    What several series did at one time is one step: a change of each, clearest first.
    """
    config = segmentation.Config(least_rows=max(_LEVEL_ROWS, _LEVEL_SECONDS // step))
    worth = drift.Config()
    steps = segmentation.detect_together(many, config)
    return kinds.told_together([(series, worth) for series in many], steps)
