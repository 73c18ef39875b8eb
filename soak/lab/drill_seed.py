"""Moves a drill's fault by some seconds, as a seed says, so that no two runs of it are alike.

A fault that begins at a second begins later. One that is there before the load is felt from a limit on: the
retention of the plan's topic, or the fault's own `after`; then that limit is moved.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

from soak.core.plan import Plan
from soak.core.units import SECOND_NS
from soak.lab.drill import Drill

JITTER_SECONDS = 15
_TIME, _SIZE = "retention.ms", "retentionSizeInMB"
"""Kafka's limit, and Pulsar's."""


def moved(found: Drill, plan: Plan, seed: int) -> tuple[Drill, Plan]:
    """Have the fault felt at most `JITTER_SECONDS` later, and end the soak as much later.

    What follows has its time so. Seed 0 moves nothing, and a drill that has no such limit stays what it is.
    """
    if not seed:
        return found, plan
    later_ns = int(random.Random(seed).uniform(0, JITTER_SECONDS) * SECOND_NS)
    later = found, plan
    if found.begin_ns:
        later = replace(found, begin_ns=found.begin_ns + later_ns), plan
    elif getattr(found.fault, "after", 0):
        fault = replace(found.fault, after=found.fault.after + later_ns)
        later = replace(_lifted_later(found, later_ns), fault=fault), plan
    elif {_TIME, _SIZE} & plan.topic.settings.keys():
        later = _lifted_later(found, later_ns), _kept_longer(plan, later_ns)
    else:
        return later
    soak_ns = plan.phases.soak + math.ceil(later_ns / SECOND_NS) * SECOND_NS
    drill, changed = later
    return drill, replace(changed, phases=replace(plan.phases, soak=soak_ns))


def _lifted_later(found: Drill, later_ns: int) -> Drill:
    """Return a drill whose fault, there from the start of the run, is lifted later, if it is at all."""
    return replace(found, length_ns=found.length_ns + later_ns) if found.length_ns else found


def _kept_longer(plan: Plan, later_ns: int) -> Plan:
    """Return a plan whose topic keeps what is sent for so much longer."""
    settings = dict(plan.topic.settings)
    if _TIME in settings:
        settings[_TIME] = str(int(settings[_TIME]) + later_ns // 10**6)
    else:
        sent = float(plan.load.rate) * plan.load.mean_size * later_ns / SECOND_NS
        settings[_SIZE] = str(int(settings[_SIZE]) + math.ceil(sent / 2**20))
    return replace(plan, topic=replace(plan.topic, settings=settings))
