"""A run over several hosts: what each host does of it, and how the journals come together."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from soak.cli._part import LEADING, Part, check_in_time, check_part, part_again, part_of
from soak.cli._session import go_on
from soak.core import plan_text
from soak.core.clock import Grid
from soak.core.drive_check import Measured
from soak.core.errors import PlanError, RunFolderError, SoakError
from soak.core.model import Column
from soak.core.plan_text import PlanFile
from soak.core.units import SECOND_NS
from soak.daemons.recorder import Recorder
from soak.store import drive_checks
from soak.store.collected import collect
from soak.store.journal import JournalWriter
from soak.store.journal_reader import read_source, sources
from soak.store.run_folder import Run, RunFolder, read_run, write_plan, write_run
from tests.fakes import FakeClock

START = "2026-01-31T12:00:00.25Z"
START_NS = 1_769_860_800 * SECOND_NS + SECOND_NS // 4


def _plan(more: str = "") -> PlanFile:
    text = (
        "name: x\nbroker: {kafka: {bootstrap_servers: '127.0.0.1:9'}}\n"
        "load: {producers: 3}\nconsumers: {subscriptions: 2}\nprobes: {host: {}}\n" + more
    )
    return plan_text.load(text, "p.yaml")


def test_the_same_options_give_the_same_start_to_the_nanosecond() -> None:
    part = part_of("r1", START, "produce.2, probe")

    assert (part.start_wall_ns, part.only) == (START_NS, ("produce.2", "probe"))
    assert not part.is_first
    assert part_of("r1", "2026-01-31T13:00:00.25+01:00", "").start_wall_ns == START_NS


def test_a_host_starts_its_own_daemons_and_a_conductor_for_itself() -> None:
    names = [role.name for role in Part("r1", START_NS, ("produce.2", "consume.1")).roles(_plan())]

    assert names == ["conduct", "consume.1", "produce.2"]
    whole = [role.name for role in Part().roles(_plan())]
    assert whole == [
        "conduct", "consume.0", "consume.1", "probe",
        "produce.0", "produce.1", "produce.2", "detect-stream", "alert",
    ]  # fmt: skip


def test_with_a_topic_every_host_ships_and_the_first_receives() -> None:
    plan = _plan("ship: {}\n")

    joining = [role.name for role in Part("r1", START_NS, ("produce.2",)).roles(plan)]
    first = [role.name for role in Part("r1", START_NS, ("conduct", "alert")).roles(plan)]

    assert joining == ["conduct", "produce.2", "ship"]
    assert first == ["conduct", "ship", "receive", "alert"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("r1", "", ""), "needs --run-id and --start"),
        (("a/b", START, ""), "letters, digits"),
        (("r1", "soon", ""), "is no time"),
        (("r1", "2026-01-31T12:00:00", ""), "has no time zone"),
        (("r1", "0001-01-01T00:00:00+14:00", ""), "outside the years 1970 to 2262"),
        (("r1", "9999-12-31T23:59:59-14:00", ""), "outside the years 1970 to 2262"),
        (("r1", START, "alert,probe"), "alert belongs to the host that has conduct"),
    ],
)
def test_options_that_cannot_be_are_refused(options: tuple[str, str, str], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        part_of(*options)


def test_what_only_plan_and_time_can_tell() -> None:
    part = Part("r1", START_NS, ("produce.2",))

    check_part(part, _plan(), START_NS - 60 * SECOND_NS, 7 * SECOND_NS)
    with pytest.raises(PlanError, match="less than 7 s from now"):
        check_part(part, _plan(), START_NS, 7 * SECOND_NS)
    with pytest.raises(PlanError, match=r"p\.yaml:6: phases\.ramp: is decided by data"):
        check_part(part, _plan("phases: {ramp: {}}\n"), 0, 0)
    with pytest.raises(PlanError, match=r"no daemon 'produce\.7'; did you mean"):
        check_part(Part("r1", START_NS, ("produce.7",)), _plan(), 0, 0)


def test_what_a_host_does_is_kept_and_done_again_when_its_part_goes_on(tmp_path: Path) -> None:
    """All of it at once would double the load of the others; what is named counts from then on."""
    run = Run("r1", START_NS, "b", {}, "running", "x", ("produce.1", "consume.1"))
    write_run(RunFolder(tmp_path), run)

    kept = read_run(RunFolder(tmp_path))

    assert kept == run
    assert part_again(kept, ()) == Part("r1", START_NS, ("produce.1", "consume.1"))
    assert part_again(kept, ("produce.2",)) == Part("r1", START_NS, ("produce.2",))


def test_a_run_that_is_whole_goes_on_as_a_whole() -> None:
    """A part of it would be all that there is from then on."""
    whole = Run("r1", START_NS, "h", {}, "running", "p")

    assert part_again(whole, ()) == Part("r1", START_NS, ())
    with pytest.raises(PlanError, match="--only: run r1 has all its daemons on this host"):
        part_again(whole, ("produce.0",))


def test_a_run_that_is_whole_says_nothing_of_parts(tmp_path: Path) -> None:
    """So programs that know of none read it, and this one reads theirs."""
    folder = RunFolder(tmp_path)
    write_run(folder, Run("r1", START_NS, "b", {}, "running", "x"))

    assert "only" not in json.loads(folder.run_json.read_text())
    assert read_run(folder).only == ()


def test_the_command_goes_on_with_the_part_that_was_begun(tmp_path: Path) -> None:
    """A daemon that the plan does not have shows before any is started which ones were meant."""
    folder = RunFolder(tmp_path)
    write_plan(folder, _plan().plan)
    write_run(folder, Run("r1", START_NS, "b", {}, "running", "x", ("produce.7",)))

    with pytest.raises(PlanError, match=r"no daemon 'produce\.7'"):
        go_on(folder, Console(file=io.StringIO()))


def test_topics_that_took_until_the_start_to_make_end_the_run_before_it() -> None:
    """Daemons that come up after the first second neither send what was due nor count it as missed."""
    part, lead_ns = Part("r1", START_NS), 7 * SECOND_NS

    check_in_time(part, START_NS - lead_ns, lead_ns)
    check_in_time(Part(), START_NS, lead_ns)
    with pytest.raises(SoakError, match="not there 7 s before --start"):
        check_in_time(part, START_NS - lead_ns + 1, lead_ns)


def _host(path: Path, name: str, run_id: str = "r1") -> RunFolder:
    folder, clock = RunFolder(path), FakeClock()
    write_run(folder, Run(run_id, clock.wall_ns(), name, {}, "ended"))
    writer = JournalWriter(folder.journal / f"produce.0@{name}", clock).open()
    recorder = Recorder(writer, Grid.anchored(clock.wall_ns(), clock), clock)
    for k in range(3):
        clock.advance(1)
        recorder.append(k, [(Column("sent_messages"), float(k))])
    writer.close(is_end=True)
    return folder


def test_journals_come_together_once(tmp_path: Path) -> None:
    first, second = _host(tmp_path / "a", "a"), _host(tmp_path / "b", "b")

    brought = collect(first, second)

    assert brought == ["produce.0@b"]
    assert sources(first.journal) == ["produce.0@a", "produce.0@b"]
    assert [record.k for record, _ in read_source(first.journal, "produce.0@b")] == [0, 1, 2]
    assert collect(first, second) == []


def test_what_other_hosts_measured_of_their_drives_comes_with_the_journals(tmp_path: Path) -> None:
    """Also what was measured after the first time."""
    first, second = _host(tmp_path / "a", "a"), _host(tmp_path / "b", "b")
    drive = Measured("b", ("/data",), "before", 0)
    drive_checks.append(second, [drive])
    collect(first, second)
    drive_checks.append(second, [replace(drive, moment="after", at_wall_ns=1)])

    brought = collect(first, second)

    assert brought == ["drives/b.json"]
    assert [one.moment for one in drive_checks.read_all(first)] == ["before", "after"]
    assert collect(first, second) == []


def test_a_first_host_that_measures_nothing_takes_the_others_journals(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path / "a"), _host(tmp_path / "b", "b")
    write_run(first, read_run(second))

    assert collect(first, second) == ["produce.0@b"]
    assert [record.k for record, _ in read_source(first.journal, "produce.0@b")] == [0, 1, 2]


def test_a_journal_that_cannot_be_copied_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    first, second = _host(tmp_path / "a", "a"), _host(tmp_path / "b", "b")
    (second.journal / "produce.0@b" / "000001.jsonl").symlink_to(tmp_path / "nowhere")

    with pytest.raises(RunFolderError, match=r"cannot copy produce\.0@b"):
        collect(first, second)
    assert sources(first.journal) == ["produce.0@a"]
    assert not list(first.path.glob(".*"))


def test_a_part_that_goes_on_is_refused_with_what_ends_it(tmp_path: Path) -> None:
    first, second = _host(tmp_path / "a", "a"), _host(tmp_path / "b", "b")
    write_run(second, replace(read_run(second), state="running"))

    with pytest.raises(RunFolderError, match=r"is not over: .* ends it by `soak stop`"):
        collect(first, second)


def test_journals_of_another_run_or_of_a_namesake_are_refused(tmp_path: Path) -> None:
    first = _host(tmp_path / "a", "a")

    with pytest.raises(RunFolderError, match="is of run r2, not of r1"):
        collect(first, _host(tmp_path / "b", "b", "r2"))
    namesake = _host(tmp_path / "c", "a")
    next((namesake.journal / "produce.0@a").glob("*.jsonl")).write_text("other\n")
    with pytest.raises(RunFolderError, match="two hosts called alike"):
        collect(first, namesake)


def test_the_daemons_of_the_first_host_are_daemons() -> None:
    assert set(LEADING) <= {role.name for role in Part().roles(_plan("ship: {}\n"))}
