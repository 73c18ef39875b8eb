"""The alert daemon that dies at each start: it says so itself, once, and again when that comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.cli._dying import MANY, message, tell
from soak.core.units import SECOND_NS
from soak.service import again
from tests.fakes import FakeClock
from tests.pages import serving
from tests.test_again import environment
from tests.test_failed import PLAN
from tests.test_mail import Inbox, served
from tests.test_webhook import Receiver

DAY_SECONDS = 86400


class Dying:
    """A service that systemd starts again each time that it died."""

    def __init__(self, folder: Path) -> None:
        self.runtime, self.plan = folder / "soak-alert@p", folder / "p.yaml"
        self.runtime.mkdir()
        self.clock = FakeClock()

    def start(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.advance(2)
            again.keep_apart(self.clock, environment(self.runtime))
            tell(Path("no-run"), self.plan, self.clock, environment(self.runtime))


@pytest.fixture
def dying(tmp_path: Path) -> Dying:
    return Dying(tmp_path)


def test_it_is_told_once_however_long_it_goes_on(dying: Dying) -> None:
    inbox = Inbox()
    with served(inbox) as port:
        dying.plan.write_text(PLAN.format(port=port))
        dying.start(MANY)
        before = len(inbox.mails)
        dying.start(MANY)

    assert (before, len(inbox.mails)) == (0, 1)
    assert "soak-alert@p dies again and again" in inbox.mails[0][1]["Subject"]


def test_what_comes_back_another_day_is_told_again(dying: Dying) -> None:
    inbox = Inbox()
    with served(inbox) as port:
        dying.plan.write_text(PLAN.format(port=port))
        for _ in range(2):
            dying.start(MANY + 1)
            dying.clock.advance(DAY_SECONDS)

    assert len(inbox.mails) == 2


def test_a_sink_that_is_away_is_tried_at_the_next_start(dying: Dying) -> None:
    """And who has it already is not told twice."""
    inbox, away, back = Inbox(), Receiver(500), Receiver()
    with served(inbox) as port:
        for webhook in (away, back, back):
            with serving(webhook.handler) as url:
                dying.plan.write_text(PLAN.format(port=port) + f"  webhook: {{url: {url}}}\n")
                dying.start(MANY + 1 if webhook is away else 1)

    assert (len(inbox.mails), len(away.posts), len(back.posts)) == (1, 1, 1)


def test_sinks_that_nobody_can_read_keep_it_from_no_start(
    dying: Dying, caplog: pytest.LogCaptureFixture
) -> None:
    dying.start(MANY + 1)

    assert "sinks_unknown" in caplog.text


def test_the_message_says_what_is_told_and_what_is_kept() -> None:
    told = message("p", "soak-alert@p", "h1", 60 * SECOND_NS)

    assert told.subject == (
        "[soakd] p: findings reach nobody, soak-alert@p dies again and again on h1"
    )
    assert told.text == (
        "At 1970-01-01 00:01:00Z soak-alert@p on h1 had died at 8 starts in a row; it is tried once "
        "a minute.\n"
        "This says nothing about the cluster. The load is measured on; what is found meanwhile is kept, "
        "and told as soon as the service stays.\n"
        "What it said last: journalctl -u soak-alert@p -n 50\n"
    )
