"""What the host that receives says of its run, and how often."""

from __future__ import annotations

from pathlib import Path

from soak.core.announcement import Announcement
from soak.core.clock import Grid
from soak.core.phases import to_line
from soak.daemons.announce import Announcing
from soak.daemons.context import PhaseFile
from soak.store.run_folder import Run, write_atomically
from tests.fakes import FakeClock
from tests.spoken_runs import START_NS, word


class Heard:
    """Keeps what was said."""

    def __init__(self) -> None:
        self.words: list[Announcement] = []
        self.is_closed = False

    def say(self, announcement: Announcement) -> None:
        self.words.append(announcement)

    def close(self) -> None:
        self.is_closed = True


def test_a_run_is_announced_every_five_seconds_with_its_end_and_when_it_is_over(
    tmp_path: Path,
) -> None:
    """A host that comes later hears it soon; one that is in the run hears where it ends."""
    clock, heard, phases = FakeClock(), Heard(), tmp_path / "phases.jsonl"
    run = Run("r1", START_NS, "a", {}, "running", "x")
    grid = Grid.anchored(START_NS, clock)
    announcing = Announcing(heard, run, PhaseFile(phases), grid, clock)

    for second in range(13):
        if second == 7:
            write_atomically(phases, to_line("soak", 0) + to_line("end", 12))
        announcing.poll()
        clock.advance(1)
    announcing.close()

    assert heard.words == [
        word(said_k=0),
        word(said_k=5),
        word(said_k=10, end_k=12),
        word(said_k=13, end_k=12, is_over=True),
    ]
    assert heard.is_closed
