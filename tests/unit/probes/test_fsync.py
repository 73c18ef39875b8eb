"""The fsync probe: its file, exact latencies through a fake clock, and a thread that may hang."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.fsync import (
    FILE_NAME,
    CallTimer,
    Config,
    FlushFile,
    FlushSettings,
    FreeSpace,
    Fsync,
    SyncMethod,
    flush_samples,
)
from soak.core.clock import SystemClock
from soak.core.errors import NotAvailableError, PartialReadingError, ProbeError
from soak.core.model import Reading
from tests.support.fakes import FakeClock


def way(
    sync: SyncMethod = "fsync", *, is_appending: bool = False, floor_bytes: int = 0
) -> FlushSettings:
    return FlushSettings(
        sync=sync,
        payload_bytes=1000,
        is_appending=is_appending,
        limit_bytes=23_000,
        floor_bytes=floor_bytes,
    )


def test_an_appended_file_grows_to_its_limit_and_starts_again(tmp_path: Path) -> None:
    """It is replaced between two flushes."""
    file = FlushFile(tmp_path, way(is_appending=True), sync=lambda _: None)
    file.open()
    sizes = []
    for _ in range(60):
        file.flush()
        sizes.append((tmp_path / FILE_NAME).stat().st_size)
        file.renew()
    file.close()

    assert sizes == [1000 * (count % 23 + 1) for count in range(60)]
    assert list(tmp_path.iterdir()) == []


def test_a_directory_sync_renames_the_file_before_each_flush(tmp_path: Path) -> None:
    """A folder without changes would flush in no time."""
    seen = []

    def sync(descriptor: int) -> None:
        seen.append((os.fstat(descriptor).st_ino, [path.name for path in tmp_path.iterdir()]))

    file = FlushFile(tmp_path, way("directory"), sync)
    file.open()
    for _ in range(3):
        file.flush()
    file.close()

    assert {number for number, _ in seen} == {tmp_path.stat().st_ino}
    assert [names for _, names in seen] == [
        [f"{FILE_NAME}.moved"],
        [FILE_NAME],
        [f"{FILE_NAME}.moved"],
    ]
    assert list(tmp_path.iterdir()) == []


def test_files_left_by_a_killed_probe_are_replaced(tmp_path: Path) -> None:
    """Under both names."""
    for name in (FILE_NAME, f"{FILE_NAME}.moved"):
        (tmp_path / name).write_bytes(b"x" * 5000)

    file = FlushFile(tmp_path, way(), sync=lambda _: None)
    file.open()
    file.flush()
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    file.close()

    assert sizes == [1000]
    assert list(tmp_path.iterdir()) == []


def test_below_the_floor_of_free_space_nothing_is_written(tmp_path: Path) -> None:
    """The broker needs the space."""
    file = FlushFile(tmp_path, way(floor_bytes=2**62), sync=lambda _: pytest.fail("flushed"))
    file.open()
    with pytest.raises(OSError, match="free_space_floor"):
        file.flush()
    size = (tmp_path / FILE_NAME).stat().st_size
    file.close()

    assert size == 0


def test_the_free_space_is_what_the_filesystem_has_for_others_than_root(tmp_path: Path) -> None:
    space = FreeSpace(str(tmp_path), FakeClock())
    space.measure()
    found = space.newest()

    assert found is not None
    assert 0 < found <= shutil.disk_usage(tmp_path).total
    assert space.newest() is None


class Measured(FreeSpace):
    """Free space that is measured when a test says so, not on a thread."""

    def __init__(self, *free_bytes: int | OSError) -> None:
        self._left = [*free_bytes]
        super().__init__("/d", FakeClock(), self._next)

    def take(self) -> int | None:
        if self._left:
            self.measure()
        return self.newest()

    def close(self) -> None:
        pass

    def _next(self, directory: str) -> os.statvfs_result:
        del directory
        found = self._left.pop(0)
        if isinstance(found, OSError):
            raise found
        return os.statvfs_result((1, 1, 0, 0, found, 0, 0, 0, 0, 255))


def test_it_follows_a_folder_that_is_replaced(tmp_path: Path) -> None:
    """A drive mounted over it, or a folder that is created again."""
    folder, aside = tmp_path / "data", tmp_path / "aside"
    folder.mkdir()
    file = FlushFile(folder, way(is_appending=True), sync=lambda _: None)
    file.open()
    file.flush()
    folder.rename(aside)
    with pytest.raises(OSError, match="No such file"):
        file.flush()
    folder.mkdir()
    with pytest.raises(OSError, match="another folder has taken its place"):
        file.flush()
    file.renew()
    file.flush()
    sizes = [path.stat().st_size for path in folder.iterdir()]
    file.close()

    assert sizes == [1000]
    assert [*aside.iterdir(), *folder.iterdir()] == []


def test_a_file_that_cannot_be_renewed_is_tried_again(tmp_path: Path) -> None:
    """Something else has its name for a while."""
    file = FlushFile(tmp_path, way(is_appending=True), sync=lambda _: None)
    file.open()
    for _ in range(23):
        file.flush()
    (tmp_path / FILE_NAME).unlink()
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        file.renew()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.flush()
    (tmp_path / FILE_NAME).rmdir()
    file.renew()
    file.flush()
    size = (tmp_path / FILE_NAME).stat().st_size
    file.close()

    assert size == 1000


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
def test_nothing_is_kept_open_on_a_broken_filesystem(tmp_path: Path, code: int) -> None:
    """It could not be unmounted; the probe goes on afterwards."""
    is_broken = True

    def sync(_: int) -> None:
        if is_broken:
            raise OSError(code, os.strerror(code))

    def held() -> list[str]:
        links = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        return [str(link) for link in links if link.is_relative_to(tmp_path)]

    file = FlushFile(tmp_path, way(), sync)
    file.open()
    before = len(held())
    with pytest.raises(OSError, match=os.strerror(code)):
        file.flush()
    during = held()
    is_broken = False
    file.renew()
    file.flush()
    file.close()

    assert (before, during) == (2, [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sync", ["fsync", "directory"])
def test_a_removed_file_is_created_again(tmp_path: Path, sync: SyncMethod) -> None:
    """At most one flush fails."""
    file = FlushFile(tmp_path, way(sync), sync=lambda _: None)
    file.open()
    file.flush()
    for path in tmp_path.iterdir():
        path.unlink()
    with suppress(FileNotFoundError):
        file.flush()
    file.renew()
    file.flush()
    file.close()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sync", ["fsync", "directory"])
def test_a_second_probe_in_the_folder_uses_another_file(tmp_path: Path, sync: SyncMethod) -> None:
    """Such as `soak probe --once` during a run."""
    first, second = (FlushFile(tmp_path, way(sync), sync=lambda _: None) for _ in range(2))
    first.open()
    first.flush()
    (name,) = [path.name for path in tmp_path.iterdir()]
    second.open()
    second.flush()
    both = len(list(tmp_path.iterdir()))
    second.close()
    left = [path.name for path in tmp_path.iterdir()]
    first.flush()
    first.close()

    assert (both, left) == (2, [name])
    assert list(tmp_path.iterdir()) == []


MS = 1_000_000
LIMIT_SECONDS = 20.0


def metered(clock: FakeClock, *seconds: float) -> CallTimer:
    """Return a meter with a period of 200 ms whose calls last this long, one after the other."""
    lasting = iter(seconds)
    return CallTimer(clock.mono_ns(), 200 * MS, clock, lambda: clock.advance(next(lasting)))


def serve(meter: CallTimer, clock: FakeClock, calls: int) -> None:
    for _ in range(calls):
        clock.sleep_until(meter.next_due_ns)
        meter.serve()


def test_a_flush_of_23_ms_reads_23_ms() -> None:
    """No sleep, no disk, no tolerance."""
    clock = FakeClock()
    meter = metered(clock, 0.023)
    serve(meter, clock, 1)

    assert meter.take_latencies_ns() == [23 * MS]
    assert meter.take_latencies_ns() == []


def test_a_stall_counts_for_every_slot_that_it_delays() -> None:
    """The call after one of 0.5 s serves two slots, each from its own intended time."""
    clock = FakeClock()
    meter = metered(clock, 0.5, 0.01)
    serve(meter, clock, 2)

    assert meter.take_latencies_ns() == [500 * MS, 310 * MS, 110 * MS]
    assert meter.take_lags_ns() == [0, 300 * MS]


def test_nothing_is_served_before_it_is_due() -> None:
    """An early wake-up makes no call."""
    clock = FakeClock(mono_ns=1)
    meter = CallTimer(2, 200 * MS, clock, lambda: pytest.fail("called"))

    meter.serve()

    assert meter.next_due_ns == 2


def test_a_hanging_call_shows_its_age_until_it_returns() -> None:
    """The age counts from the intended time; a call within its period does not hang."""
    clock = FakeClock()
    ages = []

    def hang() -> None:
        for _ in range(4):
            ages.append(meter.hanging_ns())
            clock.advance(0.2)

    meter = CallTimer(0, 200 * MS, clock, hang)
    clock.advance(0.05)
    meter.serve()

    assert ages == [0, 250 * MS, 450 * MS, 650 * MS]
    assert meter.hanging_ns() == 0


def test_work_that_hangs_between_two_calls_shows_its_age() -> None:
    """Such as the creation of a new file; the slots that it delays are counted after it."""
    clock = FakeClock()
    ages = []

    def hang() -> None:
        for _ in range(2):
            ages.append(meter.hanging_ns())
            clock.advance(0.3)

    meter = CallTimer(200 * MS, 200 * MS, clock, lambda: None)
    meter.between(hang)
    meter.serve()

    assert ages == [0, 300 * MS]
    assert meter.hanging_ns() == 0
    assert meter.take_latencies_ns() == [400 * MS, 200 * MS, 0]


def test_a_failed_call_has_no_latency() -> None:
    """Its slots are dropped, and the schedule goes on."""
    clock = FakeClock()

    def fail() -> None:
        raise OSError(28, "No space left on device")

    meter = CallTimer(0, 200 * MS, clock, fail)
    with pytest.raises(OSError, match="No space left"):
        meter.serve()

    assert meter.take_latencies_ns() == []
    assert (meter.hanging_ns(), meter.next_due_ns) == (0, 200 * MS)


@given(
    durations=st.lists(st.integers(0, 2_000), min_size=1, max_size=30),
    period=st.integers(1, 500),
)
def test_every_slot_is_counted_once_from_its_intended_time(
    durations: list[int], period: int
) -> None:
    """The slow twin: each slot is served by the first call that starts when it is due or later."""
    clock = FakeClock()
    lasting = iter(durations)
    calls = []

    def call() -> None:
        begin = clock.mono_ns()
        clock.advance_ns(next(lasting))
        calls.append((begin, clock.mono_ns()))

    meter = CallTimer(7, period, clock, call)
    serve(meter, clock, len(durations))
    last_begin = calls[-1][0]
    expected = [
        next(end for begin, end in calls if begin >= due) - due
        for due in range(7, last_begin + 1, period)
    ]

    assert meter.take_latencies_ns() == expected


def test_a_second_becomes_quantiles(tmp_path: Path) -> None:
    """The maximum of five flushes is exact."""
    clock = FakeClock()
    meter = metered(clock, 0.001, 0.001, 0.001, 0.001, 0.023)
    serve(meter, clock, 5)

    found = {column.name: value for column, value in flush_samples(meter, str(tmp_path))}

    where = f'directory="{tmp_path}"'
    assert found == pytest.approx(
        {
            f"fsync_hanging_seconds{{{where}}}": 0.0,
            f"fsync_schedule_lag_seconds{{{where}}}": 0.0,
            f'fsync_latency_seconds{{{where},quantile="0.5"}}': 0.001,
            f'fsync_latency_seconds{{{where},quantile="0.99"}}': 0.023,
            f'fsync_latency_seconds{{{where},quantile="max"}}': 0.023,
        },
        rel=1e-3,
    )


def test_a_second_without_a_completed_flush_has_no_latency(tmp_path: Path) -> None:
    """Only the age of the hanging call: missing is not zero."""
    clock = FakeClock()
    found: dict[str, float] = {}

    def hang() -> None:
        clock.advance(23)
        found.update(
            {column.metric: value for column, value in flush_samples(meter, str(tmp_path))}
        )

    meter = CallTimer(0, 200 * MS, clock, hang)
    meter.serve()

    assert found == {"fsync_hanging_seconds": 23.0, "fsync_schedule_lag_seconds": 0.0}


@pytest.fixture
def flushes() -> Iterator[Flushes]:
    made = Flushes()
    yield made
    made.go_on.set()


class Flushes:
    """A system call that counts, and hangs from the `hang_at`-th call on until `go_on` is set."""

    def __init__(self) -> None:
        self.count = 0
        self.hang_at = 10**9
        self.go_on = threading.Event()
        self.third = threading.Event()
        self.hanging = threading.Event()

    def __call__(self, file: int) -> None:
        os.fstat(file)
        self.count += 1
        if self.count == 3:
            self.third.set()
        if self.count >= self.hang_at:
            self.hanging.set()
            self.go_on.wait(LIMIT_SECONDS)


def probe_of(tmp_path: Path, flushes: Flushes) -> Fsync:
    config = anywhere(tmp_path)
    file = FlushFile(tmp_path, config.flush_settings, flushes)
    return Fsync(config, SystemClock(), file=file)


def anywhere(directory: Path) -> Config:
    """Return settings that take any folder, in memory and almost full."""
    where = str(directory)
    return Config(directory=where, period=10 * MS, allow_tmpfs=True, free_space_floor=0)


def test_the_thread_flushes_one_small_file_and_removes_it(tmp_path: Path, flushes: Flushes) -> None:
    """The file never grows beyond its payload."""
    probe = probe_of(tmp_path, flushes)
    probe.read()
    assert flushes.third.wait(LIMIT_SECONDS)

    metrics = {column.metric for column, _ in probe.read().samples}
    size = (tmp_path / FILE_NAME).stat().st_size
    probe.close()

    assert "fsync_latency_seconds" in metrics
    assert size == 4096
    assert list(tmp_path.iterdir()) == []


def test_a_hanging_thread_blocks_neither_reading_nor_closing(
    tmp_path: Path, flushes: Flushes
) -> None:
    """It is a daemon thread and is abandoned."""
    flushes.hang_at = 1
    probe = probe_of(tmp_path, flushes)
    probe.read()
    assert flushes.hanging.wait(LIMIT_SECONDS)

    reading = probe.read()
    probe.close(timeout_seconds=0.0)

    assert any(thread.name == "fsync" and thread.daemon for thread in threading.enumerate())
    assert "fsync_hanging_seconds" in {column.metric for column, _ in reading.samples}


def free_bytes_of(reading: Reading) -> list[float]:
    return [value for column, value in reading.samples if column.metric == "disk_free_bytes"]


def test_free_space_is_measured_while_a_flush_hangs_and_never_repeated(
    tmp_path: Path, flushes: Flushes
) -> None:
    """Where statvfs gives no answer either there is no value: the last one is not one of now."""
    flushes.hang_at = 1
    config = anywhere(tmp_path)
    file = FlushFile(tmp_path, config.flush_settings, flushes)
    probe = Fsync(config, SystemClock(), file=file, free=Measured(7000, 6000, OSError(errno.EIO)))
    probe.read()
    assert flushes.hanging.wait(LIMIT_SECONDS)

    found = [free_bytes_of(probe.read()) for _ in range(4)]
    probe.close(timeout_seconds=0.0)

    assert found == [[7000.0], [6000.0], [], []]


def test_a_drive_below_the_floor_shows_how_little_is_free(tmp_path: Path) -> None:
    """The flush has failed, and the free space is measured all the same."""
    tried = threading.Event()

    class Full(FlushFile):
        def flush(self) -> None:
            try:
                super().flush()
            finally:
                tried.set()

    config = replace(anywhere(tmp_path), free_space_floor=2**62)
    file = Full(tmp_path, config.flush_settings, lambda _: pytest.fail("flushed"))
    probe = Fsync(config, SystemClock(), file=file, free=Measured(23))
    probe.read()
    assert tried.wait(LIMIT_SECONDS)
    tried.clear()
    assert tried.wait(LIMIT_SECONDS)  # by the second flush the failure of the first is noted

    with pytest.raises(PartialReadingError, match="less space is free") as caught:
        probe.read()
    probe.close()

    assert free_bytes_of(caught.value.reading) == [23.0]


def test_a_drive_that_hangs_from_the_start_shows_its_age(tmp_path: Path, flushes: Flushes) -> None:
    """Also before the file exists."""
    clock = FakeClock()
    config = anywhere(tmp_path)

    class Hanging(FlushFile):
        def open(self) -> None:
            flushes.go_on.wait(LIMIT_SECONDS)
            raise OSError(errno.EIO, "it hung")

    file = Hanging(tmp_path, config.flush_settings)
    probe = Fsync(config, clock, file=file, free=Measured())
    found = []
    for _ in range(3):
        found.append([value for _, value in probe.read().samples])
        clock.advance(0.5)
    probe.close(timeout_seconds=0.0)

    assert found == [[], [0.5], [1.0]]


def first_error(probe: Fsync) -> Exception:
    """Return the first error of the probe's thread."""
    for _ in range(2000):
        try:
            probe.read()
        except (ProbeError, NotAvailableError) as error:
            return error
        threading.Event().wait(0.01)
    raise AssertionError("no error came")


def test_memory_is_refused_unless_allowed(tmp_path: Path) -> None:
    """Tmpfs flushes in microseconds, which means nothing."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text("25 24 0:23 / / rw,relatime - tmpfs tmpfs rw\n")
    probe = Fsync(Config(directory=str(tmp_path)), SystemClock(), proc=tmp_path)

    error = first_error(probe)

    assert isinstance(error, NotAvailableError)
    assert "is in memory (tmpfs)" in str(error)
    assert "allow_tmpfs" in str(error)


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path, flushes: Flushes) -> None:
    """It would let others choose which file is overwritten."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / FILE_NAME).symlink_to(victim)
    probe = probe_of(tmp_path, flushes)
    probe.read()
    assert flushes.third.wait(LIMIT_SECONDS)
    probe.close()

    assert victim.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [victim]


def test_a_file_that_cannot_be_created_is_an_error_of_the_reading(tmp_path: Path) -> None:
    """The daemon goes on and tries again."""
    (tmp_path / FILE_NAME).mkdir()

    error = first_error(Fsync(anywhere(tmp_path), SystemClock()))

    assert isinstance(error, ProbeError)
    assert str(error).startswith(f"cannot keep a file in {tmp_path}: ")


def test_a_failed_flush_is_raised_from_read(tmp_path: Path) -> None:
    """The thread goes on."""
    failed = threading.Event()
    calls = []

    def sync(file: int) -> None:
        calls.append(file)
        if len(calls) == 2:
            failed.set()
        raise OSError(5, "Input/output error")

    config = anywhere(tmp_path)
    file = FlushFile(tmp_path, config.flush_settings, sync)
    probe = Fsync(config, SystemClock(), file=file)
    probe.read()
    assert failed.wait(LIMIT_SECONDS)

    with pytest.raises(ProbeError, match="Input/output error"):
        probe.read()
    probe.close()
