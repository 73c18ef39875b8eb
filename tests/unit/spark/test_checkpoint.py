"""Whether the detector's query makes progress: a hung batch must not pass for a quiet hour."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from soak.core.units import SECOND_NS
from spark.streaming.checkpoint import LOOK_NS, Headway
from tests.support.fakes import FakeClock

LOOK_SECONDS = LOOK_NS / SECOND_NS


class World:
    def __init__(self, path: Path) -> None:
        self._checkpoint, self._source = path / "checkpoint", path / "journal" / "produce.0@h"
        for folder in (self._source, self._checkpoint / "commits", self._checkpoint / "offsets"):
            folder.mkdir(parents=True)
        self._batch = -1
        self._clock = FakeClock()
        self._headway = Headway(self._checkpoint, self._source.parent, self._clock)

    def record(self) -> None:
        with (self._source / "000000.jsonl").open("a") as file:
            file.write("a line\n")

    def commit(self) -> None:
        """As Spark does, of all that is there."""
        self._batch += 1
        end = [0, (self._source / "000000.jsonl").stat().st_size]
        lines = ["v1", "{}", json.dumps({self._source.name: end})]
        (self._checkpoint / "offsets" / str(self._batch)).write_text("\n".join(lines))
        (self._checkpoint / "commits" / str(self._batch)).touch()

    def has_progressed(self, seconds: float = 0) -> bool:
        self._clock.advance(seconds)
        return self._headway.has_progressed()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_batch_that_never_ends_is_no_progress(world: World) -> None:
    """Also the first one; one more commit, and all is well."""
    world.record()
    seen = [world.has_progressed(), world.has_progressed(3600), world.has_progressed(1)]
    world.commit()
    seen.append(world.has_progressed())

    assert seen == [False, False, False, True]


def test_each_batch_is_progress_however_much_is_left(world: World) -> None:
    seen = []
    for _ in range(5):
        world.record()
        world.commit()
        world.record()
        seen += [world.has_progressed(300), world.has_progressed(1)]

    assert seen == [True, False] * 5


def test_with_nothing_to_take_in_a_query_may_be_silent(world: World) -> None:
    """A paused load, looked at every ten seconds; the first line after it is something to take in."""
    quiet = [world.has_progressed(), world.has_progressed(1), world.has_progressed(LOOK_SECONDS)]
    world.record()

    assert quiet == [True, False, True]
    assert not world.has_progressed(LOOK_SECONDS)
