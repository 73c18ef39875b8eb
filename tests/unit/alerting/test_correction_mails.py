"""A corrected cause in mails, in Alertmanager and in the digest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from soak.alerting.delivery import RESEND_PERIOD_NS
from soak.core.model import Evidence, Explanation
from soak.core.units import SECOND_NS
from soak.sinks import mail, webhook
from soak.store.findings.outbox import SETTLE_LIMIT_NS
from soak.store.findings.store import FindingsStore
from tests.support.alerting.daemon import (
    DELIVERED,
    KEY,
    RETRY,
    RUN,
    AlertWorld,
    FakeRepeatingSink,
    FakeSink,
)
from tests.support.alerting.findings import CAUSES, SERIES, finding

LAST_WORD = (Explanation("compaction", 0.8, (Evidence("A compaction began at the onset."),)),)
SUBJECT = (
    "[soakd] cause now compaction, not retention cliff: "
    "p99 end-to-end 4.1 ms -> 61 ms (x15) - synthetic"
)


def correct(world: AlertWorld) -> None:
    """Save another final cause."""
    found = finding(key=KEY, run=RUN, series=SERIES.replace("@h", "@host"), causes=LAST_WORD)
    with FindingsStore(world.folder.findings) as store:
        store.save_finding(found, ["mail"], world.clock.wall_ns())


def sent_keys(world: AlertWorld) -> list[str]:
    return [message.key.removeprefix(RUN) for message in world.sink.messages]


def test_a_corrected_cause_is_one_mail_that_refers_to_the_first(tmp_path: Path) -> None:
    """A second save and a restart of the daemon add none."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    world.daemon().poll()
    for _ in range(2):
        correct(world)
        world.daemon().poll()

    first, second = world.sink.messages
    sent = mail.compose(mail.Config(to=("a@example.org",)), second)
    assert first.subject.startswith("[soakd] retention cliff: ")
    assert second.subject == SUBJECT
    assert "  - A compaction began at the onset.\n" in second.text
    assert sent["Message-ID"] == "<synthetic-1-130.corrected@localhost>"
    assert sent["In-Reply-To"] == sent["References"] == "<synthetic-1-130.confirmed@localhost>"


def test_a_deferred_correction_is_the_same_mail_later(tmp_path: Path) -> None:
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    world.daemon().poll()
    correct(world)
    world.sink = FakeSink(world.clock, RETRY, DELIVERED)
    for _ in range(2):
        world.daemon().poll()
        world.clock.advance(60)

    first, second = world.sink.messages
    assert first == second
    assert world.states() == [("opened", "sent"), ("corrected", "sent")]


def test_a_correction_counts_towards_the_hourly_limit(tmp_path: Path) -> None:
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    world.change_plan("alerts: {max_per_hour: 1}")
    world.daemon().poll()
    correct(world)
    world.daemon().poll()
    within = sent_keys(world)
    world.clock.advance(3601)
    world.daemon().poll()

    assert (within, sent_keys(world)[1:]) == (["-130.confirmed"], ["-130.corrected"])


def test_a_correction_waits_for_the_end_of_a_maintenance_window(tmp_path: Path) -> None:
    """The first mail is sent at 14:13:20."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    world.change_plan("alerts: {maintenance: [{cron: '30 14 * * *', length: 10min}]}")
    world.daemon().poll()
    correct(world)
    world.clock.advance(1300)
    world.daemon().poll()
    within = sent_keys(world)
    world.clock.advance(300)
    world.daemon().poll()

    assert (within, sent_keys(world)[1:]) == (["-130.confirmed"], ["-130.corrected"])


def test_the_digest_names_the_final_cause(tmp_path: Path) -> None:
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    world.change_plan("alerts: {digest: '0 7 * * *'}")
    world.daemon().poll()
    correct(world)
    world.daemon().poll()
    world.clock.advance(86_400)
    world.daemon().poll()

    _, corrected, digest = world.sink.messages
    assert corrected.subject == SUBJECT
    assert "cause compaction: p99 end-to-end latency\n    4.1 ms -> 61 ms (x15)\n" in digest.text


def test_the_alert_gets_the_corrected_cause(tmp_path: Path) -> None:
    """Its labels stay, and it is sent again with the new text."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    sink = world.sink = FakeRepeatingSink(world.clock, DELIVERED)
    daemon = world.daemon()
    daemon.poll()
    correct(world)
    world.clock.advance(RESEND_PERIOD_NS / SECOND_NS)
    daemon.poll()

    config = webhook.Config(url="http://127.0.0.1:9093")
    first, second = (webhook.alert_of(config, one, 0) for one in sink.messages)
    (again,) = sink.again
    assert second["labels"] == first["labels"]
    assert second["startsAt"] == first["startsAt"]
    assert second["annotations"] == {
        "summary": SUBJECT,
        "description": sink.messages[1].text,
        "runbook_url": "docs/reference/causes.md#compaction",
    }
    assert (again.subject, again.key) == (SUBJECT, sink.messages[1].key)


def test_a_first_mail_that_was_delayed_needs_no_correction(tmp_path: Path) -> None:
    """It names the final cause itself."""
    world = AlertWorld(tmp_path, RETRY, DELIVERED).without_charts()
    world.daemon().poll()
    correct(world)
    for _ in range(2):
        world.clock.advance(60)
        world.daemon().poll()

    assert [one.subject.split(":")[0] for one in world.sink.messages] == [
        "[soakd] retention cliff",
        "[soakd] compaction",
    ]
    assert world.states() == [("opened", "sent")]


def test_a_resolved_finding_waits_for_its_final_cause(tmp_path: Path) -> None:
    """One mail says both."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    world.daemon().poll()
    gone = finding("gone", run=RUN, key=KEY, series=SERIES.replace("@h", "@host"), resolved_k=128)
    for one in (replace(gone, causes=CAUSES, is_settled=False), replace(gone, causes=LAST_WORD)):
        with FindingsStore(world.folder.findings) as store:
            store.save_finding(one, ["mail"], world.clock.wall_ns())
        world.daemon().poll()

    assert sent_keys(world) == ["-130.confirmed", "-130.gone"]
    assert world.sink.messages[1].subject.endswith("(compaction) - synthetic")
    assert (
        "cause     compaction (score 0.80, very likely, was retention_cliff)\n"
        in world.sink.messages[1].text
    )


def save_gone(world: AlertWorld, **other: object) -> None:
    """Save that the finding was over after some seconds, with any field replaced."""
    gone = finding("gone", run=RUN, key=KEY, series=SERIES.replace("@h", "@host"), resolved_k=128)
    with FindingsStore(world.folder.findings) as store:
        store.save_finding(replace(gone, **other), ["mail"], world.clock.wall_ns())  # type: ignore[arg-type]  # the fields of a finding


def over_early(path: Path) -> AlertWorld:
    """Return a run whose finding was sent as opened and as resolved, without its final cause."""
    world = AlertWorld(path, DELIVERED).without_charts()
    world.clock.advance(200)
    world.daemon().poll()
    save_gone(world, is_settled=False)
    world.clock.advance(SETTLE_LIMIT_NS / SECOND_NS)
    world.daemon().poll()
    return world


def test_a_final_cause_after_the_end_is_one_mail_that_refers_to_resolved(tmp_path: Path) -> None:
    """A second save and a restart of the daemon add none."""
    world = over_early(tmp_path)
    for _ in range(2):
        save_gone(world, causes=LAST_WORD)
        world.daemon().poll()

    assert sent_keys(world) == ["-130.confirmed", "-130.gone", "-130.revised"]
    last = world.sink.messages[-1]
    sent = mail.compose(mail.Config(to=("a@example.org",)), last)
    assert last.subject == SUBJECT.replace("cause now", "resolved: cause now")
    assert last.text.startswith(
        "Cause corrected by newer records: compaction, not retention cliff.\n"
        "The incident is resolved; only its cause is new.\n\nwhat "
    )
    assert sent["References"] == "<synthetic-1-130.gone@localhost>"


def test_a_finding_of_the_client_is_withdrawn_after_it_was_sent_as_resolved(tmp_path: Path) -> None:
    world = over_early(tmp_path)
    client = (Explanation("client", 0.9, ()),)
    save_gone(world, causes=client, is_about_cluster=False)
    world.daemon().poll()

    last = world.sink.messages[-1]
    assert (last.key, last.follows) == (f"{KEY}.revised", f"{KEY}.gone")
    assert last.subject.startswith("[soakd] false alarm withdrawn: p99 end-to-end")
    assert last.text.startswith("Withdrawn: data recorded since clears the cluster.")


def test_a_correction_after_the_end_counts_towards_the_hourly_limit(tmp_path: Path) -> None:
    world = over_early(tmp_path)
    world.change_plan("alerts: {max_per_hour: 2}")
    save_gone(world, causes=LAST_WORD)
    world.daemon().poll()
    within = sent_keys(world)
    world.clock.advance(3601)
    world.daemon().poll()

    assert within == ["-130.confirmed", "-130.gone"]
    assert sent_keys(world)[2:] == ["-130.revised"]


def test_a_correction_after_the_end_does_not_fire_the_alert_again(tmp_path: Path) -> None:
    """It has the labels and the end of the message before; open alerts alone are sent again."""
    world = over_early(tmp_path)
    before = world.sink.messages[-1]
    sink = world.sink = FakeRepeatingSink(world.clock, DELIVERED)
    save_gone(world, causes=LAST_WORD)
    daemon = world.daemon()
    daemon.poll()
    world.clock.advance(RESEND_PERIOD_NS / SECOND_NS)
    daemon.poll()

    config, now_ns = webhook.Config(url="http://127.0.0.1:9093"), world.clock.wall_ns()
    first, second = (webhook.alert_of(config, one, now_ns) for one in (before, *sink.messages))
    assert first["endsAt"] == second["endsAt"]
    assert first["labels"] == second["labels"]
    assert second["annotations"]["summary"] == sink.messages[0].subject  # type: ignore[index]  # a dict
    assert list(sink.again) == []
