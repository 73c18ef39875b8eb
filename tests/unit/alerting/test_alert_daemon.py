"""The alert daemon: each message is sent once, retried when that makes sense, and none is lost."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from soak.alerting import daemon
from soak.alerting.daemon import AlertDaemon
from soak.alerting.delivery import report_command
from soak.core.errors import RunFolderError
from soak.core.model import Explanation
from soak.core.plan import plugins
from soak.core.plan.phases import decision_line
from soak.core.plan.text import load
from soak.core.ports import Message, Outcome
from soak.core.units import SECOND_NS
from soak.service.files import file_lock
from soak.store.findings.store import FindingsStore
from soak.store.plan_home import PlanHome
from soak.store.run_folder import RunFolder, read_run
from tests.support.alerting.daemon import DELIVERED, KEY, NEVER, RETRY, RUN, AlertWorld, FakeSink
from tests.support.alerting.findings import SERIES, finding
from tests.support.fakes import FakeClock
from tests.support.paths import DATA
from tests.support.spark.synthetic_run import Shape, write_synthetic_run


@pytest.mark.long
def test_a_finding_is_sent_once_with_its_chart(tmp_path: Path) -> None:
    """Later rounds, and another daemon after a restart, send nothing more."""
    world = AlertWorld(tmp_path, DELIVERED)
    world.daemon().poll()
    world.daemon().poll()

    (message,) = world.sink.messages
    assert message.subject.startswith("[soakd] retention cliff: p99 end-to-end 4.1")
    assert (message.chart_png or b"").startswith(b"\x89PNG")
    assert 'alt="p99 end-to-end latency, consume.0@host, 2026-09-21 14:13:23Z to' in message.html
    assert "\nnext step see how files are deleted" in message.text
    assert (
        "\nconfirm   on the broker's host\n"
        "run       grep -h 'Deleting segment files' LOG_DIR/server.log* | cut -c2-20 | sort"
    ) in message.text
    assert world.states() == [("opened", "sent")]


@pytest.mark.long
def test_a_finding_is_sent_with_the_load_and_the_audit_of_a_run_that_has_ended(
    tmp_path: Path,
) -> None:
    """Of the 5 s from the onset to the message 3 are after the load's end."""
    world = AlertWorld(tmp_path, DELIVERED)
    world.clock.advance(128)
    for key, audit in (
        ("synthetic-1-200", None),
        ("synthetic-1-201", {"lost": 0, "duplicated": 2}),
    ):
        world.save("confirmed", key=key)
        if audit is not None:
            with FindingsStore(world.folder.findings) as store:
                store.queue_end(RUN, json.dumps({"audit": audit}), [], world.clock.wall_ns())
        world.daemon().poll()

    _, during, after = (one.text for one in world.sink.messages)
    load = (
        "\nload      160/s sent, 160/s acknowledged, 160/s received, 0 wait unread; 0\n"
        "          messages failed since the onset\n"
    )
    assert f"{load}lost      not known before the end of the run\n" in during
    assert f"{load}lost      0 messages, 2 duplicated in the whole run\n" in after


def test_a_mail_has_the_login_of_the_cluster_and_the_rate_before_the_onset(tmp_path: Path) -> None:
    world = AlertWorld(tmp_path, DELIVERED)
    world.change_plan(
        "broker: {kafka: {bootstrap_servers: 'b1:9093', common: {security.protocol: SSL}}}"
    )
    foreign = finding(
        key="synthetic-1-200", run=RUN, causes=(Explanation("foreign_load", 0.9, ()),)
    )
    with FindingsStore(world.folder.findings) as store:
        store.save_finding(foreign, ["mail"], world.clock.wall_ns())
    world.daemon().poll()

    text = " ".join(world.sink.messages[-1].text.split())

    assert "--bootstrap-server b1:9093 --command-config admin.properties --describe" in text
    assert "grows by 40 a second or more" in text


def test_opened_and_resolved_are_sent_in_order(tmp_path: Path) -> None:
    """The second message refers to the first."""
    world = AlertWorld(tmp_path, DELIVERED, state="gone").without_charts()
    daemon = world.daemon()
    daemon.poll()
    daemon.poll()

    first, second = world.sink.messages
    assert second.follows == first.key
    assert world.states() == [("opened", "sent"), ("resolved", "sent")]


def test_the_metrics_page_has_open_and_resolved_incidents_and_pending_messages(
    tmp_path: Path,
) -> None:
    world = AlertWorld(tmp_path, RETRY).without_charts()
    world.save("gone", key="synthetic-1-200")
    daemon = world.daemon()
    daemon.poll()

    assert {column.name: value for column, value in daemon.samples(23)} == {
        "alert_settled_messages_total": 23,
        'incidents{state="open"}': 1,
        'incidents{state="resolved"}': 1,
        "pending_notifications": len(world.states()),
    }


def test_the_message_of_a_second_finding_names_the_open_first(tmp_path: Path) -> None:
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    daemon = world.daemon()
    daemon.poll()
    world.save("confirmed", key="synthetic-1-200")
    daemon.poll()

    first, second = world.sink.messages
    assert "\nalso open " not in first.text
    assert "\nalso open p99 end-to-end latency since " in second.text


def test_a_deferred_message_is_retried_after_longer_and_longer_waits(tmp_path: Path) -> None:
    """Each wait is twice the one before; nothing is tried early."""
    world = AlertWorld(tmp_path, RETRY, RETRY, DELIVERED).without_charts()
    daemon = world.daemon()
    tries = []
    for second in range(30):
        before = len(world.sink.messages)
        daemon.poll()
        tries += [second] * (len(world.sink.messages) - before)
        world.clock.advance(1.0)

    assert tries == [0, 5, 15]
    assert world.states() == [("opened", "sent")]


def test_many_messages_are_spread_over_the_hours(tmp_path: Path) -> None:
    """At two an hour the others wait, also after a restart of the daemon."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    world.change_plan("alerts: {max_per_hour: 2}")
    for number in range(4):
        world.save("confirmed", key=f"synthetic-1-{200 + number}")
    sent = []
    for _ in range(4):
        world.daemon().poll()
        sent.append(len(world.sink.messages))
        world.clock.advance(3601)

    assert sent == [2, 4, 5, 5]
    assert len({message.key for message in world.sink.messages}) == 5


def test_openings_and_other_causes_go_before_what_is_over(tmp_path: Path) -> None:
    """At three an hour the two that were resolved wait for another hour."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    world.change_plan("alerts: {max_per_hour: 3}")
    for number in range(2):
        world.save("confirmed", key=f"synthetic-1-{200 + number}")
    world.daemon().poll()
    world.clock.advance(1000)
    for number in range(2):
        world.save("gone", key=f"synthetic-1-{200 + number}")
        world.clock.advance(1)
    compaction = finding(
        key=KEY,
        run=RUN,
        series=SERIES.replace("@h", "@host"),
        causes=(Explanation("compaction", 0.9, ()),),
    )
    with FindingsStore(world.folder.findings) as store:
        store.save_finding(compaction, ["mail"], world.clock.wall_ns())
    world.clock.advance(1)
    for number in range(2):
        world.save("confirmed", key=f"synthetic-1-{300 + number}")
    sent = []
    for seconds in (3000, 3601, 0):
        before = len(world.sink.messages)
        world.daemon().poll()
        sent.append([one.key.removeprefix(RUN) for one in world.sink.messages[before:]])
        world.clock.advance(seconds)

    assert sent == [
        [],
        ["-300.confirmed", "-301.confirmed", "-130.corrected"],
        ["-200.gone", "-201.gone"],
    ]


def test_a_quarter_of_the_hourly_limit_is_left_to_what_begins(tmp_path: Path) -> None:
    """What is over may use three of four messages an hour, so that an opening does not wait behind it."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    world.change_plan("alerts: {max_per_hour: 4}")
    world.save("confirmed", key="synthetic-1-200")
    world.daemon().poll()
    world.clock.advance(100)
    world.save("gone")
    world.daemon().poll()
    world.save("gone", key="synthetic-1-200")
    world.daemon().poll()
    world.save("confirmed", key="synthetic-1-300")
    world.daemon().poll()
    in_the_hour = [one.key.removeprefix(RUN) for one in world.sink.messages[2:]]
    world.clock.advance(3601)
    world.daemon().poll()

    assert in_the_hour == ["-130.gone", "-300.confirmed"]
    assert world.sink.messages[-1].key.removeprefix(RUN) == "-200.gone"


def test_what_is_over_is_sent_although_incidents_use_up_the_hourly_limit(tmp_path: Path) -> None:
    """A message that has waited for an hour goes with the openings, and is older than them."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    world.change_plan("alerts: {max_per_hour: 1}")
    world.daemon().poll()
    world.clock.advance(1000)
    world.save("gone")
    for number in range(3):
        world.clock.advance(2601 if number == 0 else 3601)
        world.save("confirmed", key=f"synthetic-1-{200 + number}")
        world.daemon().poll()

    sent = [one.key.removeprefix(RUN) for one in world.sink.messages]

    assert sent == ["-130.confirmed", "-200.confirmed", "-130.gone", "-201.confirmed"]


def test_openings_still_go_first_after_a_long_maintenance_window(tmp_path: Path) -> None:
    """All have waited for over an hour by then, and at two an hour the others wait for another one."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    world.daemon().poll()
    world.change_plan("alerts: {max_per_hour: 2, maintenance: [{cron: '0 15 * * *', length: 2h}]}")
    world.clock.advance(3000)
    world.save("gone")
    for number in range(2):
        world.clock.advance(60)
        world.save("confirmed", key=f"synthetic-1-{200 + number}")
    sent = []
    for _ in range(3):
        world.clock.advance(3601)
        before = len(world.sink.messages)
        world.daemon().poll()
        sent.append([one.key.removeprefix(RUN) for one in world.sink.messages[before:]])

    assert sent == [[], ["-200.confirmed", "-201.confirmed"], ["-130.gone"]]


def test_nothing_is_sent_in_a_maintenance_window(tmp_path: Path) -> None:
    """Pending messages are sent after it; a daemon that ends within it leaves them to the next one."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    world.change_plan("alerts: {maintenance: [{cron: '*/30 * * * *', length: 10min}]}")
    world.clock.advance(1800 - world.clock.wall_ns() / SECOND_NS % 1800 + 300)
    daemon = world.daemon()
    daemon.poll()
    world.folder.phases.write_text(decision_line("soak", 0))
    daemon.shut_down()
    within = len(world.sink.messages)
    world.clock.advance(300)
    daemon.poll()

    assert (within, len(world.sink.messages)) == (0, 1)


def test_the_last_messages_of_a_run_do_not_wait_for_a_maintenance_window_to_end(
    tmp_path: Path,
) -> None:
    """No other daemon follows."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    world.change_plan("alerts: {maintenance: [{cron: '* * * * *', length: 1h}]}")
    world.folder.phases.write_text(decision_line("soak", 0) + decision_line("end", 130))
    daemon = world.daemon()
    daemon.poll()
    within = len(world.sink.messages)
    daemon.shut_down()

    assert (within, len(world.sink.messages)) == (0, 1)


def test_a_message_that_is_refused_for_good_is_not_retried(tmp_path: Path) -> None:
    """It stays in the outbox as refused."""
    world = AlertWorld(tmp_path, NEVER).without_charts()
    daemon = world.daemon()
    daemon.poll()
    world.clock.advance(3600)
    daemon.poll()

    assert len(world.sink.messages) == 1
    assert world.states() == [("opened", "refused")]


def test_the_shutdown_tries_deferred_messages_without_waiting(tmp_path: Path) -> None:
    world = AlertWorld(tmp_path, RETRY, DELIVERED, state="gone").without_charts()
    daemon = world.daemon()
    daemon.poll()
    daemon.shut_down()

    assert world.states() == [("opened", "sent"), ("resolved", "sent")]


def test_the_shutdown_ends_when_the_server_stays_unavailable(tmp_path: Path) -> None:
    """It tries once, and the message stays pending."""
    world = AlertWorld(tmp_path, RETRY).without_charts()
    world.daemon().shut_down()

    assert len(world.sink.messages) == 1
    assert world.states() == [("opened", "deferred")]


def test_the_shutdown_is_bounded_in_time(tmp_path: Path) -> None:
    """A server that takes seconds for each mail cannot delay the end of a run for long."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    world.sink = FakeSink(world.clock, DELIVERED, seconds=4.0)
    for number in range(20):
        world.save("confirmed", key=f"synthetic-1-{200 + number}")
    world.daemon().shut_down()

    assert len(world.sink.messages) == 3
    assert world.states().count(("opened", "pending")) == 18


@pytest.mark.long
def test_a_crash_after_sending_repeats_the_same_message(tmp_path: Path) -> None:
    """A message that was sent but not marked is sent again with the same key and date."""
    world = AlertWorld(tmp_path, DELIVERED)
    daemon = world.daemon()
    send = world.sink.send

    def crash(message: Message) -> Outcome:
        send(message)
        raise KeyboardInterrupt

    world.sink.send = crash  # type: ignore[method-assign]  # killed between sending and marking
    with pytest.raises(KeyboardInterrupt):
        daemon.poll()
    world.sink.send = send  # type: ignore[method-assign]  # restarted
    world.clock.advance(60)
    world.daemon().poll()

    first, second = world.sink.messages
    assert (first.key, first.at_wall_ns) == (second.key, second.at_wall_ns)


def test_messages_of_an_older_version_are_sent_under_the_keys_it_would_use(tmp_path: Path) -> None:
    """A repeat after an upgrade has the same Message-ID and skips recipients that have the mail."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    world.change_plan("alerts: {digest: '23 14 * * *'}")
    world.folder.findings.unlink()
    with sqlite3.connect(world.folder.findings) as connection:
        connection.executescript((DATA / "findings_v5.sql").read_text())
    world.clock.advance(3600)
    daemon = world.daemon()
    for _ in range(2):
        daemon.poll()

    assert {message.key: message.progress for message in world.sink.messages} == {
        "run1-130.gone": "",
        "run1-131.confirmed": "a has it",
        "run1-132.confirmed": "",
        "run1-134.confirmed": "",
        "run1-135.corrected": "",
        "run1-136.confirmed-2": "",
        "run1-probe@h-1790000000.back": "",
        "run1-given-up-1790000500.missed": "",
        "synthetic-1.digest.1790000580": "a has it",
    }


def test_a_message_is_sent_without_its_chart_when_the_journal_is_missing(tmp_path: Path) -> None:
    world = AlertWorld(tmp_path, DELIVERED)
    world.folder.journal.rename(world.folder.path / "moved")
    world.daemon().poll()

    assert [message.chart_png for message in world.sink.messages] == [None]


def test_messages_to_a_sink_that_left_the_plan_are_dropped(tmp_path: Path) -> None:
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    plan = load(world.folder.plan.read_text(), "plan.yaml").plan
    AlertDaemon(world.folder, plan, read_run(world.folder), {}, world.clock).poll()

    assert world.states() == [("opened", "refused")]


def test_a_run_without_findings_gets_no_file(tmp_path: Path) -> None:
    folder = write_synthetic_run(tmp_path / "run", Shape(seconds=30, warm_up=5))
    folder.findings.unlink()
    plan = load(folder.plan.read_text(), "plan.yaml").plan

    assert AlertDaemon(folder, plan, read_run(folder), {}, FakeClock()).poll() == 0
    assert not folder.findings.exists()


def _stopped() -> threading.Event:
    stop = threading.Event()
    stop.set()
    return stop


def test_the_daemon_ends_at_once_when_it_is_stopped(tmp_path: Path) -> None:
    folder = write_synthetic_run(tmp_path / "run", Shape(seconds=30, warm_up=5))

    assert daemon.run(folder.path, _stopped(), FakeClock()) == 0


def test_two_alert_daemons_never_share_an_outbox(tmp_path: Path) -> None:
    folder = write_synthetic_run(tmp_path / "run", Shape(seconds=30, warm_up=5))
    with (
        file_lock(RunFolder(folder.path).path / "alert.lock", "the outbox"),
        pytest.raises(RunFolderError, match="in use"),
    ):
        daemon.run(folder.path, _stopped(), FakeClock())


def test_the_command_of_a_report_can_be_copied_where_a_folder_has_a_blank(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "my runs" / "r1")
    folder.path.mkdir(parents=True)

    assert f" report '{folder.path}', then see " in report_command(folder, "h1", "p")


def test_the_report_of_a_service_run_is_made_by_its_unit(tmp_path: Path) -> None:
    """Files of root would break the next report of the unit; the command names the host to run it on."""
    folder = RunFolder(tmp_path / "p" / "r1")
    folder.path.mkdir(parents=True)
    by_hand = report_command(folder, "h1", "p")
    PlanHome(tmp_path / "p").set_current(folder)

    command = (
        rf"\S*(/soak| -m soak.cli.main) report {folder.path}, then see report/index.html in it"
    )
    assert re.fullmatch(f"on h1: {command}", by_hand)
    assert report_command(folder, "h1", "p") == (
        f"on h1: systemctl start soak-report@p, then see {folder.report}"
    )


@pytest.mark.parametrize("name", plugins.names("soak.sinks"))
def test_every_sink_has_a_configuration_and_is_built_from_it(name: str) -> None:
    module = plugins.load("soak.sinks", name)
    build: Callable[..., object] = module.build

    assert isinstance(module.Config, type)
    assert callable(build)
