"""Which seconds of one source count: in order, of the soak and not at its edges, trusted; as for steps."""

from __future__ import annotations

from dataclasses import dataclass

EDGE_SECONDS = 5
LONG_GAP = 600


@dataclass(slots=True)
class Gate:
    """The last second of a source, and where its phase began."""

    last_k: int = -(2**62)
    inc: int = 0
    edge_k: int = -(2**62)
    phase: str = ""

    def is_new(self, k: int, inc: int) -> bool:
        return (inc, k) > (self.inc, self.last_k)

    def is_apart(self, k: int) -> bool:
        """True when second `k` is no continuation: after a long gap, or by a clock that was set back."""
        return not 0 < k - self.last_k <= LONG_GAP

    def counts(self, k: int, inc: int, phase: str, *, is_trusted: bool) -> bool:
        """Take a second that is new; return whether its values count."""
        if self.is_apart(k):
            self.edge_k = min(self.edge_k, k)  # it was of the seconds before
        self.last_k, self.inc = k, inc
        if phase != self.phase:
            if self.phase:
                self.edge_k = k + EDGE_SECONDS
            self.phase = phase
        return phase == "soak" and k >= self.edge_k and is_trusted
