"""Child processes under a parent's watch: who is ready, who hangs, and who may take its time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.core.units import SECOND_NS
from soak.service.notify import notifier
from soak.service.watch import Watch, limit_ns
from tests.fakes import FakeClock

LIMIT_NS = 30 * SECOND_NS
START_LIMIT_NS = 600 * SECOND_NS
OWN = {os.getpid(): LIMIT_NS}


@pytest.fixture
def watch() -> Iterator[Watch]:
    with Watch(FakeClock(), START_LIMIT_NS) as found:
        yield found


def advance(watch: Watch, seconds: float) -> None:
    assert isinstance(watch.clock, FakeClock)
    watch.clock.advance(seconds)


def test_a_child_is_known_by_its_process_id(watch: Watch) -> None:
    """What it says of itself counts for nothing: the kernel names the sender."""
    script = "from soak.service.notify import notifier; notifier().ready()"
    child = subprocess.Popen(
        [sys.executable, "-c", script], env=watch.environment(os.environ, LIMIT_NS)
    )
    child.wait(30)
    watch.take()

    assert watch.ready == {child.pid}


def test_who_is_ready_is_heard_among_many(watch: Watch) -> None:
    """The kernel drops what a full queue does not take; a heartbeat comes again, this does not."""
    own = notifier(watch.environment({}, LIMIT_NS))
    for _ in range(int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text()) + 1):
        own.alive()
    speaker = threading.Thread(target=own.ready)
    speaker.start()
    speaker.join(0.1)  # if it does not wait it is through by then
    watch.take()
    speaker.join(30)
    watch.take()

    assert watch.ready == {os.getpid()}


def test_silence_for_longer_than_the_limit_is_a_hang(watch: Watch) -> None:
    """Of one that was ready; a heartbeat begins the time anew."""
    own = notifier(watch.environment({}, LIMIT_NS))
    seen = []
    for say in (own.ready, own.alive, lambda: None):
        say()
        watch.take()
        advance(watch, 20)
        seen.append(watch.hanging(OWN))

    assert seen == [[], [], [os.getpid()]]


def test_each_child_has_a_limit_of_its_own(watch: Watch) -> None:
    """A detector is silent while Spark starts; a producer sends all the time."""
    notifier(watch.environment({}, LIMIT_NS)).ready()
    watch.take()
    advance(watch, 100)

    assert watch.hanging({os.getpid(): 180 * SECOND_NS}) == []
    assert watch.hanging(OWN) == [os.getpid()]


def test_one_that_is_not_ready_or_ends_may_take_its_time(watch: Watch) -> None:
    """Its start and its last words have limits of their own."""
    own = notifier(watch.environment({}, LIMIT_NS))
    own.alive()
    watch.take()
    advance(watch, 100)
    starting = watch.hanging(OWN)
    own.ready()
    own.stopping()
    watch.take()
    advance(watch, 100)

    assert (starting, watch.hanging(OWN)) == ([], [])


def test_one_that_never_becomes_ready_hangs_too(watch: Watch) -> None:
    """Its time counts from when it was first seen; no other manager looks at it after a restart."""
    begun = watch.hanging(OWN)
    advance(watch, START_LIMIT_NS / SECOND_NS + 1)

    assert (begun, watch.hanging(OWN)) == ([], [os.getpid()])


def test_a_process_that_is_gone_is_forgotten(watch: Watch) -> None:
    """Its number may come again."""
    notifier(watch.environment({}, LIMIT_NS)).ready()
    watch.take()
    advance(watch, 100)
    watch.hanging({})

    assert watch.ready == set()


def test_children_are_watched_as_closely_as_their_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "5000000")
    asked = limit_ns(LIMIT_NS)
    monkeypatch.delenv("WATCHDOG_USEC")

    assert (asked, limit_ns(LIMIT_NS)) == (5 * SECOND_NS, LIMIT_NS)
