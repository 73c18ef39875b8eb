"""Which steps of a latency are told or may yet be: a tail beside one is the step's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from detectors.channels import latency_of, source_of
from soak.core.model import Change

_SECONDS = 60  # a step of the same latency raised so near tells it already


@dataclass(slots=True)
class NearSteps:
    """When a step was last raised: of those told by latency, of those that wait by series."""

    told_k: dict[str, int] = field(default_factory=dict)
    waiting_k: dict[str, int] = field(default_factory=dict)

    def note(self, step: Change) -> None:
        """Take what is said of a step; one that is withdrawn was none."""
        if step.state == "warning":
            self.waiting_k[step.series] = step.raised_k
        elif step.state in {"confirmed", "withdrawn"}:
            self.waiting_k.pop(step.series, None)
        if step.state == "confirmed":
            self.told_k[latency_of(step.series)] = step.raised_k

    def forget(self, source: str) -> None:
        """Forget what was told of a source whose clock was set back: it would lie in what is to come."""
        told = self.told_k.items()
        self.told_k = {name: k for name, k in told if source_of(name) != source}

    def beside(self, latency: str, onset_k: int) -> Literal["told", "waiting", "none"]:
        """Return whether a step of a latency was raised about this second or later."""
        since_k = onset_k - _SECONDS
        if self.told_k.get(latency, since_k) > since_k:
            return "told"
        waits = (k > since_k and latency_of(name) == latency for name, k in self.waiting_k.items())
        return "waiting" if any(waits) else "none"

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> NearSteps:
        """Return what `dataclasses.asdict` described, once through JSON."""
        return cls(state["told_k"], state["waiting_k"])
