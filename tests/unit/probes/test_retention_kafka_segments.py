"""Segments: each creation, rename and unlink of a file is one event, in time and at little cost."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.retention_kafka import segments as kafka_files
from probes.retention_kafka.segments import FileSize, Segments, changed_ns, listing, size
from soak.core.units import SECOND_NS
from tests.support.fakes import FakeClock
from tests.support.probes.fake_folders import FakeFolders

LONG_NS = 60 * SECOND_NS


class TickingClock(FakeClock):
    """A clock that a look at the time moves: a fake disk takes no time of its own."""

    step_ns = 0

    def mono_ns(self) -> int:
        self.advance_ns(self.step_ns)
        return super().mono_ns()


def test_an_unchanged_folder_is_not_listed_again() -> None:
    """Ten thousand folders cost two calls each."""
    clock = FakeClock()
    folders = FakeFolders(clock)
    folders.roll("/a/t-0", 0, 100)
    segments = Segments(["/a"], clock, folders)
    clock.advance(1)

    for _ in range(23):
        segments.scan([("t", 0)], LONG_NS)
        clock.advance(1)

    assert folders.listed == 1


def test_a_change_in_the_clock_tick_of_the_last_reading_is_not_missed() -> None:
    """The mtime of the folder may stay the same."""
    clock = FakeClock()
    folders = FakeFolders(clock, tick_ns=10**7)
    folders.roll("/a/t-0", 0, 100)
    segments = Segments(["/a"], clock, folders)
    segments.scan([("t", 0)], LONG_NS)
    folders.roll("/a/t-0", 23, 100)
    clock.advance(1)

    (event,) = segments.scan([("t", 0)], LONG_NS)

    assert event.fields["base_offset"] == 23


def test_a_closed_segment_has_its_final_size() -> None:
    """Although the folder's mtime did not change as it grew."""
    clock = FakeClock()
    folders = FakeFolders(clock)
    folders.roll("/a/t-0", 0, 100)
    segments = Segments(["/a"], clock, folders)
    clock.advance(1)
    segments.scan([("t", 0)], LONG_NS)
    folders.grow("/a/t-0", 0, 2323)
    clock.advance(1)
    segments.scan([("t", 0)], LONG_NS)

    assert segments.sizes(("t", 0)) == {0: 2323}


def test_a_file_that_is_renamed_while_listed_is_one_event() -> None:
    """It may be listed under neither name, as if it had been renamed and unlinked."""
    clock = FakeClock()
    folders = FakeFolders(clock)
    for base in (0, 23):
        folders.roll("/a/t-0", base, 100)
    segments = Segments(["/a"], clock, folders)
    events = []
    for step in ("look", "rename", "look", "unlink"):
        clock.advance(1)
        if step == "rename":
            folders.rename("/a/t-0", 0)
            folders.unseen = {0}
        if step == "unlink":
            folders.unlink("/a/t-0", 0)
        events += segments.scan([("t", 0)], LONG_NS)

    assert [event.kind for event in events] == ["segment_renamed", "segment_unlinked"]
    assert events[1].fields["lag_seconds"] == 2.0


def test_compaction_creates_no_segment(tmp_path: Path) -> None:
    """The cleaner puts a smaller file in place of an old one, which waits beside it to be unlinked."""
    clock, folder = FakeClock(), tmp_path / "t-0"
    folder.mkdir()
    log, old = folder / f"{0:020d}.log", folder / f"{0:020d}.log.deleted"
    segments = Segments([str(tmp_path)], clock, kafka_files)
    events, sizes = [], []
    for step in ("write", "clean", "unlink"):
        if step == "clean":
            log.rename(old)
        if step == "unlink":
            old.unlink()
        else:
            log.write_bytes(b"x" * (5000 if step == "write" else 23))
        os.utime(folder, ns=(clock.wall_ns(), clock.wall_ns()))
        clock.advance(1)
        events += segments.scan([("t", 0)], LONG_NS)
        sizes.append(segments.sizes(("t", 0))[0])

    assert [event.kind for event in events] == ["segment_renamed", "segment_unlinked"]
    assert sizes == [5000, 23, 23]


def test_a_segment_that_is_listed_before_the_cleaner_puts_its_new_file_there_is_not_created() -> (
    None
):
    """Between the two renames there is only the old file, with its new name."""
    clock = FakeClock()
    folders = FakeFolders(clock)
    for base in (0, 23):
        folders.roll("/a/t-0", base, 100)
    segments = Segments(["/a"], clock, folders)
    events = []
    for step in ("look", "rename", "replace", "unlink"):
        clock.advance(1)
        if step == "rename":
            folders.rename("/a/t-0", 0)
        elif step == "replace":
            folders.roll("/a/t-0", 0, 7)
        elif step == "unlink":
            folders.unlink("/a/t-0", 0)
        events += segments.scan([("t", 0)], LONG_NS)

    assert [event.kind for event in events] == ["segment_renamed", "segment_unlinked"]


def test_held_bytes_grow_with_the_active_segment() -> None:
    """And not by its whole length when it is closed."""
    clock = FakeClock()
    folders = FakeFolders(clock)
    for at in range(2):
        folders.roll(f"/a/t-{at}", 0, 100)
    segments, partitions = Segments(["/a"], clock, folders), [("t", 0), ("t", 1)]
    held = []
    for grown in (100, 2323, 4000):
        folders.grow("/a/t-1", 0, grown)
        clock.advance(1)
        segments.scan(partitions, LONG_NS)
        held.append(segments.totals["t"].held_bytes)
    folders.roll("/a/t-1", 23, 7)
    clock.advance(1)
    segments.scan(partitions, LONG_NS)

    assert [*held, segments.totals["t"].held_bytes] == [200, 2423, 4100, 4107]


def test_folders_that_do_not_fit_in_a_scan_come_next() -> None:
    """Scans are bounded; a change has its own time, whenever it is read."""
    clock = TickingClock()
    folders = FakeFolders(clock)
    partitions = [("t", at) for at in range(6)]
    for at in range(6):
        folders.roll(f"/a/t-{at}", 0, 100)
    segments = Segments(["/a"], clock, folders)
    clock.advance(1)
    segments.scan(partitions, LONG_NS)
    clock.advance(1)
    seen_ns = clock.wall_ns()
    folders.roll("/a/t-4", 23, 100)
    clock.advance(1)

    clock.step_ns = 10**6
    found = [segments.scan(partitions, 2 * 10**6) for _ in range(3)]

    assert [len(events) for events in found] == [0, 0, 1]
    assert found[2][0].at_ns == seen_ns


def test_a_topic_has_a_size_while_it_is_listed_and_all_its_folders_were_read() -> None:
    """Of one that appears later a part of the folders would look like a topic that grows."""
    clock = TickingClock()
    folders = FakeFolders(clock)
    first, later = ([(topic, at) for at in range(6)] for topic in "tu")
    for topic, at in (*first, *later):
        folders.roll(f"/a/{topic}-{at}", 0, 100)
    segments = Segments(["/a"], clock, folders)
    segments.scan(first, LONG_NS)

    clock.step_ns = 10**6
    found = []
    for partitions in ([*first, *later], [*first, *later], later):
        segments.scan(partitions, 3 * 10**6)
        found.append(sorted(segments.measured_totals()))

    assert found == [["t"], ["t", "u"], ["u"]]


def test_a_deleted_folder_no_longer_counts() -> None:
    """Its topic was deleted, which is no retention."""
    clock = FakeClock()
    folders = FakeFolders(clock)
    folders.roll("/a/t-0", 0, 100)
    folders.roll("/a/t-1", 0, 23)
    segments = Segments(["/a"], clock, folders)
    segments.scan([("t", 0), ("t", 1)], LONG_NS)
    folders.remove("/a/t-0")

    assert segments.scan([("t", 0), ("t", 1)], LONG_NS) == []
    assert segments.totals["t"].held_bytes == 23


def test_a_partition_is_found_in_any_of_the_brokers_folders() -> None:
    """A broker may have several drives."""
    clock = FakeClock()
    folders = FakeFolders(clock)
    folders.roll("/b/t-0", 0, 23)
    segments = Segments(["/a", "/b"], clock, folders)

    segments.scan([("t", 0)], LONG_NS)

    assert segments.totals["t"].held_bytes == 23


@pytest.mark.long
@given(steps=st.lists(st.sampled_from(["roll", "rename", "unlink", "look"]), max_size=60))
def test_each_file_has_one_event_of_each_kind(steps: list[str]) -> None:
    """Rolled, renamed and unlinked in any order, also several at once; bytes add up."""
    clock = FakeClock()
    folders = FakeFolders(clock)
    folders.roll("/a/t-0", 0, 1)
    segments = Segments(["/a"], clock, folders)
    clock.advance(1)
    counts = Counter[tuple[str, object]]()
    live, waiting, unlinked, following = [0], list[int](), list[int](), 1
    segments.scan([("t", 0)], LONG_NS)
    seen = {0}
    for step in [*steps, "look"]:
        clock.advance(1)
        if step == "roll":
            folders.roll("/a/t-0", following, following + 1)
            live.append(following)
            following += 1
        elif step == "rename" and len(live) > 1:
            waiting.append(live.pop(0))
            folders.rename("/a/t-0", waiting[-1])
        elif step == "unlink" and waiting:
            unlinked.append(waiting.pop(0))
            folders.unlink("/a/t-0", unlinked[-1])
        elif step == "look":
            for event in segments.scan([("t", 0)], LONG_NS):
                counts[event.kind, event.fields["base_offset"]] += 1
                assert event.since_ns <= event.at_ns <= clock.wall_ns()
            seen.update(live, waiting)

    assert set(counts.values()) <= {1}
    known = {base for base in unlinked if base in seen}
    assert {base for kind, base in counts if kind == "segment_unlinked"} == known
    assert segments.totals["t"].held_bytes == sum(base + 1 for base in (*live, *waiting))
    assert segments.totals["t"].waiting_bytes == sum(base + 1 for base in waiting)


def test_folders_are_read_as_kafka_writes_them(tmp_path: Path) -> None:
    """Log files by base offset, deleted ones apart; a sparse index counts what it occupies."""
    (tmp_path / f"{0:020d}.log.deleted").write_bytes(b"x" * 5000)
    (tmp_path / f"{23:020d}.log").write_bytes(b"x" * 7000)
    (tmp_path / f"{23:020d}.index").touch()
    os.truncate(tmp_path / f"{23:020d}.index", 10 * 2**20)
    (tmp_path / "partition.metadata").write_text("version: 0\n")

    found = listing(str(tmp_path))

    assert found is not None
    assert (found.live, found.waiting[0].bytes) == ({23: 7000}, 5000)
    assert 12_000 <= found.held_bytes < 2**20
    assert changed_ns(str(tmp_path)) == tmp_path.stat().st_mtime_ns
    assert 7000 <= found.newest_held_bytes < 2**20
    assert size(str(tmp_path), 23) == FileSize(7000, found.newest_held_bytes)
    assert listing(str(tmp_path / "nowhere")) is None


def test_folders_without_read_permission_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's are often readable by its own user only."""

    def refuse(path: str) -> os.stat_result:
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", refuse)
        with pytest.raises(PermissionError):
            changed_ns("/data/t-0")
        with pytest.raises(PermissionError):
            size("/data/t-0", 0)
