"""Has a bookie compact its entry logs, beside the load, again and again.

Needs: a Pulsar.
"""

from __future__ import annotations

import json
import urllib.request

from pydantic.dataclasses import dataclass

from soak.core.errors import LabError
from soak.core.plan_base import STRICT
from soak.core.units import Duration, duration_ns
from soak.lab.faults._stopped import Stopping
from soak.lab.ports import Target

_ASK_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    every: Duration = duration_ns("2s")

    def __post_init__(self) -> None:
        if self.every <= 0:
            raise ValueError("every must be above 0s")


def inject(target: Target, config: Config) -> Stopping:
    """Begin at once.

    Raises:
        LabError: the lab has no bookie.
    """
    bookie = target.broker.addresses.get("bookie_urls", "")
    if not bookie:
        raise LabError("compaction needs a lab's Pulsar: only a bookie compacts")
    request = urllib.request.Request(  # noqa: S310  # loopback
        f"{bookie}/api/v1/bookie/gc",
        json.dumps({"forceMajor": True, "forceMinor": True}).encode(),
        {"Content-Type": "application/json"},
        method="PUT",
    )

    def compact(active: Stopping) -> None:
        while True:
            at_wall_ns = target.clock.wall_ns()
            with urllib.request.urlopen(request, timeout=_ASK_SECONDS):  # noqa: S310  # as above
                active.has_begun(at_wall_ns)
            target.record({"at_wall_ns": at_wall_ns, "compaction": True})
            if active.is_lifted_in(config.every):
                return

    active = Stopping("compaction", target, compact)
    active.begin()
    return active
