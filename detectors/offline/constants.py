"""All numbers that the offline analysis was given, each with what fixes it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constants:
    """Numbers of the method; the settings of a user are in `steps.Config`."""

    block_seconds: float = 10.0
    """Rows are averaged over so long: a stall of some seconds is no level."""
    fewest_blocks: int = 60
    """A short series has shorter blocks, so that it has at least so many: its noise must be seen."""
    level_blocks: int = 3
    """Shortest level, half a minute. On labelled traces 3 and 4 are alike, 5 loses the shortest levels."""
    clip_sd: float = 4.0
    """A value farther from the running median counts as so far: of normal values 0.006 % are."""
    local_blocks: int = 35
    """On each side, in which the size of the noise is measured; 20 to 70 are alike on labelled traces."""
    longer_side: int = 4
    """A short level is also compared with so many times its blocks: 21 % less noise than with as many."""
    windows: int = 3
    """A series must hold both sides of a contrast so often, or most windows contain the step itself."""
    normal_excess: float = 1.1
    """Threshold over that of normal noise: change-free noise of varying size and Student t noise need it."""
    price_rows: float = 12.0
    """Area that a proposed cut must gain, in rows of 240 s; 10 to 14 are alike on labelled traces."""
    levels: int = 16
    """Thresholds between the 1 % and the 99 % quantile; 12 to 32 are alike on labelled traces."""
    piece_blocks: int = 3000
    """Searched at once: the time of the exact search grows with the square of the blocks."""


CONSTANTS = Constants()
