"""How often a series rose so far above its level before: what was so all along is no news.

Method:  each rise past one of 18 heights counts once, in blocks of two minutes at first. When there are
         eight, each two become one, up to 16 minutes; from then on the oldest goes. Heights are counted in
         smallest steps above the median of the last minute, so a new level is one rise, not many.
Assumes: a row a second or fewer; what was not measured has no block.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log
from typing import Any

HEIGHTS = 18
_LOG_RATIO = log(1.2)  # of a height to the one below it
_BLOCKS = 8
_SHORTEST, _LONGEST = 120, 960  # seconds
_MOST = 255
_PART_HEIGHT = 0.65  # of a rise, or the next height above that: as high as it
_PART_OFTEN = 0.4  # of how often it comes now
_PART_BLOCKS = 2 / 3


@dataclass(slots=True)
class _Block:
    first_k: int
    rows: int = 0
    counts: bytearray = field(default_factory=lambda: bytearray(HEIGHTS))


@dataclass(slots=True)
class Crossings:
    """The rises of one series in the hours before."""

    seconds: int = _SHORTEST  # of a block
    height: int = 0  # passed by the last row
    blocks: list[_Block] = field(default_factory=list)

    def take(self, k: int, steps: float) -> None:
        """Take a row that lies so many smallest steps above the level; NaN where that is not known."""
        if not self.blocks or k >= self.blocks[-1].first_k + self.seconds:
            self._begin(k)
        block, height = self.blocks[-1], _height(steps)
        block.rows += 1
        for at in range(self.height, height):
            block.counts[at] = min(_MOST, block.counts[at] + 1)
        self.height = height

    def were_as_often(self, steps: float, every_rows: float, before_k: int) -> bool:
        """True when rises so high were about as frequent in most blocks that ended before a second."""
        at = _height(_PART_HEIGHT * steps)
        if at >= HEIGHTS:  # higher than what is counted
            return False
        ended = self._ended(before_k)
        often = [
            block.counts[at] >= max(1.0, _PART_OFTEN * block.rows / every_rows) for block in ended
        ]
        return bool(ended) and sum(often) >= _PART_BLOCKS * len(ended)

    def forget(self, from_k: int) -> None:
        """Leave out the blocks that did not end before this second."""
        self.blocks = self._ended(from_k)

    def to_state(self) -> dict[str, Any]:
        """Return the state for JSON."""
        return {
            "seconds": self.seconds,
            "height": self.height,
            "blocks": [[one.first_k, one.rows] for one in self.blocks],
            "counts": b64encode(b"".join(one.counts for one in self.blocks)).decode(),
        }

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Crossings:
        """Return what `to_state` described."""
        counts = bytearray(b64decode(state["counts"]))
        blocks = [
            _Block(first_k, rows, counts[at * HEIGHTS : (at + 1) * HEIGHTS])
            for at, (first_k, rows) in enumerate(state["blocks"])
        ]
        return cls(state["seconds"], state["height"], blocks)

    def _ended(self, by_k: int) -> list[_Block]:
        followed = zip(self.blocks, self.blocks[1:], strict=False)
        return [block for block, following in followed if following.first_k <= by_k]

    def _begin(self, k: int) -> None:
        if len(self.blocks) == _BLOCKS and self.seconds < _LONGEST:
            self.seconds *= 2
            self.blocks = [
                _joined(*self.blocks[at : at + 2]) for at in range(0, len(self.blocks), 2)
            ]
        self.blocks = [*self.blocks[-_BLOCKS + 1 :], _Block(k)]


def _joined(one: _Block, other: _Block) -> _Block:
    both = zip(one.counts, other.counts, strict=True)
    counts = bytearray(min(_MOST, left + right) for left, right in both)
    return _Block(one.first_k, one.rows + other.rows, counts)


def _height(steps: float) -> int:
    """Return how many of the heights lie below so many smallest steps, the first being one."""
    return min(HEIGHTS, 1 + int(log(steps) / _LOG_RATIO)) if steps >= 1.0 else 0
