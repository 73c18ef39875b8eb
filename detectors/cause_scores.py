"""Bands that all causes score in, so that their scores compare; what lies below 0.5 is never named."""

from __future__ import annotations

CERTAIN = 0.95  # at the onset, specific to the cause, and latency follows it second by second
STRONG = 0.85  # at the onset, specific to the cause, and all that could contradict it was measured
LIKELY = 0.65  # at the onset, but something that could contradict it is not known
SO_FAR = 0.5  # at the onset, and the seconds that may take it back have not come yet
WEAK = 0.4  # seen, but there may be another reason for it

_WIDTH = 0.1


def graded(band: float, share: float) -> float:
    """Return a score in a band; within it the cause comes first that accounts for more of the step."""
    return band - _WIDTH * (1.0 - max(0.0, min(1.0, share)))
