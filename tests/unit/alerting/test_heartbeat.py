"""When a daemon is missed, and when it is back: by the clock alone."""

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
from soak.core.phases import decision_line
from soak.core.plan.text import load
from soak.core.ports import Message, Outcome, Sink
from soak.core.units import SECOND_NS
from soak.runtime.grid import host_name
from soak.store.findings.store import FindingsStore
from soak.store.plan_home import PlanHome
from soak.store.run_folder import RunFolder, read_run
from tests.support.fakes import FakeClock
from tests.support.synthetic_run import Shape, write_synthetic_run

STEP_NS = 5


class Beats:
    """A daemon looked at every five seconds: it gives a sign in some of the stretches, and in others none."""

    def __init__(self, *, is_reported: bool = False) -> None:
        self.second = 0
        self.pulse = Heartbeat(
            0, 0, 3 * SECOND_NS, is_reported, silent_ns=MISSING_AFTER_NS if is_reported else 0
        )

    def alive(self, seconds: int) -> Beats:
        return self._go_on(seconds, is_alive=True)

    def silent(self, seconds: int) -> Beats:
        return self._go_on(seconds, is_alive=False)

    def _go_on(self, seconds: int, *, is_alive: bool) -> Beats:
        for _ in range(0, seconds, STEP_NS):
            self.second += STEP_NS
            sign = self.second if is_alive else self.pulse.activity
            self.pulse.update(sign, self.second * SECOND_NS, STEP_NS * SECOND_NS)
        return self


def test_it_is_missing_after_five_minutes_and_since_its_last_sign() -> None:
    early, late = Beats().alive(60).silent(295), Beats().alive(60).silent(300)

    assert (early.pulse.is_missing, late.pulse.is_missing) == (False, True)
    assert late.pulse.silent_since_ns == 60 * SECOND_NS


@pytest.mark.parametrize(("dead", "up", "is_missing"), [(25, 10, True), (20, 40, False)])
def test_one_that_dies_again_and_again_is_missing_when_it_is_dead_for_longer(
    dead: int, up: int, *, is_missing: bool
) -> None:
    """For an hour; one that is up most of the time leaves gaps, and no more."""
    beats = Beats().alive(60)
    for _ in range(3600 // (dead + up)):
        beats.silent(dead)
        found = beats.pulse.is_missing
        beats.alive(up)

    assert found is is_missing


def test_a_start_has_ten_minutes_which_count_for_nothing_after_it() -> None:
    started = Beats().silent(590).alive(5)

    assert not started.pulse.is_missing
    assert not started.silent(295).pulse.is_missing
    assert started.silent(5).pulse.is_missing
    assert Beats().silent(600).pulse.is_missing


def test_one_that_people_were_told_of_is_back_after_five_minutes_of_signs() -> None:
    """A moment of life is none, and the time it takes to start changes nothing."""
    told = Beats(is_reported=True).silent(1000).alive(100).silent(50).alive(245)

    assert told.pulse.silent_ns > 0
    assert told.alive(5).pulse.silent_ns == 0
    assert told.pulse.silent_until_ns == 1150 * SECOND_NS


# --- A daemon that is missed while its run goes on is told once, and once when it is back; no other silence.

STEP = 10  # seconds between two looks: all of them count
CONSUMER, PRODUCER, PROBE = (
    f"{name}@{host_name()}" for name in ("consume.0", "produce.0", "probe")
)
ALL = (CONSUMER, PRODUCER, PROBE)


class World:
    """A run that goes on, of which the daemons named record; time passes in steps."""

    def __init__(self, path: Path) -> None:
        shape = Shape(seconds=30, warm_up=5, fault_k=None, is_ended=False)
        self.folder = write_synthetic_run(path / "home" / "run", shape)
        for source in sorted(self.folder.journal.iterdir()):
            source.rename(source.with_name(f"{source.name.partition('@')[0]}@{host_name()}"))
        self.decide(("soak", 0), ("drain", 100_000))
        self.clock = FakeClock()
        self.sent: list[Message] = []
        self.monitor = self.watcher()

    def decide(self, *decisions: tuple[str, int]) -> None:
        self.folder.phases.write_text("".join(decision_line(*one) for one in decisions))  # type: ignore[arg-type]  # literals

    def plan(self, more: dict[str, object]) -> None:
        """Replace parts of the run's plan."""
        body = yaml.safe_load(self.folder.plan.read_text())
        self.folder.plan.write_text(yaml.safe_dump({**body, **more}))
        self.monitor = self.watcher()

    def watcher(self) -> HeartbeatMonitor:
        """Return what a daemon that is started now looks with."""
        plan = load(self.folder.plan.read_text(), "plan.yaml").plan
        return HeartbeatMonitor(self.folder, plan, read_run(self.folder), ("mail",), self.clock)

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

    def told(self) -> list[tuple[str, bool]]:
        """Return who was missed, and whether they are back."""
        found = read_notices(self.folder)
        return [(name, one.until_wall_ns is not None) for one in found for name in one.daemons]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_one_that_records_no_more_is_missing_after_five_minutes(world: World) -> None:
    """Since its last record; those that died with it are in the same message."""
    world.go_on(60)
    world.go_on(290, recording=(PROBE,))
    before = world.told()
    world.go_on(20, recording=(PROBE,))

    (silence,) = read_notices(world.folder)
    assert before == []
    assert silence.daemons == (CONSUMER, PRODUCER)
    assert silence.since_wall_ns == FakeClock().wall_ns() + 60 * 10**9


def test_it_is_back_when_it_was_heard_for_as_long(world: World) -> None:
    """A moment of life is none: it may die again. What is told is when it came back."""
    world.go_on(60)
    world.go_on(400, recording=(CONSUMER, PROBE))
    world.go_on(200)
    between = world.told()
    world.go_on(120)

    (silence,) = read_notices(world.folder)
    assert between == [(PRODUCER, False)]
    assert silence.until_wall_ns == FakeClock().wall_ns() + 460 * 10**9


def test_one_that_ended_on_purpose_is_not_missed(world: World) -> None:
    """In a pause the daemons end before the one that tells; the last line of their journals says so."""
    world.go_on(60, recording=(*ALL, "probe@b1"))
    for source in (*ALL, "probe@b1"):
        world.write(source, encode(End(1)))
    world.go_on(590, recording=())
    world.clock.advance(86_400)
    world.monitor = world.watcher()
    world.go_on(700)

    assert world.told() == []


def test_one_that_does_not_come_back_from_an_orderly_end_is_missing(world: World) -> None:
    """Restarted by hand, and dead at every start since. Another host may be done for good."""
    world.go_on(60, recording=(*ALL, "probe@b1"))
    for source in (PROBE, "probe@b1"):
        world.write(source, encode(End(1)))
    world.go_on(890, recording=(CONSUMER, PRODUCER))
    before = world.told()
    world.go_on(3600, recording=(CONSUMER, PRODUCER))

    (silence,) = read_notices(world.folder)
    assert before == []
    assert silence.daemons == (PROBE,)
    assert silence.since_wall_ns == FakeClock().wall_ns() + 70 * 10**9


def test_after_the_last_second_nobody_is_missing(world: World) -> None:
    """Producers are done when the drain begins, the others at the end."""
    world.plan({"phases": {"warm_up": "5s", "soak": "1h", "drain": "1h"}})
    world.decide(("soak", 0), ("drain", 60))
    world.go_on(60)
    world.go_on(400, recording=(CONSUMER, PROBE))
    world.decide(("soak", 0), ("drain", 60), ("end", 470))
    world.go_on(400, recording=())

    assert world.told() == []


def test_before_the_first_second_nobody_is_missing(world: World) -> None:
    """Of several hosts one may be ready an hour early."""
    world.clock.step_wall(-3600)
    world.go_on(700, recording=())

    assert world.told() == []


def test_a_start_may_take_ten_minutes(world: World) -> None:
    """A consumer reads its journal first; what that took counts for nothing afterwards."""
    world.go_on(580, recording=(PRODUCER, PROBE))
    world.go_on(100)
    world.go_on(200, recording=(PRODUCER, PROBE))
    before = world.told()
    again = World(world.folder.path.parents[1] / "again")
    again.go_on(620, recording=(PRODUCER, PROBE))

    assert before == []
    assert again.told() == [(CONSUMER, False)]


def test_a_consumer_that_starts_again_may_take_ten_minutes(world: World) -> None:
    """Late in a run its journal is long. Told, it is back after five minutes, as others are."""
    world.go_on(60)
    world.go_on(590, recording=(PRODUCER, PROBE))
    world.go_on(700)
    before = world.told()
    world.go_on(620, recording=(PRODUCER, PROBE))
    between = world.told()
    world.go_on(320)

    assert (before, between) == ([], [(CONSUMER, False)])
    assert world.told() == [(CONSUMER, True)]


def test_time_in_which_nobody_looked_does_not_count(world: World) -> None:
    """A machine that stood still, and all its daemons with it."""
    world.go_on(60)
    for _ in range(10):
        world.clock.advance(3600)
        world.monitor.poll()
        world.go_on(20)

    assert world.told() == []


def test_the_next_alert_daemon_tells_nothing_twice_and_the_rest(world: World) -> None:
    """Killed after it had told that a daemon is missed, and started again."""
    world.go_on(60)
    world.go_on(320, recording=(CONSUMER, PROBE))
    world.monitor = world.watcher()
    world.go_on(700, recording=(CONSUMER, PROBE))
    before = world.told()
    world.go_on(320)

    assert before == [(PRODUCER, False)]
    assert world.told() == [(PRODUCER, True)]


def test_one_that_came_back_while_nobody_looked_is_back_since_somebody_looks(world: World) -> None:
    """The alert daemon was away itself."""
    world.go_on(60)
    world.go_on(320, recording=(CONSUMER, PROBE))
    world.clock.advance(1000)
    world.monitor = world.watcher()
    world.go_on(320)

    (silence,) = read_notices(world.folder)
    assert silence.until_wall_ns == FakeClock().wall_ns() + (1380 + STEP) * 10**9


def test_what_comes_from_other_hosts_is_missing_once_it_was_heard(world: World) -> None:
    """Nobody here knows whether a host is to be there; and its records come over a topic, late."""
    world.write("probe@b1")
    world.go_on(700)
    before = world.told()
    world.go_on(8, recording=(*ALL, "probe@b1"))
    world.go_on(340)
    hardly = world.told()
    world.go_on(40)

    assert (before, hardly) == ([], [])
    assert world.told() == [("probe@b1", False)]


def test_under_a_service_manager_one_that_never_recorded_is_missing(world: World) -> None:
    """It has no journal; a run by hand may have it on another host."""
    world.plan({"load": {"rate": "400/s", "producers": 2}})
    world.go_on(620)
    by_hand = world.told()
    as_service(world.folder)
    world.go_on(620)

    assert by_hand == []
    assert world.told() == [(f"produce.1@{host_name()}", False)]


def test_a_detector_that_takes_nothing_in_is_missing(world: World) -> None:
    """Ten minutes after its last batch, and only while there is something to take in."""
    commits = world.folder.checkpoint / "commits"
    commits.mkdir(parents=True)
    world.go_on(20)
    os.utime(commits, ns=(1, 1))
    world.go_on(580)
    before = world.told()
    world.go_on(60)

    assert before == []
    assert world.told() == [("detect-stream", False)]


def test_a_conductor_that_decides_nothing_is_missing(world: World) -> None:
    """The run has begun by the clock, and no daemon knows of a phase. It is back with the first decision."""
    world.decide()
    as_service(world.folder)
    world.go_on(320, recording=())
    before = world.told()
    world.decide(("soak", 0), ("drain", 100_000))
    world.go_on(320)

    assert before == [("conduct", False)]
    assert world.told() == [("conduct", True)]


def test_where_it_cannot_be_kept_all_are_given_time_anew(world: World) -> None:
    """The drive is full: the daemons measure on, and write as soon as there is room."""
    world.go_on(60)
    world.folder.findings.unlink()
    world.folder.findings.mkdir()
    with pytest.raises(FindingsError):
        world.go_on(320, recording=())
    world.folder.findings.rmdir()
    world.go_on(4, recording=())
    world.go_on(400)

    assert world.told() == []


def test_journals_that_nobody_can_look_at_end_no_alert_daemon(world: World) -> None:
    """Out of open files, or a drive that fails: it goes on, and all are given time anew."""
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


def test_who_is_back_before_anybody_was_told_was_never_away(world: World) -> None:
    """As in a maintenance window, in which nothing is sent."""
    world.go_on(60)
    world.go_on(320, recording=(CONSUMER, PROBE))
    world.go_on(320)

    with FindingsStore(world.folder.findings) as store:
        assert store.open_notifications() == []


MISSED = f"""\
The run continues without these daemons: they do nothing, or crash at every start.
Nothing can be detected in the time that they do not record.
This says nothing about the cluster.

missing   {PRODUCER}
since     2026-09-21 14:14:20Z
logs      on {host_name()}: tail LOGS/produce.0.log
run       synthetic-1
"""


def test_both_words_reach_people_as_one_thread(world: World) -> None:
    """Subject and text to the letter; the second is the sequel of the first, with the same labels."""
    daemon = world.daemon()
    for second in range(0, 760, STEP):
        world.clock.advance(STEP)
        for source in ALL if not 60 <= second < 400 else (CONSUMER, PROBE):
            world.write(source)
        daemon.poll()

    first, second_ = world.sent
    logs = str(world.folder.logs)
    assert first.subject == f"[soakd] synthetic: no heartbeat of {PRODUCER} since 14:14:20Z"
    assert first.text == MISSED.replace("LOGS", logs)
    assert second_.subject == f"[soakd] synthetic: heartbeat of {PRODUCER} back after 5 min 40 s"
    assert "back      at 14:20:00Z, after 5 min 40 s\n" in second_.text
    assert second_.follows == first.key
    assert first.labels == second_.labels
    assert (first.end_wall_ns, second_.end_wall_ns) == (None, first.begin_wall_ns + 340 * 10**9)


def test_that_one_is_missing_says_so_when_it_is_back_by_then(world: World) -> None:
    """The sink was away when it was to be told: nobody is to get up for it."""
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
    assert "back after" in last.subject
    assert "resolved by now" not in last.text


AFAR = f"""\
Records of these daemons on other hosts do not arrive any more.
They may wait there to be sent; until then nothing is detected in them.

missing   probe@b1, probe@b2
since     2026-09-21 14:14:20Z
logs      on {host_name()}: tail LOGS/receive.log
cluster   check that the cluster of the topic in `ship` is up
logs      on b1: probe.log and ship.log in the log folder of its run
run       synthetic-1
"""


def test_that_other_hosts_are_not_heard_is_reported_in_words_of_its_own(world: World) -> None:
    """The topic's cluster may be away, which is the one under test, and their records wait there: no gap."""
    daemon = world.daemon()
    for second in range(0, 860, STEP):
        world.clock.advance(STEP)
        is_cut = 60 <= second < 500
        for source in ALL if is_cut else (*ALL, "probe@b1", "probe@b2"):
            world.write(source)
        daemon.poll()

    first, last = world.sent
    assert first.subject == ("[soakd] synthetic: no records of probe@b1, probe@b2 since 14:14:20Z")
    assert first.text == AFAR.replace("LOGS", str(world.folder.logs))
    assert last.subject == (
        "[soakd] synthetic: records of probe@b1, probe@b2 back after 7 min 20 s"
    )
    assert last.text.startswith(
        "Records of these daemons arrive again, with those that waited on their hosts.\n\nmissing "
    )


@pytest.mark.parametrize("step_seconds", [-7200, 7200])
def test_a_clock_that_is_set_changes_no_length(world: World, step_seconds: int) -> None:
    """Set while one was missed: it was away for as long as it was."""
    world.go_on(60)
    world.go_on(320, recording=(CONSUMER, PROBE))
    world.clock.step_wall(step_seconds)
    world.go_on(20, recording=(CONSUMER, PROBE))
    world.go_on(320)

    (silence,) = read_notices(world.folder)
    assert silence.until_wall_ns == silence.since_wall_ns + 340 * 10**9


def test_a_host_that_was_asleep_misses_nobody(world: World) -> None:
    """All stood still; they have the usual time to be heard again."""
    world.go_on(60)
    world.clock.suspend(7200)
    world.go_on(280, recording=())
    world.go_on(60)

    assert world.told() == []


def test_one_that_died_before_a_sleep_is_missing_since_it_died(world: World) -> None:
    """What the host slept is no time of silence, but it is time that has passed."""
    world.go_on(60)
    world.go_on(100, recording=(CONSUMER, PROBE))
    world.clock.suspend(7200)
    world.go_on(220, recording=(CONSUMER, PROBE))
    world.go_on(320)

    (silence,) = read_notices(world.folder)
    assert silence.since_wall_ns == FakeClock().wall_ns() + 60 * 10**9
    assert silence.until_wall_ns == FakeClock().wall_ns() + (380 + 7200) * 10**9


def test_names_of_others_stay_text_in_their_line() -> None:
    """A source is called as another host calls itself; a path may hold what is no character."""
    silence = Notice("k", ("probe@b\n\x1b[2J",), 0, host="h1", logs="/runs/\udce9")

    message = compose(silence, "missing", "run1", "demo", 0)

    assert message.subject.isprintable()
    assert all(line.isprintable() for line in message.text.splitlines())
    assert message.text.encode()


def test_who_is_back_on_another_day_has_its_day() -> None:
    since_ns = FakeClock().wall_ns()
    silence = Notice("k", ("probe@b",), since_ns, since_ns + 36 * 3600 * 10**9, host="h1")

    text = compose(silence, "returned", "run1", "demo", 0).text

    assert "back      at 2026-09-23 02:13:20Z, after 36 h\n" in text


def test_where_to_look_is_what_it_was_when_somebody_was_missed(world: World) -> None:
    """A service's run is told by systemd's journal, also when the next one is the current one by then."""
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
def test_where_to_look_is_on_the_host_of_the_daemon(daemon: str, logs: str, where: str) -> None:
    """A broker's host runs one unit alone, `soak-host@`; where it keeps other logs nobody here knows."""
    silence = Notice("run1-x-1", (daemon,), 0, host="h1", logs=logs)

    text = compose(silence, "missing", "run1", "demo", 0).text

    assert where in text.splitlines()[-2]


def test_that_a_run_was_given_up_reaches_people(world: World) -> None:
    """`soak run` ends one whose daemon keeps dying; nobody need sit at its terminal. No daemon comes back."""
    plan = load(world.folder.plan.read_text(), "plan.yaml").plan
    sinks = dataclasses.replace(plan, sinks={"mail": None})
    why = "consume.0 died 6 times in a minute (exit 1)"
    queue_run_aborted(world.folder, sinks, read_run(world.folder), world.clock, why)
    daemon = world.daemon()
    daemon.poll()
    daemon.poll()

    (message,) = world.sent
    assert message.subject == f"[soakd] synthetic: run aborted: {why}"
    assert message.text.startswith(f"The run was aborted: {why}.\n")
    assert f"logs      on host: {world.folder.logs}\n" in message.text


def test_the_digest_names_who_is_missing(world: World) -> None:
    world.plan({"alerts": {"digest": "0 7 * * *"}})
    world.go_on(60)
    world.go_on(320, recording=(CONSUMER, PROBE))
    world.clock.advance(86_400)
    world.daemon().poll()

    (digest,) = [one for one in world.sent if "digest" in one.subject]
    assert f"missing   {PRODUCER} since 2026-09-21 14:14:20Z\n" in digest.text


def as_service(folder: RunFolder) -> None:
    """Make it the current run of a plan's home."""
    PlanHome(folder.path.parent).point_to(folder)


def test_it_says_where_each_missed_daemon_says_why() -> None:
    daemons = tuple(
        f"{role}@h" for role in ("conduct", "consume.0", "detect", "probe", "produce.0")
    )
    missed = Notice("k", daemons, 10**18, host="h", logs="/l")
    text = compose(missed, "missing", "r", "p", 10**18).text

    assert [line for line in text.splitlines() if line.startswith("logs")] == [
        f"logs      on h: tail /l/{name.removesuffix('@h')}.log" for name in daemons
    ]


def test_a_mail_on_very_many_missed_daemons_stays_short() -> None:
    missed = Notice("k", tuple(f"produce.{i}@h" for i in range(60)), 10**18, host="h", logs="/l")
    lines = compose(missed, "missing", "r", "p", 10**18).text.splitlines()

    assert sum(line.startswith("logs") for line in lines) == 9
    assert "logs      and 52 more" in lines
