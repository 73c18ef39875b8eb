"""A flood of findings: the alert daemon opens the store a few times a round, however many messages wait."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from soak.alerting.daemon import AlertDaemon
from soak.core.plan.text import load
from soak.store.findings.port import Findings
from soak.store.findings.store import FindingsFile, FindingsStore
from soak.store.run_folder import read_run
from tests.support.alerting.daemon import DELIVERED, RUN, AlertWorld, FakeRepeatingSink
from tests.support.alerting.findings import finding


@dataclass
class CountingPlace:
    """The findings of a run, and how often they were opened."""

    file: FindingsFile
    opened: int = 0

    def exists(self) -> bool:
        return self.file.exists()

    def open(self) -> AbstractContextManager[Findings]:
        self.opened += 1
        return self.file.open()

    def claim(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing is kept open."""


def opened_in_a_round(world: AlertWorld, waiting: int, sink: FakeRepeatingSink) -> list[int]:
    """Return how often each of two rounds opens the store while so many messages wait."""
    with FindingsStore(world.folder.findings) as store:
        for number in range(waiting):
            found = finding("confirmed", key=f"{RUN}-{200 + number}", run=RUN)
            store.save_finding(found, ["mail"], world.clock.wall_ns())
    plan = load(world.folder.plan.read_text(), "plan.yaml").plan
    place = CountingPlace(FindingsFile(world.folder.findings))
    daemon = AlertDaemon(
        world.folder,
        plan,
        read_run(world.folder),
        {"mail": sink},
        world.clock,
        findings=place,
    )
    counts = []
    for _ in range(2):
        before = place.opened
        daemon.poll()
        counts.append(place.opened - before)
        world.clock.advance(300)
    return counts


@pytest.mark.long
@pytest.mark.parametrize("waiting", [5, 100])
def test_messages_beyond_the_hourly_limit_cost_no_look_into_the_store(
    tmp_path: Path, waiting: int
) -> None:
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    world.change_plan("alerts: {max_per_hour: 2}")
    sink = FakeRepeatingSink(world.clock, DELIVERED)

    first, second = opened_in_a_round(world, waiting, sink)

    assert len(sink.messages) == 2
    assert first <= 20
    assert second <= 12
