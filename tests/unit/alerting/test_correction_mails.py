"""A corrected cause on its way to people: by mail, to an Alertmanager, in the digest, within all limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from soak.alerting.delivery import RESEND_PERIOD_NS
from soak.core.model import Evidence, Explanation
from soak.core.units import SECOND_NS
from soak.sinks import mail, webhook
from soak.store.findings.store import FindingsStore
from tests.unit.alerting.test_alert_daemon import DELIVERED, RETRY, RUN, Desk, FakeSink
from tests.unit.alerting.test_alert_failures import KEY, Forgetful
from tests.unit.store.findings.test_findings_store import CAUSES, SERIES, finding

LAST_WORD = (Explanation("compaction", 0.8, (Evidence("A compaction began at the onset."),)),)
SUBJECT = (
    "[soakd] synthetic: cause corrected: compaction (was retention_cliff): "
    "p99 end-to-end latency 4.1 ms -> 61 ms (x15) since 14:15:23Z"
)


def correct(desk: Desk) -> None:
    """Save the last word on a cause: another than the first."""
    found = finding(key=KEY, run=RUN, series=SERIES.replace("@h", "@host"), causes=LAST_WORD)
    with FindingsStore(desk.folder.findings) as store:
        store.save_finding(found, ["mail"], desk.clock.wall_ns())


def told(desk: Desk) -> list[str]:
    return [message.key.removeprefix(RUN) for message in desk.sink.messages]


def test_a_corrected_cause_is_one_mail_below_the_first(tmp_path: Path) -> None:
    """With the evidence for it; a second save and a restart of the daemon add none."""
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    desk.alerts().poll()
    for _ in range(2):
        correct(desk)
        desk.alerts().poll()

    first, second = desk.sink.messages
    sent = mail.compose(mail.Config(to=("a@example.org",)), second)
    assert (first.subject[-16:], second.subject) == (" retention_cliff", SUBJECT)
    assert "  - A compaction began at the onset.\n" in second.text
    assert sent["Message-ID"] == "<synthetic-1-130.corrected@localhost>"
    assert sent["In-Reply-To"] == sent["References"] == "<synthetic-1-130.confirmed@localhost>"


def test_a_correction_that_is_put_off_is_the_same_mail_later(tmp_path: Path) -> None:
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    desk.alerts().poll()
    correct(desk)
    desk.sink = FakeSink(desk.clock, RETRY, DELIVERED)
    for _ in range(2):
        desk.alerts().poll()
        desk.clock.advance(60)

    first, second = desk.sink.messages
    assert first == second
    assert desk.states() == [("confirmed", "sent"), ("corrected", "sent")]


def test_a_correction_counts_as_any_other_news(tmp_path: Path) -> None:
    """One an hour: it waits for the next."""
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    desk.say("alerts: {max_per_hour: 1}")
    desk.alerts().poll()
    correct(desk)
    desk.alerts().poll()
    within = told(desk)
    desk.clock.advance(3601)
    desk.alerts().poll()

    assert (within, told(desk)[1:]) == (["-130.confirmed"], ["-130.corrected"])


def test_a_correction_waits_for_the_end_of_a_maintenance_window(tmp_path: Path) -> None:
    """It is 14:13:20 when the first mail goes out."""
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    desk.say("alerts: {maintenance: [{cron: '30 14 * * *', length: 10min}]}")
    desk.alerts().poll()
    correct(desk)
    desk.clock.advance(1300)
    desk.alerts().poll()
    within = told(desk)
    desk.clock.advance(300)
    desk.alerts().poll()

    assert (within, told(desk)[1:]) == (["-130.confirmed"], ["-130.corrected"])


def test_the_digest_names_the_last_word(tmp_path: Path) -> None:
    """As the mail does."""
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    desk.say("alerts: {digest: '0 7 * * *'}")
    desk.alerts().poll()
    correct(desk)
    desk.alerts().poll()
    desk.clock.advance(86_400)
    desk.alerts().poll()

    _, corrected, digest = desk.sink.messages
    assert corrected.subject == SUBJECT
    assert "cause compaction\n      p99 end-to-end latency 4.1 ms -> 61 ms (x15)\n" in digest.text


def test_an_alertmanager_has_the_same_alert_with_the_last_word(tmp_path: Path) -> None:
    """Its labels stay, its words are the new ones, and they are said again as long as it lasts."""
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    sink = desk.sink = Forgetful(desk.clock, DELIVERED)
    alerts = desk.alerts()
    alerts.poll()
    correct(desk)
    desk.clock.advance(RESEND_PERIOD_NS / SECOND_NS)
    alerts.poll()

    config = webhook.Config(url="http://127.0.0.1:9093")
    first, second = (webhook.alert_of(config, one, 0) for one in sink.messages)
    (again,) = sink.again
    assert second["labels"] == first["labels"]
    assert second["startsAt"] == first["startsAt"]
    assert second["annotations"] == {"summary": SUBJECT, "description": sink.messages[1].text}
    assert (again.subject, again.key) == (SUBJECT, sink.messages[1].key)


def test_a_first_mail_that_waited_for_its_server_needs_no_correction(tmp_path: Path) -> None:
    """It names the last word itself."""
    desk = Desk(tmp_path, RETRY, DELIVERED).without_pictures()
    desk.alerts().poll()
    correct(desk)
    for _ in range(2):
        desk.clock.advance(60)
        desk.alerts().poll()

    assert [one.subject.rpartition(" ")[2] for one in desk.sink.messages] == [
        "retention_cliff",
        "compaction",
    ]
    assert desk.states() == [("confirmed", "sent")]


def test_an_unsettled_finding_that_went_away_waits_for_its_last_word(tmp_path: Path) -> None:
    """One mail then says that it is over and why it was; at the end of a run nothing waits."""
    desk = Desk(tmp_path, DELIVERED).without_pictures()
    desk.alerts().poll()
    gone = finding("gone", run=RUN, key=KEY, series=SERIES.replace("@h", "@host"), gone_k=128)
    for one in (replace(gone, causes=CAUSES, is_settled=False), replace(gone, causes=LAST_WORD)):
        with FindingsStore(desk.folder.findings) as store:
            store.save_finding(one, ["mail"], desk.clock.wall_ns())
        desk.alerts().poll()

    assert told(desk) == ["-130.confirmed", "-130.gone"]
    assert desk.sink.messages[1].subject.endswith(", cause compaction (was retention_cliff)")
