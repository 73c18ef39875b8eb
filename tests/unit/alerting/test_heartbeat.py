"""When the heartbeat of a daemon is missing, and when it is back."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection
from pathlib import Path

import pytest
import yaml

from soak.alerting.daemon import AlertDaemon
from soak.alerting.heartbeat import (
    DETECT,
    MISSING_AFTER_NS,
    Heartbeat,
    HeartbeatMonitor,
    Notice,
    queue_run_aborted,
    read_notices,
)
from soak.alerting.heartbeat_message import compose
from soak.core.errors import FindingsError
from soak.core.journal_format import End, encode
from soak.core.plan.phases import decision_line
from soak.core.plan.text import load
from soak.core.ports import Message, Outcome, Sink
from soak.core.units import SECOND_NS
from soak.runtime.grid import host_name
from soak.store.findings.store import FindingsFile, FindingsStore
from soak.store.plan_home import PlanHome
from soak.store.run_folder import RunFolder, read_run
from tests.support.fakes import FakeClock
from tests.support.spark.synthetic_run import Shape, write_synthetic_run

STEP_NS = 5


class Beats:
    """A daemon that is checked every five seconds, active in some stretches and silent in others."""

    def __init__(self, *, is_reported: bool = False) -> None:
        self.second = 0
        self.heartbeat = Heartbeat(
            0, 0, 3 * SECOND_NS, is_reported, silent_ns=MISSING_AFTER_NS if is_reported else 0
        )

    def alive(self, seconds: int) -> Beats:
        return self._go_on(seconds, is_alive=True)

    def silent(self, seconds: int) -> Beats:
        return self._go_on(seconds, is_alive=False)

    def _go_on(self, seconds: int, *, is_alive: bool) -> Beats:
        for _ in range(0, seconds, STEP_NS):
            self.second += STEP_NS
            sign = self.second if is_alive else self.heartbeat.activity
            self.heartbeat.update(sign, self.second * SECOND_NS, STEP_NS * SECOND_NS)
        return self


def test_a_daemon_is_missing_after_five_minutes_since_its_last_activity() -> None:
    early, late = Beats().alive(60).silent(295), Beats().alive(60).silent(300)

    assert (early.heartbeat.is_missing, late.heartbeat.is_missing) == (False, True)
    assert late.heartbeat.silent_since_ns == 60 * SECOND_NS


@pytest.mark.parametrize(("dead", "up", "is_missing"), [(25, 10, True), (20, 40, False)])
def test_a_daemon_that_keeps_crashing_is_missing_when_it_is_down_for_longer(
    dead: int, up: int, *, is_missing: bool
) -> None:
    """For an hour; a daemon that is up most of the time leaves gaps only."""
    beats = Beats().alive(60)
    for _ in range(3600 // (dead + up)):
        beats.silent(dead)
        found = beats.heartbeat.is_missing
        beats.alive(up)

    assert found is is_missing


def test_a_start_may_take_ten_minutes_which_do_not_count_later() -> None:
    started = Beats().silent(590).alive(5)

    assert not started.heartbeat.is_missing
    assert not started.silent(295).heartbeat.is_missing
    assert started.silent(5).heartbeat.is_missing
    assert Beats().silent(600).heartbeat.is_missing


def test_a_reported_daemon_is_back_after_five_minutes_of_activity() -> None:
    """A shorter activity is not enough, and start times do not matter."""
    beats = Beats(is_reported=True).silent(1000).alive(100).silent(50).alive(245)

    assert beats.heartbeat.silent_ns > 0
    assert beats.alive(5).heartbeat.silent_ns == 0
    assert beats.heartbeat.silent_until_ns == 1150 * SECOND_NS


STEP = 10  # seconds between two looks: all of them count
CONSUMER, PRODUCER, PROBE = (
    f"{name}@{host_name()}" for name in ("consume.0", "produce.0", "probe")
)
ALL = (CONSUMER, PRODUCER, PROBE)


class World:
    """A run that goes on, and whose daemons record as a test says; time passes in steps."""

    def __init__(self, path: Path) -> None:
        shape = Shape(seconds=30, warm_up=5, fault_k=None, is_ended=False)
        self.folder = write_synthetic_run(path / "home" / "run", shape)
        for source in sorted(self.folder.journal.iterdir()):
            source.rename(source.with_name(f"{source.name.partition('@')[0]}@{host_name()}"))
        self.decide(("soak", 0), ("drain", 100_000))
        self.clock = FakeClock()
        self.sent: list[Message] = []
        self.monitor = self.new_monitor()

    def decide(self, *decisions: tuple[str, int]) -> None:
        self.folder.phases.write_text("".join(decision_line(*one) for one in decisions))  # type: ignore[arg-type]  # literals

    def plan(self, more: dict[str, object]) -> None:
        """Replace keys of the run's plan."""
        body = yaml.safe_load(self.folder.plan.read_text())
        self.folder.plan.write_text(yaml.safe_dump({**body, **more}))
        self.monitor = self.new_monitor()

    def new_monitor(self) -> HeartbeatMonitor:
        """Return the monitor of a daemon that is started now."""
        plan = load(self.folder.plan.read_text(), "plan.yaml").plan
        findings = FindingsFile(self.folder.findings)
        run = read_run(self.folder)
        return HeartbeatMonitor(self.folder, plan, run, ("mail",), self.clock, findings)

    def daemon(self, sink: Sink | None = None) -> AlertDaemon:
        plan = load(self.folder.plan.read_text(), "plan.yaml").plan
        sinks = {"mail": sink or self}
        return AlertDaemon(self.folder, plan, read_run(self.folder), sinks, self.clock)

    def send(self, message: Message) -> Outcome:
        self.sent.append(message)
        return Outcome("delivered")

    def write(self, source: str, raw: bytes = b"-\n") -> None:
        (self.folder.journal / source).mkdir(exist_ok=True)
        with (self.folder.journal / source / "000000.jsonl").open("ab") as file:
            file.write(raw)

    def go_on(self, seconds: int, recording: Collection[str] = ALL) -> None:
        for _ in range(0, seconds, STEP):
            self.clock.advance(STEP)
            for source in recording:
                self.write(source)
            self.monitor.poll()

    def reported(self) -> list[tuple[str, bool]]:
        """Return the daemons that were reported, and whether they are back."""
        found = read_notices(FindingsFile(self.folder.findings))
        return [(name, one.until_wall_ns is not None) for one in found for name in one.daemons]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_daemon_that_stops_recording_is_missing_after_five_minutes(world: World) -> None:
    """Since its last record; daemons that stopped with it are in the same message."""
    world.go_on(60)
    world.go_on(290, recording=(PROBE,))
    before = world.reported()
    world.go_on(20, recording=(PROBE,))

    (notice,) = read_notices(FindingsFile(world.folder.findings))
    assert before == []
    assert notice.daemons == (CONSUMER, PRODUCER)
    assert notice.since_wall_ns == FakeClock().wall_ns() + 60 * 10**9


def test_a_daemon_is_back_once_it_was_active_for_as_long(world: World) -> None:
    """A shorter activity is not enough; the message says when it began."""
    world.go_on(60)
    world.go_on(400, recording=(CONSUMER, PROBE))
    world.go_on(200)
    between = world.reported()
    world.go_on(120)

    (notice,) = read_notices(FindingsFile(world.folder.findings))
    assert between == [(PRODUCER, False)]
    assert notice.until_wall_ns == FakeClock().wall_ns() + 460 * 10**9


@pytest.mark.long
def test_a_daemon_that_ended_on_purpose_is_not_missing(world: World) -> None:
    """In a pause the daemons end before the alert daemon does."""
    world.go_on(60, recording=(*ALL, "probe@b1"))
    for source in (*ALL, "probe@b1"):
        world.write(source, encode(End(1)))
    world.go_on(590, recording=())
    world.clock.advance(86_400)
    world.monitor = world.new_monitor()
    world.go_on(700)

    assert world.reported() == []


@pytest.mark.long
def test_a_daemon_that_does_not_return_from_an_orderly_end_is_missing(world: World) -> None:
    """It crashes at every start since; a daemon of another host may have ended for good."""
    world.go_on(60, recording=(*ALL, "probe@b1"))
    for source in (PROBE, "probe@b1"):
        world.write(source, encode(End(1)))
    world.go_on(890, recording=(CONSUMER, PRODUCER))
    before = world.reported()
    world.go_on(3600, recording=(CONSUMER, PRODUCER))

    (notice,) = read_notices(FindingsFile(world.folder.findings))
    assert before == []
    assert notice.daemons == (PROBE,)
    assert notice.since_wall_ns == FakeClock().wall_ns() + 70 * 10**9


def test_no_daemon_is_missing_after_its_last_second(world: World) -> None:
    """Producers end when the drain begins, the others at the end."""
    world.plan({"phases": {"warm_up": "5s", "soak": "1h", "drain": "1h"}})
    world.decide(("soak", 0), ("drain", 60))
    world.go_on(60)
    world.go_on(400, recording=(CONSUMER, PROBE))
    world.decide(("soak", 0), ("drain", 60), ("end", 470))
    world.go_on(400, recording=())

    assert world.reported() == []


def test_no_daemon_is_missing_before_the_first_second(world: World) -> None:
    """One of several hosts may be ready an hour early."""
    world.clock.step_wall(-3600)
    world.go_on(700, recording=())

    assert world.reported() == []


@pytest.mark.long
def test_a_start_may_take_ten_minutes(world: World) -> None:
    """A consumer reads its journal first; that time does not count later."""
    world.go_on(580, recording=(PRODUCER, PROBE))
    world.go_on(100)
    world.go_on(200, recording=(PRODUCER, PROBE))
    before = world.reported()
    again = World(world.folder.path.parents[1] / "again")
    again.go_on(620, recording=(PRODUCER, PROBE))

    assert before == []
    assert again.reported() == [(CONSUMER, False)]


@pytest.mark.long
def test_a_consumer_that_restarts_may_take_ten_minutes(world: World) -> None:
    """Late in a run its journal is long; once reported, it is back after five minutes like others."""
    world.go_on(60)
    world.go_on(590, recording=(PRODUCER, PROBE))
    world.go_on(700)
    before = world.reported()
    world.go_on(620, recording=(PRODUCER, PROBE))
    between = world.reported()
    world.go_on(320)

    assert (before, between) == ([], [(CONSUMER, False)])
    assert world.reported() == [(CONSUMER, True)]


def test_time_in_which_the_monitor_did_not_run_does_not_count(world: World) -> None:
    """The machine stood still, and all its daemons with it."""
    world.go_on(60)
    for _ in range(10):
        world.clock.advance(3600)
        world.monitor.poll()
        world.go_on(20)

    assert world.reported() == []


def test_the_next_alert_daemon_continues_without_repeating(world: World) -> None:
    """It was killed after it had reported a daemon."""
    world.go_on(60)
    world.go_on(320, recording=(CONSUMER, PROBE))
    world.monitor = world.new_monitor()
    world.go_on(700, recording=(CONSUMER, PROBE))
    before = world.reported()
    world.go_on(320)

    assert before == [(PRODUCER, False)]
    assert world.reported() == [(PRODUCER, True)]


def test_a_daemon_that_returned_unseen_is_back_since_the_monitor_runs_again(world: World) -> None:
    """The alert daemon was down itself."""
    world.go_on(60)
    world.go_on(320, recording=(CONSUMER, PROBE))
    world.clock.advance(1000)
    world.monitor = world.new_monitor()
    world.go_on(320)

    (notice,) = read_notices(FindingsFile(world.folder.findings))
    assert notice.until_wall_ns == FakeClock().wall_ns() + (1380 + STEP) * 10**9


def test_a_daemon_of_another_host_is_missing_only_after_it_was_active(world: World) -> None:
    """The host may not belong to the run, and its records arrive late."""
    world.write("probe@b1")
    world.go_on(700)
    before = world.reported()
    world.go_on(8, recording=(*ALL, "probe@b1"))
    world.go_on(340)
    hardly = world.reported()
    world.go_on(40)

    assert (before, hardly) == ([], [])
    assert world.reported() == [("probe@b1", False)]


def test_a_service_that_never_recorded_is_missing(world: World) -> None:
    """In a run by hand it may be on another host."""
    world.plan({"load": {"rate": "400/s", "producers": 2}})
    world.go_on(620)
    by_hand = world.reported()
    as_service(world.folder)
    world.go_on(620)

    assert by_hand == []
    assert world.reported() == [(f"produce.1@{host_name()}", False), (DETECT, False)]


def test_a_detector_without_batches_is_missing(world: World) -> None:
    """Ten minutes after its last batch, and only while daemons record."""
    commits = world.folder.checkpoint / "commits"
    commits.mkdir(parents=True)
    world.go_on(20)
    os.utime(commits, ns=(1, 1))
    world.go_on(580)
    before = world.reported()
    world.go_on(60)

    assert before == []
    assert world.reported() == [("detect-stream", False)]


def test_a_conductor_that_decides_nothing_is_missing(world: World) -> None:
    """It is back with the first decision."""
    world.decide()
    as_service(world.folder)
    world.go_on(320, recording=())
    before = world.reported()
    world.decide(("soak", 0), ("drain", 100_000))
    world.go_on(320)

    assert before == [("conduct", False)]
    assert world.reported() == [("conduct", True)]


def test_all_limits_start_anew_when_a_notice_cannot_be_stored(world: World) -> None:
    """The drive is full, which stops the daemons too."""
    world.go_on(60)
    world.folder.findings.unlink()
    world.folder.findings.mkdir()
    with pytest.raises(FindingsError):
        world.go_on(320, recording=())
    world.folder.findings.rmdir()
    world.go_on(4, recording=())
    world.go_on(400)

    assert world.reported() == []


@pytest.mark.long
def test_unreadable_journals_do_not_end_the_alert_daemon(world: World) -> None:
    """All limits start anew."""
    daemon = world.daemon()
    unreadable = world.folder.journal / PROBE / "000001.jsonl"
    for second in range(0, 1200, STEP):
        world.clock.advance(STEP)
        if second == 60:
            unreadable.mkdir()
        if second == 600:
            unreadable.rmdir()
        for source in (CONSUMER, PRODUCER) if 60 <= second < 600 else ALL:
            world.write(source)
        daemon.poll()

    assert world.sent == []


def test_a_daemon_that_returned_before_it_was_reported_sends_nothing(world: World) -> None:
    """As in a maintenance window."""
    world.go_on(60)
    world.go_on(320, recording=(CONSUMER, PROBE))
    world.go_on(320)

    with FindingsStore(world.folder.findings) as store:
        assert store.open_notifications() == []


MISSED = f"""\
The run continues without these daemons, which hang or crash at each start.
Nothing can be detected in the time that they do not record.
This says nothing about the cluster.

missing   {PRODUCER}
since     2026-09-21 14:14:20Z
logs      on {host_name()}: tail LOGS/produce.0.log
run       synthetic-1
"""


@pytest.mark.long
def test_missing_and_returned_are_one_thread_of_mails(world: World) -> None:
    """With the same labels."""
    daemon = world.daemon()
    for second in range(0, 760, STEP):
        world.clock.advance(STEP)
        for source in ALL if not 60 <= second < 400 else (CONSUMER, PROBE):
            world.write(source)
        daemon.poll()

    first, second_ = world.sent
    logs = str(world.folder.logs)
    assert first.subject == f"[soakd] no heartbeat from {PRODUCER} since 14:14:20Z - synthetic"
    assert first.text == MISSED.replace("LOGS", logs)
    assert (
        second_.subject == f"[soakd] heartbeat of {PRODUCER} is back after 5 min 40 s - synthetic"
    )
    assert "back      at 14:20:00Z, after 5 min 40 s\n" in second_.text
    assert second_.follows == first.key
    assert first.labels == second_.labels
    assert (first.end_wall_ns, second_.end_wall_ns) == (None, first.begin_wall_ns + 340 * 10**9)


@pytest.mark.long
def test_a_late_message_says_that_the_daemon_is_back_by_now(world: World) -> None:
    """The sink was unavailable."""
    is_away = True

    class Flaky:
        def send(self, message: Message) -> Outcome:
            return Outcome("retry", "away") if is_away else world.send(message)

    daemon = world.daemon(Flaky())
    for second in range(0, 1800, STEP):
        world.clock.advance(STEP)
        is_away = second < 900
        for source in ALL if not 60 <= second < 400 else (CONSUMER, PROBE):
            world.write(source)
        daemon.poll()

    first, last = world.sent
    assert first.text.startswith(
        "This is resolved by now, see the next message.\n\nThe run continues without these"
    )
    assert "is back after" in last.subject
    assert "resolved by now" not in last.text


REMOTE = f"""\
Records of these daemons on other hosts do not arrive any more.
They may wait there to be sent; until then nothing is detected in them.

missing   probe@b1, probe@b2
since     2026-09-21 14:14:20Z
logs      on {host_name()}: tail LOGS/receive.log
cluster   check that the cluster of the topic in `ship` is up
logs      on b1: probe.log and ship.log in the log folder of its run
run       synthetic-1
"""


@pytest.mark.long
def test_missing_records_of_other_hosts_have_their_own_text(world: World) -> None:
    """They may wait there while the cluster of the topic is down: that is no gap."""
    daemon = world.daemon()
    for second in range(0, 860, STEP):
        world.clock.advance(STEP)
        is_cut = 60 <= second < 500
        for source in ALL if is_cut else (*ALL, "probe@b1", "probe@b2"):
            world.write(source)
        daemon.poll()

    first, last = world.sent
    assert first.subject == (
        "[soakd] no records from probe@b1, probe@b2 since 14:14:20Z - synthetic"
    )
    assert first.text == REMOTE.replace("LOGS", str(world.folder.logs))
    assert last.subject == (
        "[soakd] records from probe@b1, probe@b2 arrive again after 7 min 20 s - synthetic"
    )
    assert last.text.startswith(
        "Records of these daemons arrive again, with those that waited on their hosts.\n\nmissing "
    )


@pytest.mark.parametrize("step_seconds", [-7200, 7200])
def test_a_clock_step_does_not_change_the_length(world: World, step_seconds: int) -> None:
    world.go_on(60)
    world.go_on(320, recording=(CONSUMER, PROBE))
    world.clock.step_wall(step_seconds)
    world.go_on(20, recording=(CONSUMER, PROBE))
    world.go_on(320)

    (notice,) = read_notices(FindingsFile(world.folder.findings))
    assert notice.until_wall_ns == notice.since_wall_ns + 340 * 10**9


def test_no_daemon_is_missing_after_a_suspend(world: World) -> None:
    """All have the usual time to become active."""
    world.go_on(60)
    world.clock.suspend(7200)
    world.go_on(280, recording=())
    world.go_on(60)

    assert world.reported() == []


def test_a_daemon_that_died_before_a_suspend_is_missing_since_then(world: World) -> None:
    """The suspended time is not silent time, but it has passed."""
    world.go_on(60)
    world.go_on(100, recording=(CONSUMER, PROBE))
    world.clock.suspend(7200)
    world.go_on(220, recording=(CONSUMER, PROBE))
    world.go_on(320)

    (notice,) = read_notices(FindingsFile(world.folder.findings))
    assert notice.since_wall_ns == FakeClock().wall_ns() + 60 * 10**9
    assert notice.until_wall_ns == FakeClock().wall_ns() + (380 + 7200) * 10**9


def test_hostile_names_stay_text_in_their_line() -> None:
    """A source is named by another host; a path may hold bytes that are no characters."""
    notice = Notice("k", ("probe@b\n\x1b[2J",), 0, host="h1", logs="/runs/\udce9")

    message = compose(notice, "missing", "run1", "demo", 0)

    assert message.subject.isprintable()
    assert all(line.isprintable() for line in message.text.splitlines())
    assert message.text.encode()


def test_a_return_on_another_day_shows_the_day() -> None:
    since_ns = FakeClock().wall_ns()
    notice = Notice("k", ("probe@b",), since_ns, since_ns + 36 * 3600 * 10**9, host="h1")

    text = compose(notice, "returned", "run1", "demo", 0).text

    assert "back      at 2026-09-23 02:13:20Z, after 36 h\n" in text


def test_the_log_command_is_that_of_the_time_when_the_daemon_went_missing(world: World) -> None:
    """Another run may be the current one when the message is sent."""
    as_service(world.folder)
    world.decide()
    world.go_on(320, recording=())
    PlanHome(world.folder.path.parent).current.unlink()
    world.daemon().poll()

    (message,) = world.sent
    assert f"logs      on {host_name()}: journalctl -t soak-conduct -n 50\n" in message.text


@pytest.mark.parametrize(
    ("daemon", "logs", "where"),
    [
        ("probe@b1", "", "on b1: journalctl -t soak-host -t soak-probe -t soak-ship -n 50"),
        ("probe@b1", "/runs/logs", "on b1: probe.log and ship.log in the log folder of its run"),
        (DETECT, "", "on h1: journalctl -t soak-detect -n 50"),
    ],
)
def test_the_log_command_names_the_host_of_the_daemon(daemon: str, logs: str, where: str) -> None:
    """A broker host runs one unit, `soak-host@`; its log folder is not known here."""
    notice = Notice("run1-x-1", (daemon,), 0, host="h1", logs=logs)

    text = compose(notice, "missing", "run1", "demo", 0).text

    assert where in text.splitlines()[-2]


def test_an_aborted_run_is_one_message(world: World) -> None:
    plan = load(world.folder.plan.read_text(), "plan.yaml").plan
    sinks = dataclasses.replace(plan, sinks={"mail": None})
    why = "consume.0 died 6 times in a minute (exit 1)"
    queue_run_aborted(world.folder, sinks, read_run(world.folder), world.clock, why)
    daemon = world.daemon()
    daemon.poll()
    daemon.poll()

    (message,) = world.sent
    assert message.subject == f"[soakd] run aborted: {why} - synthetic"
    assert message.text.startswith(f"The run was aborted: {why}.\n")
    assert f"logs      on host: {world.folder.logs}\n" in message.text


def test_a_missing_heartbeat_of_a_lab_run_is_one_of_a_lab(world: World) -> None:
    """As every mail about it says first: somebody may be at a rehearsal."""
    world.plan({"lab": {}})
    world.go_on(60)
    world.go_on(320, recording=(CONSUMER, PROBE))
    world.daemon().poll()

    (message,) = world.sent
    assert message.subject.startswith(f"[soakd lab] no heartbeat from {PRODUCER} since ")


def test_the_digest_names_missing_daemons(world: World) -> None:
    world.plan({"alerts": {"digest": "0 7 * * *"}})
    world.go_on(60)
    world.go_on(320, recording=(CONSUMER, PROBE))
    world.clock.advance(86_400)
    world.daemon().poll()

    (digest,) = [one for one in world.sent if "digest" in one.subject]
    assert f"missing   {PRODUCER} since 2026-09-21 14:14:20Z\n" in digest.text


def as_service(folder: RunFolder) -> None:
    """Make it the current run of a plan's home."""
    PlanHome(folder.path.parent).set_current(folder)


def test_the_message_names_the_log_of_each_missing_daemon() -> None:
    daemons = tuple(
        f"{role}@h" for role in ("conduct", "consume.0", "detect", "probe", "produce.0")
    )
    missed = Notice("k", daemons, 10**18, host="h", logs="/l")
    text = compose(missed, "missing", "r", "p", 10**18).text

    assert [line for line in text.splitlines() if line.startswith("logs")] == [
        f"logs      on h: tail /l/{name.removesuffix('@h')}.log" for name in daemons
    ]


def test_the_command_for_a_log_can_be_copied_where_a_folder_has_a_blank() -> None:
    missed = Notice("k", ("probe@h",), 10**18, host="h", logs="/my runs/logs")

    text = compose(missed, "missing", "r", "p", 10**18).text

    assert "logs      on h: tail '/my runs/logs/probe.log'\n" in text


def test_a_message_about_many_missing_daemons_stays_short() -> None:
    missed = Notice("k", tuple(f"produce.{i}@h" for i in range(60)), 10**18, host="h", logs="/l")
    lines = compose(missed, "missing", "r", "p", 10**18).text.splitlines()

    assert sum(line.startswith("logs") for line in lines) == 9
    assert "logs      and 52 more" in lines
