"""Probes of several folders: how a plan names them, one drive counted once, a folder that fails alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes import disk_io, fsync, smart
from probes.common.block_device import PathNumbers, SystemPaths
from probes.common.folders import EachFolder, folders_of, probe_of_each
from probes.disk_io import DiskIo
from probes.fsync import Fsync
from probes.smart.probe import Smart
from probes.smart.tools import Health, Tool, parse_smartctl
from soak.app.lifecycle import resolve_plan
from soak.conductor.free_space import broker_folders
from soak.core.errors import NotAvailableError, PartialReadingError, PlanError, ProbeError
from soak.core.model import Column, Event, Reading
from soak.core.plan import text as plan_text
from soak.lab.lab import Lab
from soak.store.run_folder import Run
from tests.support.fakes import FakeClock, FakeProbe
from tests.support.paths import RECORDED
from tests.support.probes.sys_tree import on, sys_tree

A, B, SHARED = (Column(f"{name}_seconds", (), "seconds") for name in ("a", "b", "shared"))
PLAN = "name: x\nbroker: {kafka: {bootstrap_servers: 'b:9'}}\nprobes: {PROBE: {directory: NAMED}}\n"
FOLDERS = {"/sda2": (8, 2), "/sda": (8, 0), "/sdb": (8, 16)}


@pytest.mark.parametrize("named", ["[/d1, /d2, /d1]", "'/d1,/d2'", "' /d1 , /d2 ,'"])
@pytest.mark.parametrize("probe", ["disk_io", "fsync", "smart", "retention_kafka"])
def test_folders_are_a_list_or_a_text_with_commas(probe: str, named: str) -> None:
    """As `log.dirs` of Kafka; a folder that is named twice is one."""
    text = PLAN.replace("PROBE", probe).replace("NAMED", named)

    config = plan_text.load(text, "p.yaml").plan.probes[probe]

    assert folders_of(config.directory) == ["/d1", "/d2"]


@pytest.mark.parametrize("named", ["[/d1, '']", "['/d1,/d2']", "[7]"])
def test_what_names_no_folder_is_a_fault_of_the_plan(named: str) -> None:
    text = PLAN.replace("PROBE", "fsync").replace("NAMED", named)

    with pytest.raises(PlanError, match=r"p\.yaml:3: probes\.fsync\.directory: .* folder"):
        plan_text.load(text, "p.yaml")


def test_the_free_space_of_every_folder_is_watched() -> None:
    text = PLAN.replace("PROBE", "fsync").replace("NAMED", "[/d1, /d2]")

    assert broker_folders(plan_text.load(text, "p").plan) == ["/d1", "/d2"]


def test_a_lab_watches_the_drives_and_logs_of_all_its_brokers(tmp_path: Path) -> None:
    """Unless the plan names a folder itself."""
    text = (
        "name: x\nbroker: {kafka: {}}\nlab: {nodes: 2}\n"
        "probes: {broker_log: {}, disk_io: {}, fsync: {directory: /own}, retention_kafka: {}}\n"
    )
    logs = [tmp_path / name / "broker.log" for name in ("node-1", "node-2")]
    for log in logs:
        log.parent.mkdir()
        log.touch()
        log.with_name("gc.log").touch()
    broker: Any = SimpleNamespace(
        addresses={"bootstrap_servers": "b:9"},
        data_directories=(Path("/d1"), Path("/d2")),
        log_path=logs[0],
        nodes=[SimpleNamespace(log_path=log) for log in logs],
    )

    plan = resolve_plan(
        plan_text.load(text, "p").plan,
        Lab(tmp_path, broker, None, {}),
        Run("r1", 0, "host", {}, "running"),
    )

    watched: Any = plan.probes["broker_log"]
    assert [watched.log, *watched.more_logs] == [
        str(path) for path in (*logs, *(log.with_name("gc.log") for log in logs))
    ]
    folders = {name: one for name, one in plan.probes.items() if name != "broker_log"}
    assert {name: folders_of(one.directory) for name, one in folders.items()} == {
        "disk_io": ["/d1", "/d2"],
        "fsync": ["/own"],
        "retention_kafka": ["/d1", "/d2"],
    }


def test_one_folder_needs_no_probe_of_several() -> None:
    clock = FakeClock()

    for text in ("", "/d1", "/d1,"):
        assert isinstance(disk_io.build(disk_io.Config(directory=text), clock), DiskIo)
        assert isinstance(fsync.build(fsync.Config(directory=text), clock), Fsync)
    assert isinstance(fsync.build(fsync.Config(directory="/d1,/d2"), clock), EachFolder)


def read_by_folder(tmp_path: Path, folders: Sequence[str], *moments: str) -> list[dict[str, float]]:
    """Return what the disk probe of these folders reads of recorded moments, 2 s apart."""
    proc, clock = tmp_path / "proc", FakeClock()
    proc.mkdir(parents=True)

    def numbers(path: str) -> PathNumbers:
        return on(*FOLDERS[path])

    paths = SystemPaths(proc, sys_tree(tmp_path / "sys", "lvm", "second-drive"), numbers)
    probe = probe_of_each(
        ",".join(folders),
        lambda folder: DiskIo(disk_io.Config(directory=folder), clock, paths=paths),
    )
    found = []
    for moment in moments:
        text = (RECORDED / "linux-6.18" / moment / "diskstats").read_text()
        sda = next(line for line in text.splitlines() if line.split()[2] == "sda")
        sdb = "   8      16 sdb " + " ".join(sda.split()[3:]) + "\n"
        (proc / "diskstats").write_text(text + sdb)
        found.append({column.name: value for column, value in probe.read().samples})
        clock.advance(2)
    return found


def test_folders_on_one_device_are_one_device(tmp_path: Path) -> None:
    """Two partitions of a drive share its flushes and writes; a series that both have is there once."""
    _, one = read_by_folder(tmp_path / "1", ["/sda2"], "before", "after")
    _, two = read_by_folder(tmp_path / "2", ["/sda2", "/sda"], "before", "after")

    assert one.items() <= two.items()
    assert two['disk_turnover_ratio{device="sda"}'] == one['disk_turnover_ratio{device="sda"}']


def test_folders_on_two_drives_show_both_by_device(tmp_path: Path) -> None:
    _, found = read_by_folder(tmp_path, ["/sda", "/sdb"], "before", "after")

    written = {name: value for name, value in found.items() if "written_bytes" in name}

    assert set(written) == {
        'node_disk_written_bytes{device="sda"}',
        'node_disk_written_bytes{device="sdb"}',
    }
    assert written['node_disk_written_bytes{device="sdb"}'] > 0.0


def reading(*columns: Column, value: float = 23.0) -> Reading:
    event = Event("noted", 1, 0)
    return Reading(tuple((column, value) for column in columns), (event,), 0.002)


def test_readings_of_all_folders_are_one() -> None:
    """What one drive below several folders says is said once; events and costs add up."""
    probe = EachFolder(
        {"/1": FakeProbe(reading(A, SHARED)), "/2": FakeProbe(reading(B, SHARED, value=7.0))}
    )

    found = probe.read()

    assert dict(found.samples) == {A: 23.0, SHARED: 23.0, B: 7.0}
    assert (len(found.events), found.cost_seconds) == (2, 0.004)


@pytest.mark.parametrize(
    "error",
    [
        ProbeError("cannot flush in /1"),
        NotAvailableError("cannot flush in /1"),
        PartialReadingError("cannot flush in /1", reading(SHARED)),
    ],
)
def test_a_folder_that_fails_does_not_affect_the_others(error: Exception) -> None:
    """The reading has failed in part: what the others, and it, have measured counts."""
    probe = EachFolder({"/1": FakeProbe(error), "/2": FakeProbe(reading(B))})

    with pytest.raises(PartialReadingError, match="cannot flush in /1") as caught:
        probe.read()

    measured = dict(caught.value.reading.samples)
    assert measured == ({SHARED: 23.0} if isinstance(error, PartialReadingError) else {}) | {
        B: 23.0
    }


def test_nothing_is_available_when_no_folder_has_anything() -> None:
    absent = NotAvailableError("in memory")
    probe = EachFolder({"/1": FakeProbe(absent), "/2": FakeProbe(absent)})

    with pytest.raises(NotAvailableError, match="in memory"):
        probe.read()


def test_closing_closes_the_probe_of_each_folder() -> None:
    probes = {"/1": FakeProbe(reading(A)), "/2": FakeProbe(reading(B))}
    EachFolder(probes).close()

    assert all(one.is_closed for one in probes.values())


def test_wear_is_asked_of_each_drive_once(tmp_path: Path) -> None:
    """Of two folders on one drive too; a folder without a drive costs the others nothing."""

    def numbers(path: str) -> PathNumbers:
        if path not in FOLDERS:
            raise FileNotFoundError(2, "No such file or directory", path)
        return on(*FOLDERS[path])

    paths = SystemPaths(tmp_path, sys_tree(tmp_path / "sys", "lvm", "second-drive"), numbers)
    asked: list[str] = []

    def health(_tool: Tool, device: str) -> Health:
        asked.append(device)
        return {"smart_wear_ratio": 0.5}

    config = smart.Config(directory="/gone,/sda2,/sda,/sdb")
    probe = Smart(config, FakeClock(), paths=paths, health=health)
    probe.poll(Tool(("smartctl",), parse_smartctl))

    assert asked == ["/dev/sda", "/dev/sdb"]
