"""The runs of one producer stream, for tests that have a single one."""

from __future__ import annotations

import numpy as np

from soak.core.model import Span
from soak.core.streams import Ints, spans_by


def spans(sequence: Ints, offset: Ints, block_bits: int = 0) -> tuple[Span, ...]:
    return spans_by(np.zeros_like(sequence), sequence, offset, block_bits).get(0, ())
