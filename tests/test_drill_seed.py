"""A seed has the fault of every drill felt some seconds later, and leaves what follows its time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from soak.cli import _checks, _lab_drill
from soak.core.plan import Plan
from soak.core.plan_load import SizeShare
from soak.core.units import SECOND_NS
from soak.lab import drill_seed
from soak.lab.drill import Drill


def of(name: str) -> tuple[Drill, Plan]:
    found = _lab_drill.find(name)
    return found, _checks.load_plan(found.plan).plan


def felt_seconds(found: Drill, plan: Plan) -> float:
    """Return from when on it can be felt, in seconds of the run."""
    if found.begin_ns:
        return found.begin_ns / SECOND_NS
    if hasattr(found.fault, "after"):
        return float(found.fault.after / SECOND_NS)
    if "retention.ms" in plan.topic.settings:
        return int(plan.topic.settings["retention.ms"]) / 1000
    sent = float(plan.load.rate) * plan.load.message_size
    return int(plan.topic.settings["retentionSizeInMB"]) * 2**20 / sent


@pytest.mark.parametrize("name", _lab_drill.known())
def test_every_drill_that_ships_is_moved_by_a_seed(name: str) -> None:
    """The soak is as much longer, rounded up, and a fault that is lifted stays as long as it did."""
    found, plan = of(name)

    later, longer = drill_seed.moved(found, plan, 23)

    moved = felt_seconds(later, longer) - felt_seconds(found, plan)
    more = (longer.phases.soak - plan.phases.soak) / SECOND_NS
    lifted = (later.begin_ns + later.length_ns - found.begin_ns - found.length_ns) / SECOND_NS
    assert 0 < moved < drill_seed.JITTER_SECONDS + 1
    assert abs(math.ceil(moved) - more) <= 1  # megabytes are whole
    assert abs(lifted - moved) <= 1 if found.length_ns else True


def test_a_seed_moves_always_alike_and_another_one_otherwise() -> None:
    """A run can be made again."""
    found, plan = of("drive_delay")

    begins = [drill_seed.moved(found, plan, seed)[0].begin_ns for seed in (1, 1, 2)]

    assert begins[0] == begins[1] != begins[2]


def test_a_topic_keeps_longer_what_a_mixture_of_sizes_brings() -> None:
    """Not what the one size would that it replaces."""
    found, plan = of("retention_cliff_pulsar")
    mixture = (SizeShare(size=512, share=0.5), SizeShare(size=127 * 512, share=0.5))
    mixed = replace(plan, load=replace(plan.load, message_size=64, message_sizes=mixture))
    alike = replace(plan, load=replace(plan.load, message_size=32 * 1024))

    moved = [drill_seed.moved(found, one, 23)[1].topic.settings for one in (mixed, alike)]

    assert "retentionSizeInMB" in moved[0]
    assert moved[0] == moved[1]


def test_no_seed_moves_nothing() -> None:
    """Nor does any where there is nothing to move."""
    found, plan = of("retention_cliff")
    endless = replace(plan, topic=replace(plan.topic, settings={}))

    assert drill_seed.moved(found, plan, 0) == (found, plan)
    assert drill_seed.moved(found, endless, 1) == (found, endless)
