"""The drive check: exact figures through a fake clock, its warnings, and what a run keeps of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from probes.common.block_device import SystemPaths
from soak.app import host
from soak.cli import main
from soak.conductor.free_space import broker_folders
from soak.core.cluster.drives import DriveState, Measured, from_json, to_json, warnings
from soak.core.errors import PlanError, RunFolderError
from soak.core.plan import text as plan_text
from soak.core.units import SECOND_NS
from soak.sampling import drive_check
from soak.sampling.drive_check import Limits
from soak.store import run_folder
from soak.store.run_folder import Run, RunFolder
from tests.support.fakes import FakeClock
from tests.support.probes.sys_tree import on, sys_tree

STATE = DriveState(
    filesystem="xfs",
    options="rw,noatime",
    devices=("nvme0n1",),
    total_bytes=1000,
    free_bytes=400,
    discard_bytes=2**30,
    write_cache="write back",
    trim_timer="enabled",
    trimmed_wall_ns=None,
)
GOOD = Measured("a", ("/data",), "before", 0, 100, 0.001, 0.002, 1e9, STATE)


ROOMY = replace(STATE, free_bytes=2**40)
SMALL = Limits(write_bytes=2**24)


def measured(
    folder: Path,
    clock: FakeClock,
    sync: Callable[[int], object],
    *,
    length_ns: int = SECOND_NS,
    limits: Limits = SMALL,
    state: DriveState = ROOMY,
) -> Measured:
    return drive_check.measure(
        (str(folder),),
        "before",
        length_ns,
        "a",
        clock,
        limits=limits,
        read_state=lambda _: state,
        sync=lambda file: [sync(file)].clear(),
    )


def test_each_flush_is_timed_alone_and_at_a_steady_pace(tmp_path: Path) -> None:
    """Half of 10 s at 100 a second; every fiftieth takes 23 ms and delays none."""
    clock = FakeClock()
    count = 0

    def sync(_file: int) -> None:
        nonlocal count
        count += 1
        clock.advance(0.023 if count % 50 == 0 else 0.001)

    found = measured(tmp_path, clock, sync, length_ns=10 * SECOND_NS)

    assert (found.trouble, found.flushes) == ("", 489)
    assert (found.fsync_p50_seconds, found.fsync_p99_seconds) == (0.001, 0.023)
    assert list(tmp_path.iterdir()) == []


def test_throughput_counts_flushed_bytes(tmp_path: Path) -> None:
    """16 MiB in one flush of 0.1 s; no more than the limit is written."""
    clock = FakeClock()

    found = measured(tmp_path, clock, lambda _: clock.advance(0.1))

    assert found.write_bytes_per_second == 2**24 / 0.1


def test_a_failing_drive_is_reported_and_no_error(tmp_path: Path) -> None:
    """A run goes on without the figures."""

    def sync(_file: int) -> None:
        raise OSError(5, "Input/output error")

    found = measured(tmp_path, FakeClock(), sync)

    assert "Input/output error" in found.trouble
    assert found.fsync_p99_seconds is None


@pytest.mark.parametrize(
    ("state", "trouble"),
    [
        (
            STATE,
            "not measured: 0MiB are free, but the check would write 17MiB and must leave 64MiB",
        ),
        (replace(ROOMY, filesystem="tmpfs"), "is in memory, where a flush means nothing"),
    ],
)
def test_a_nearly_full_or_virtual_drive_is_not_written_to(
    tmp_path: Path, state: DriveState, trouble: str
) -> None:
    """Its state is reported."""
    found = measured(tmp_path, FakeClock(), lambda _: pytest.fail("flushed"), state=state)

    assert (found.state, found.trouble) == (state, trouble)


def test_the_bytes_of_an_hour_of_flushes_must_fit(tmp_path: Path) -> None:
    """100 a second of 4 KiB are 1.4 GiB, plus 16 MiB, above the space that must stay free."""
    state = replace(STATE, free_bytes=2**30)

    found = measured(
        tmp_path,
        FakeClock(),
        lambda _: pytest.fail("flushed"),
        length_ns=3600 * SECOND_NS,
        state=state,
    )

    output = (
        "not measured: 1024MiB are free, but the check would write 1421MiB and must leave 64MiB"
    )
    assert found.trouble == output


@pytest.mark.parametrize(("floor", "floor_bytes"), [("5GiB", 5 * 2**30), ("1KiB", 2**26)])
def test_no_drive_is_measured_below_the_plans_floor(floor: str, floor_bytes: int) -> None:
    """Nor below that of the check itself."""
    plan = plan_text.load(
        f"name: x\nbroker: {{kafka: {{}}}}\nfree_space_floor: {floor}\n", "p"
    ).plan

    assert host.drive_limits(plan, "/data", ()).floor_bytes == floor_bytes


@pytest.mark.parametrize(("folder", "floor_bytes"), [("mount/data", 2**26), ("plain", 2**30)])
def test_a_drive_that_a_lab_injects_may_be_smaller_than_the_floor(
    folder: str, floor_bytes: int
) -> None:
    """Both are 1 GiB by default; a broker on the host's own drive keeps the floor."""
    plan = plan_text.load("name: x\nlab: {drive: {}}\nbroker: {kafka: {}}\n", "p").plan

    assert (
        host.drive_limits(plan, f"/lab/{folder}", [Path("/lab/mount")]).floor_bytes == floor_bytes
    )


def test_a_hanging_drive_is_reported_in_time(tmp_path: Path) -> None:
    """The thread is abandoned."""
    go_on = threading.Event()
    limits = Limits(grace_ns=SECOND_NS // 100)

    found = measured(
        tmp_path, FakeClock(), lambda _: go_on.wait(20), length_ns=SECOND_NS // 100, limits=limits
    )
    go_on.set()

    assert found.trouble == "the drive has not answered within 20ms"


def test_folders_of_one_drive_are_measured_once(tmp_path: Path) -> None:
    """Three nodes of a lab; a missing folder is a group of its own."""
    folders = [str(tmp_path / name) for name in ("a", "b", "gone")]
    for folder in folders[:2]:
        Path(folder).mkdir()

    assert drive_check.group_by_filesystem(folders) == [tuple(folders[:2]), (folders[2],)]


def test_a_folder_on_a_hanging_filesystem_is_a_group_of_its_own() -> None:
    """It does not delay the others."""
    let_go = threading.Event()

    def find(directory: str) -> int:
        if directory == "/hangs":
            let_go.wait()
        return 1

    found = drive_check.group_by_filesystem(
        ["/a", "/hangs", "/b"], limit_ns=SECOND_NS // 10, find=find
    )
    let_go.set()

    assert found == [("/a", "/b"), ("/hangs",)]


def test_the_state_is_that_of_mount_and_drive(tmp_path: Path) -> None:
    """Options, trimming, and how full it is."""
    proc, root = tmp_path / "proc", tmp_path / "root"
    (proc / "self").mkdir(parents=True)
    (proc / "self/mountinfo").write_text("27 1 8:2 / / rw,noatime - ext4 /dev/sda2 rw,discard\n")
    sys = sys_tree(tmp_path / "sys", "lvm")
    (sys / "block/sda/queue").mkdir(parents=True)
    (sys / "block/sda/queue/discard_max_bytes").write_text("2147450880\n")
    (sys / "block/sda/queue/write_cache").write_text("write back\n")
    (root / "run/systemd/system").mkdir(parents=True)
    paths = SystemPaths(proc, sys, lambda _: on(8, 2))

    disabled = drive_check.read_drive_state(str(tmp_path), paths, root)
    wants = root / "etc/systemd/system/timers.target.wants"
    wants.mkdir(parents=True)
    (wants / "fstrim.timer").symlink_to("/usr/lib/systemd/system/fstrim.timer")
    enabled = drive_check.read_drive_state(str(tmp_path), paths, root)

    assert (disabled.trim_timer, enabled.trim_timer) == ("disabled", "enabled")
    assert (enabled.filesystem, enabled.options) == ("ext4", "rw,noatime,discard")
    assert (enabled.devices, enabled.discard_bytes) == (("sda",), 2147450880)
    assert enabled.write_cache == "write back"
    assert enabled.is_trimmed_at_once
    assert 0 <= enabled.fill_ratio <= 1


def test_similar_drives_are_no_warning() -> None:
    """Up to a factor of two."""
    other = replace(GOOD, host="b", fsync_p50_seconds=0.002, fsync_p99_seconds=0.001)

    assert warnings([GOOD, other]) == []


def test_drives_that_differ_by_more_than_a_factor_of_two_are_reported() -> None:
    """By figure, with the names of both; moments are not mixed."""
    slow = replace(GOOD, host="b", fsync_p99_seconds=0.006, write_bytes_per_second=4e8)
    later = replace(GOOD, host="c", moment="after", fsync_p99_seconds=0.1)

    assert warnings([GOOD, slow, later]) == [
        "fsync p99 before the load: b:/data has 3.0 times that of a:/data",
        "write throughput before the load: a:/data has 2.5 times that of b:/data",
    ]


def test_a_drive_that_was_measured_twice_is_not_compared_with_itself() -> None:
    """The last measurement counts."""
    slow = replace(GOOD, fsync_p50_seconds=0.005)

    assert warnings([slow, GOOD]) == []


def test_a_drive_that_became_slower_is_reported() -> None:
    """The load has worn it."""
    after = replace(GOOD, moment="after", at_wall_ns=1, fsync_p99_seconds=0.0046)

    assert warnings([GOOD, after]) == [
        "fsync p99 of a:/data was 2.3 times as long after the load as before it"
    ]


def test_a_flash_drive_without_trim_is_reported() -> None:
    """Unless it is mounted with discard, cannot be trimmed, or it is unknown."""
    untrimmed = replace(STATE, trim_timer="disabled")
    states = [
        untrimmed,
        replace(untrimmed, options="rw,discard=async"),
        replace(untrimmed, discard_bytes=0),
        replace(STATE, trim_timer="unknown"),
    ]

    output = [warnings([replace(GOOD, state=state)]) for state in states]

    assert ["is never trimmed" in " ".join(several) for several in output] == [True] + [False] * 3


def test_a_full_drive_and_failures_are_reported() -> None:
    """Whatever else is known of it."""
    found = replace(GOOD, state=replace(STATE, free_bytes=50), trouble="is in memory")

    assert warnings([found]) == ["a:/data: is in memory", "a:/data is 95% full"]


@given(
    values=st.lists(st.one_of(st.none(), st.floats(0, 1e12)), min_size=3, max_size=3),
    count=st.integers(0, 3),
)
def test_any_figures_are_compared_without_an_error(values: list[float | None], count: int) -> None:
    """None, zero, and none at all."""
    several = [replace(GOOD, host=str(at), fsync_p99_seconds=values[at]) for at in range(count)]

    assert all(isinstance(text, str) for text in warnings(several))


def test_measurements_are_written_and_read_back(tmp_path: Path) -> None:
    """One file a host, extended by each check; in order of time."""
    folder = RunFolder(tmp_path)
    other = replace(GOOD, host="b", at_wall_ns=1, state=None, trouble="hangs")
    after = replace(GOOD, moment="after", at_wall_ns=2)

    run_folder.append_drive_checks(folder, [GOOD, other])
    run_folder.append_drive_checks(folder, [after])

    assert run_folder.read_drive_checks(folder) == [GOOD, other, after]
    assert sorted(path.name for path in folder.drives.iterdir()) == ["a.json", "b.json"]
    assert from_json(json.loads(json.dumps(to_json(GOOD)))) == GOOD


def test_a_damaged_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    """It is not taken for no measurement."""
    folder = RunFolder(tmp_path)
    folder.drives.mkdir()
    (folder.drives / "a.json").write_text('{"drives": [{"host": "a"}]}')

    with pytest.raises(RunFolderError, match=r"a\.json is damaged"):
        run_folder.read_drive_checks(folder)


@pytest.mark.parametrize(
    ("state", "at_seconds", "moment"),
    [("running", 9, "before"), ("running", 11, "during"), ("ended", 99, "after")],
)
def test_the_moment_follows_from_the_run(state: str, at_seconds: int, moment: str) -> None:
    """Measured by hand on a broker's host, at any time."""
    run = Run("r", 10 * SECOND_NS, "h", {}, state)

    assert host.moment_of(run, at_seconds * SECOND_NS) == moment


def test_the_drives_are_those_that_the_probes_name() -> None:
    """Each once."""
    text = (
        "name: x\nbroker: {kafka: {}}\n"
        "probes: {host: {}, fsync: {directory: /a}, disk_io: {directory: /a}, smart: {directory: /b}}\n"
    )
    plan = plan_text.load(text, "p").plan

    assert broker_folders(plan) == ["/a", "/b"]


def test_a_probe_host_can_measure_its_own_drives(tmp_path: Path) -> None:
    """Its plan has no broker; a failing drive is reported."""
    plan = tmp_path / "host.yaml"
    plan.write_text(f"name: x\nprobes: {{fsync: {{directory: {tmp_path / 'gone'}}}}}\n")

    result = CliRunner().invoke(main.build(["check"]), ["check", str(plan), "--drives"])

    assert result.exit_code == 0
    assert "gone: cannot be measured" in result.output


def test_a_probe_host_is_checked_without_a_broker(tmp_path: Path) -> None:
    """Missing metrics are reported; `--show` prints every default."""
    plan = tmp_path / "host.yaml"
    target = "{b: {url: 'http://127.0.0.1:1/metrics', maps: [jvm]}}"
    plan.write_text(f"name: x\nprobes: {{prometheus: {{targets: {target}}}, clock: {{}}}}\n")

    output = CliRunner().invoke(main.build(["check"]), ["check", str(plan)])
    shown = CliRunner().invoke(main.build(["check"]), ["check", str(plan), "--show"])

    assert (output.exit_code, shown.exit_code) == (0, 0)
    assert "good. Probe host with prometheus, clock" in output.output
    assert "Warning: the probe prometheus cannot read b: " in output.output
    assert "chrony_period: 16s" in shown.output


def test_a_plan_without_a_folder_cannot_be_checked() -> None:
    """Exit 2, with what is missing."""
    plan = plan_text.load("name: x\nbroker: {kafka: {}}\n", "p").plan

    with pytest.raises(PlanError, match="no probe of the plan names a folder"):
        host.check_drives(plan, None)
