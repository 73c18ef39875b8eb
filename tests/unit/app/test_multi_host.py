"""A run over several hosts: the part of each host, merging of journals, and probe hosts."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from soak.app.foreground import resume_run
from soak.app.multi_host import (
    LEADING_DAEMONS,
    Part,
    check_lead_time,
    check_part,
    part_of,
    resumed_part,
    run_probe_host,
)
from soak.core.clock import Grid, SystemClock
from soak.core.cluster.drives import Measured
from soak.core.errors import PlanError, RunFolderError, SoakError
from soak.core.model import Column
from soak.core.plan import text as plan_text
from soak.core.plan.plan import ProbePlan
from soak.core.plan.text import PlanFile
from soak.core.units import SECOND_NS
from soak.runtime.grid import host_name
from soak.runtime.recorder import Recorder
from soak.service import children
from soak.store import run_folder
from soak.store.journal.reader import SourceReader, read_source, sources
from soak.store.journal.writer import JournalWriter
from soak.store.merge import merge_run_folder
from soak.store.run_folder import Run, RunFolder, read_run, write_plan, write_run
from tests.support.fakes import FakeClock
from tests.support.paths import ROOT

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
        (("r1", "soon", ""), "is not a time"),
        (("r1", "2026-01-31T12:00:00", ""), "has no time zone"),
        (("r1", "0001-01-01T00:00:00+14:00", ""), "outside the years 1970 to 2262"),
        (("r1", "9999-12-31T23:59:59-14:00", ""), "outside the years 1970 to 2262"),
        (("r1", START, "alert,probe"), "alert must run on the host that has conduct"),
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
    with pytest.raises(PlanError, match=r"p\.yaml:6: phases\.ramp: depends on data"):
        check_part(part, _plan("phases: {ramp: {}}\n"), 0, 0)
    with pytest.raises(PlanError, match=r"no daemon 'produce\.7'; did you mean"):
        check_part(Part("r1", START_NS, ("produce.7",)), _plan(), 0, 0)


def test_what_a_host_does_is_kept_and_done_again_when_its_part_goes_on(tmp_path: Path) -> None:
    """All of it at once would double the load of the others; what is named counts from then on."""
    run = Run("r1", START_NS, "b", {}, "running", "x", ("produce.1", "consume.1"))
    write_run(RunFolder(tmp_path), run)

    kept = read_run(RunFolder(tmp_path))

    assert kept == run
    assert resumed_part(kept, ()) == Part("r1", START_NS, ("produce.1", "consume.1"))
    assert resumed_part(kept, ("produce.2",)) == Part("r1", START_NS, ("produce.2",))


def test_a_run_that_is_whole_goes_on_as_a_whole() -> None:
    """A part of it would be all that there is from then on."""
    whole = Run("r1", START_NS, "h", {}, "running", "p")

    assert resumed_part(whole, ()) == Part("r1", START_NS, ())
    with pytest.raises(PlanError, match="--only: run r1 has all its daemons on this host"):
        resumed_part(whole, ("produce.0",))


def test_a_run_that_is_whole_says_nothing_of_parts(tmp_path: Path) -> None:
    """So programs that know of none read it, and this one reads theirs."""
    folder = RunFolder(tmp_path)
    write_run(folder, Run("r1", START_NS, "b", {}, "running", "x"))

    assert "only" not in json.loads(folder.run_json.read_text())
    assert read_run(folder).only == ()


def test_a_resumed_run_keeps_the_part_of_its_host(tmp_path: Path) -> None:
    """A daemon that the plan does not have shows before any is started which ones were meant."""
    folder = RunFolder(tmp_path)
    write_plan(folder, _plan().plan)
    write_run(folder, Run("r1", START_NS, "b", {}, "running", "x", ("produce.7",)))

    with pytest.raises(PlanError, match=r"no daemon 'produce\.7'"):
        resume_run(folder, Console(file=io.StringIO()))


def test_the_first_line_names_the_run_folder(tmp_path: Path) -> None:
    """Also where there is no terminal, and whatever follows."""
    folder, printed = RunFolder(tmp_path), io.StringIO()
    write_plan(folder, _plan().plan)
    write_run(folder, Run("r1", START_NS, "b", {}, "ended", "x"))

    with pytest.raises(SoakError, match="cannot be resumed: it is ended"):
        resume_run(folder, Console(file=printed))
    assert printed.getvalue() == f"run: {tmp_path}\n"


def test_topics_that_took_until_the_start_to_make_end_the_run_before_it() -> None:
    """Daemons that come up after the first second neither send what was due nor count it as missed."""
    part, lead_ns = Part("r1", START_NS), 7 * SECOND_NS

    check_lead_time(part, START_NS - lead_ns, lead_ns)
    check_lead_time(Part(), START_NS, lead_ns)
    with pytest.raises(SoakError, match="did not exist 7 s before --start"):
        check_lead_time(part, START_NS - lead_ns + 1, lead_ns)


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

    brought = merge_run_folder(first, second)

    assert brought == ["produce.0@b"]
    assert sources(first.journal) == ["produce.0@a", "produce.0@b"]
    assert [record.k for record, _ in read_source(first.journal, "produce.0@b")] == [0, 1, 2]
    assert merge_run_folder(first, second) == []


def test_what_other_hosts_measured_of_their_drives_comes_with_the_journals(tmp_path: Path) -> None:
    """Also what was measured after the first time."""
    first, second = _host(tmp_path / "a", "a"), _host(tmp_path / "b", "b")
    drive = Measured("b", ("/data",), "before", 0)
    run_folder.append_drive_checks(second, [drive])
    merge_run_folder(first, second)
    run_folder.append_drive_checks(second, [replace(drive, moment="after", at_wall_ns=1)])

    brought = merge_run_folder(first, second)

    assert brought == ["drives/b.json"]
    assert [one.moment for one in run_folder.read_drive_checks(first)] == ["before", "after"]
    assert merge_run_folder(first, second) == []


def test_a_first_host_that_measures_nothing_takes_the_others_journals(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path / "a"), _host(tmp_path / "b", "b")
    write_run(first, read_run(second))

    assert merge_run_folder(first, second) == ["produce.0@b"]
    assert [record.k for record, _ in read_source(first.journal, "produce.0@b")] == [0, 1, 2]


def test_a_journal_that_cannot_be_copied_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    first, second = _host(tmp_path / "a", "a"), _host(tmp_path / "b", "b")
    (second.journal / "produce.0@b" / "000001.jsonl").symlink_to(tmp_path / "nowhere")

    with pytest.raises(
        RunFolderError, match=r"cannot copy .*/produce\.0@b: .*links are not followed"
    ):
        merge_run_folder(first, second)
    assert sources(first.journal) == ["produce.0@a"]
    assert not list(first.path.glob(".*"))


def test_a_part_that_goes_on_is_refused_with_what_ends_it(tmp_path: Path) -> None:
    first, second = _host(tmp_path / "a", "a"), _host(tmp_path / "b", "b")
    write_run(second, replace(read_run(second), state="running"))

    with pytest.raises(RunFolderError, match=r"is not over: .* with `soak stop`"):
        merge_run_folder(first, second)


def test_journals_of_another_run_or_of_a_namesake_are_refused(tmp_path: Path) -> None:
    first = _host(tmp_path / "a", "a")

    with pytest.raises(RunFolderError, match="is of run r2, not of r1"):
        merge_run_folder(first, _host(tmp_path / "b", "b", "r2"))
    namesake = _host(tmp_path / "c", "a")
    next((namesake.journal / "produce.0@a").glob("*.jsonl")).write_text("other\n")
    with pytest.raises(RunFolderError, match="two hosts have the same name"):
        merge_run_folder(first, namesake)


def test_the_daemons_of_the_first_host_are_daemons() -> None:
    assert set(LEADING_DAEMONS) <= {role.name for role in Part().roles(_plan("ship: {}\n"))}


PLAN = "name: x\nprobes: {pressure: {}}\n"
HOST_START = "2026-01-31T12:00:00Z"
HOST_START_NS = 1_769_860_800 * 10**9


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "soak.cli.main", "probe", *arguments]


def probed(folder: RunFolder, *arguments: str) -> tuple[int, str]:
    """Start the host, end it after a record more than there were, return its exit code and errors."""
    path = folder.journal / f"probe@{host_name()}"
    before, deadline = newest(path), time.monotonic() + 60
    mortal = children.with_death_signal(command(*arguments))
    with subprocess.Popen(mortal, stderr=subprocess.PIPE, text=True) as process:
        while newest(path) == before and process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        process.terminate()
        _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def newest(path: Path) -> int:
    return max((file.stat().st_size for file in path.glob("*.jsonl")), default=0) + len(
        list(path.glob("*.jsonl"))
    )


@pytest.mark.slow
def test_it_records_goes_on_in_its_folder_and_can_be_collected(tmp_path: Path) -> None:
    """Two starts are two epochs of one source, of the run that both hosts name."""
    (tmp_path / "p.yaml").write_text(PLAN + "free_space_floor: 1MiB\n")
    folder = RunFolder(tmp_path / "b")
    options = (str(tmp_path / "p.yaml"), "--run-dir", str(folder.path), "--run-id", "r1")

    codes = [probed(folder, *options, "--start", HOST_START)[0] for _ in range(2)]
    first = RunFolder(tmp_path / "a")
    first.path.mkdir()
    write_run(first, Run("r1", HOST_START_NS, "a", {}, "ended", "x"))
    brought = merge_run_folder(first, folder)

    source = f"probe@{host_name()}"
    reader = SourceReader(first.journal / source)
    epochs = sorted({record.epoch for record, _ in read_source(first.journal, source, reader)})
    assert codes == [0, 0]
    assert (read_run(folder).state, brought, len(epochs)) == ("ended", [source], 2)
    assert reader.ended_epoch == epochs[-1]


def refused(tmp_path: Path, text: str, run_dir: Path | None) -> str:
    """Return what is said of a plan that is not taken."""
    plan = tmp_path / "p.yaml"
    plan.write_text(text)
    with pytest.raises(PlanError) as error:
        run_probe_host(plan, run_dir, "", "", threading.Event(), SystemClock())
    return str(error.value)


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    """Nothing is overwritten."""
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").touch()

    said = refused(tmp_path, PLAN, tmp_path / "b")

    assert said.endswith("is not empty and not a run folder")
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["mine"]


def test_a_plan_that_ships_no_more_records_beside_the_runs_that_were_joined(tmp_path: Path) -> None:
    """The unit names one folder, whatever the plan says: it is to start with either."""
    (tmp_path / "p.yaml").write_text(PLAN + "free_space_floor: 1MiB\n")
    home, stop = tmp_path / "b", threading.Event()
    write_run(RunFolder(home / "x-r1"), Run("r1", HOST_START_NS, "b", {}, "ended", "x"))
    (home / "x.lock").touch()
    stop.set()

    run_probe_host(tmp_path / "p.yaml", home, "", "", stop, SystemClock())

    assert (read_run(RunFolder(home)).name, read_run(RunFolder(home / "x-r1")).id) == ("x", "r1")


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    """Two plans in one folder would be one source."""
    write_run(RunFolder(tmp_path / "b"), Run("r0", HOST_START_NS, "b", {}, "ended", "y"))

    said = refused(tmp_path, PLAN, tmp_path / "b")

    assert said.endswith("belongs to run r0 of plan y")


def test_a_plan_of_a_run_is_refused_with_what_does_its_part(tmp_path: Path) -> None:
    """It has topics to make, and phases to follow."""
    said = refused(tmp_path, PLAN + "broker: {kafka: {bootstrap_servers: 'h:9'}}\n", None)

    assert "p.yaml:3: broker: makes this the plan of a run" in said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("topic: {}\n", "p:3: topic: unknown key; known: free_space_floor, journal"),
        (
            "ship: {}\n",
            "p:3: ship.bootstrap_servers: names no cluster, and this plan measures none",
        ),
        (
            "ship: {bootstrap_servers: 'h:9', buffer: 1KiB}\n",
            "p:3: ship.buffer: must be at least 1MiB",
        ),
        ("sampling: {fsync: {}}\n", "p:3: sampling.fsync: is not a probe of this plan"),
        (
            "sampling: {pressure: {period: 1500ms}}\n",
            "p:3: sampling.pressure.period: must be whole",
        ),
        ("sampling: {pressure: {period: 2h}}\n", "period: must lie between 1s and 1h"),
        ("sampling: {pressure: {timeout: 1ms}}\n", "timeout: must lie between 1s and 10min"),
        (
            "sampling: {pressure: {perid: 1s}}\n",
            "sampling.pressure.perid: unknown key; did you mean",
        ),
        ("metrics: {port: 70000}\n", "p:3: metrics.port: must lie between 0 and 65535"),
    ],
)
def test_what_cannot_be_is_refused_with_file_line_and_key(more: str, said: str) -> None:
    """Before anything is made."""
    with pytest.raises(PlanError) as error:
        plan_text.load_any(PLAN + more, "p")

    assert said in str(error.value)


def test_a_plan_without_a_broker_survives_being_written_out() -> None:
    """The run folder holds it with every default."""
    text = (
        PLAN
        + "sampling: {pressure: {period: 1min}}\nship: {bootstrap_servers: 'h:9'}\nmetrics: {}\n"
    )
    plan, _ = plan_text.load_any(text, "p")

    again, _ = plan_text.load_any(plan_text.dump(plan), "again")

    assert isinstance(plan, ProbePlan)
    assert again == plan


def test_the_plan_that_ships_shows_every_default() -> None:
    """What `configs/probe-host.yaml` says is what is done when it says nothing."""
    path = ROOT / "configs" / "probe-host.yaml"
    shown, _ = plan_text.load_any(path.read_text(), "probe-host.yaml")
    folder = "{directory: /var/lib/kafka}"
    bare = (
        "name: probe-host\n"
        f"probes: {{clock: {{}}, disk_io: {folder}, fsync: {folder}, host: {{}}, pressure: {{}}}}\n"
        "ship: {bootstrap_servers: 'broker1:9092', key: '${credential:soak_ship}'}\n"
    )

    assert plan_text.load_any(bare, "bare")[0] == shown
