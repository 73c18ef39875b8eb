"""When a run is over: nothing that has still to be said is cut off, and nothing is waited for in vain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from soak.core import plan_text
from soak.core.journal_text import End, encode
from soak.core.phases import to_line
from soak.daemons.context import host_name
from soak.daemons.finish import OVERDUE_NS, Ending
from soak.daemons.supervise import DETECT_LIMIT_NS
from soak.store.run_folder import RunFolder, exclusive
from tests.fakes import FakeClock

PLAN = "name: p\nbroker: {kafka: {}}\n"


class World:
    def __init__(self, path: Path) -> None:
        self.folder, self.clock = RunFolder(path), FakeClock()
        plan = plan_text.load(PLAN, "p").plan
        self.ending = Ending(self.folder, plan, self.clock)
        self.folder.spark.mkdir()
        self._sources = plan.measuring

    def decide_end(self) -> None:
        self.folder.phases.write_text(to_line("soak", 0) + to_line("end", 10))

    def end_sources(self) -> None:
        for name in self._sources:
            source = self.folder.journal / f"{name}@{host_name()}"
            source.mkdir(parents=True)
            (source / "000000.jsonl").write_bytes(encode(End(1)))

    def detect(self, *, is_running: bool) -> None:
        (self.folder.spark / "progress.json").write_text(json.dumps({"is_running": is_running}))

    def is_over(self) -> bool:
        return self.ending.is_over(10)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_run_is_over_when_all_have_said_their_last_word(world: World) -> None:
    """The conductor, then what measures, then the detector."""
    seen = [world.is_over()]
    world.decide_end()
    seen.append(world.is_over())
    world.end_sources()
    seen.append(world.is_over())
    world.detect(is_running=False)
    seen.append(world.is_over())

    assert seen == [False, False, False, True]


def test_the_last_second_must_have_passed(world: World) -> None:
    world.decide_end()
    world.end_sources()
    world.detect(is_running=False)

    assert not world.ending.is_over(9)


def test_a_detector_that_was_started_again_is_waited_for(world: World, tmp_path: Path) -> None:
    """What it wrote down before it was stopped is not its last word."""
    world.decide_end()
    world.end_sources()
    world.detect(is_running=False)
    with exclusive(tmp_path / "spark" / "lock", "test"):
        meanwhile = world.is_over()

    assert not meanwhile
    assert world.is_over()


def test_what_never_ends_is_waited_for_so_long_and_no_longer(world: World) -> None:
    """A producer that hangs, then a detector that keeps dying."""
    world.decide_end()
    world.detect(is_running=True)
    seen = [world.is_over()]
    for _ in range(2):
        world.clock.advance(max(OVERDUE_NS, DETECT_LIMIT_NS) / 1e9 + 1)
        seen.append(world.is_over())

    assert seen == [False, False, True]
