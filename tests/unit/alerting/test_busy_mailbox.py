"""A mail that some recipients have and others defer: what it costs the other mails, and how it is counted."""

from __future__ import annotations

from pathlib import Path

from soak.core.ports import Outcome
from tests.support.alerting.daemon import DELIVERED, AlertWorld

IN_PART = Outcome("retry", "b: 450 busy", progress="a has it", may_have_arrived=True)
KEYS = [f"synthetic-1-{number}" for number in range(200, 206)]


def world_with(path: Path, *outcomes: Outcome, max_per_hour: int = 100) -> AlertWorld:
    """Return a world in which seven findings are to be sent."""
    world = AlertWorld(path, *outcomes).without_charts()
    world.change_plan(f"alerts: {{max_per_hour: {max_per_hour}}}")
    for key in KEYS:
        world.save("confirmed", key=key)
    return world


def test_each_new_mail_is_tried_and_one_that_waits_for_the_mailbox_a_round(tmp_path: Path) -> None:
    world = world_with(tmp_path, IN_PART)
    daemon = world.daemon()
    tries = []
    for _ in range(3):
        daemon.poll()
        tries.append(len(world.sink.messages))
        world.clock.advance(3600)

    assert tries == [7, 8, 9]


def test_all_that_waited_are_sent_in_the_round_in_which_the_mailbox_takes_them(
    tmp_path: Path,
) -> None:
    world = world_with(tmp_path, *[IN_PART] * 7, DELIVERED)
    daemon = world.daemon()
    daemon.poll()
    world.clock.advance(3600)
    daemon.poll()

    assert world.states() == [("opened", "sent")] * 7
    assert len(world.sink.messages) == 14


def test_a_mail_that_some_recipients_have_counts_once_towards_the_hourly_limit(
    tmp_path: Path,
) -> None:
    """Neither the round in which it was deferred nor a later daemon sends more; its rest is no other mail."""
    world = world_with(tmp_path, *[IN_PART] * 4, DELIVERED, max_per_hour=4)
    world.daemon().poll()
    first = len(world.sink.messages)
    world.clock.advance(1200)
    world.daemon().poll()

    assert first == 4
    assert world.states().count(("opened", "sent")) == 4
    assert world.states().count(("opened", "pending")) == 3


def test_the_end_of_a_run_tries_a_busy_mailbox_once_and_sends_what_follows(tmp_path: Path) -> None:
    """The resolved message goes to those who have the first one."""
    world = AlertWorld(tmp_path, IN_PART, DELIVERED).without_charts()
    daemon = world.daemon()
    daemon.poll()
    world.save("gone")
    world.sink = type(world.sink)(world.clock, DELIVERED, IN_PART)
    world.end_run()
    world.daemon().shut_down()

    assert [message.key.rpartition(".")[2] for message in world.sink.messages] == [
        "confirmed",
        "gone",
    ]
