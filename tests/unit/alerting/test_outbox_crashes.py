"""Whatever fails and wherever the daemon crashes, no message is lost and only a crash repeats one."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from soak.alerting.daemon import AlertDaemon
from soak.alerting.heartbeat import Notice
from soak.core.ports import Message, Outcome
from soak.store.findings.rows import NotificationKind
from soak.store.findings.store import FindingsStore
from soak.store.run_folder import read_plan, read_run
from tests.support.alerting.daemon import DELIVERED, NEVER, RETRY, AlertWorld

DAY_SECONDS = 86_400
EVENTS = ("opened", "resolved", "missing", "returned", "a day passes")
FATES = ("delivered", "deferred", "refused", "crash before", "crash after")


class CrashError(BaseException):
    """Ends the daemon in the middle of a try, as a kill does."""


@dataclass
class UnreliableSink:
    """Delivers, defers, refuses, or crashes the daemon before or after delivery."""

    fate: str = "delivered"
    delivered: Counter[str] = field(default_factory=Counter)
    refused: set[str] = field(default_factory=set)
    crashes: Counter[str] = field(default_factory=Counter)

    def send(self, message: Message) -> Outcome:
        if self.fate == "deferred":
            return RETRY
        if self.fate == "refused":
            self.refused.add(message.key)
            return NEVER
        if self.fate != "crash before":
            self.delivered[message.key] += 1
        if self.fate.startswith("crash"):
            self.crashes[message.key] += 1
            raise CrashError
        return DELIVERED


def happen(world: AlertWorld, event: str) -> None:
    if event in {"opened", "resolved"}:
        world.save("confirmed" if event == "opened" else "gone")
    elif event == "a day passes":
        world.clock.advance(DAY_SECONDS)
    else:
        notice = Notice("synthetic-1-probe", ("probe@h",), world.clock.wall_ns(), host="h")
        kind: NotificationKind = "missing" if event == "missing" else "returned"
        with FindingsStore(world.folder.findings) as store:
            store.save_notice(notice.key, notice.to_text(), kind, ["mail"], 0)


class CrashWorld(AlertWorld):
    """Starts a daemon for each try, with one plan that is read once."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, DELIVERED)
        self.without_charts().change_plan("alerts: {digest: '0 7 * * *', max_per_hour: 100}")
        self._plan, self._run = read_plan(self.folder), read_run(self.folder)

    def work(self, sink: UnreliableSink, fate: str) -> None:
        """Let a daemon work for a while; start another one after each crash."""
        sink.fate = fate
        for _ in range(2):
            daemon = AlertDaemon(self.folder, self._plan, self._run, {"mail": sink}, self.clock)
            with suppress(CrashError):
                daemon.poll()
                daemon.poll()
            self.clock.advance(1000)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> CrashWorld:
    return CrashWorld(tmp_path_factory.mktemp("outbox"))


@pytest.mark.long
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(st.sampled_from(EVENTS) | st.sampled_from(FATES), max_size=6))
def test_no_message_is_lost_and_only_a_crash_repeats_one(
    world: CrashWorld, steps: list[str]
) -> None:
    """Findings, heartbeats and digests go through the same outbox."""
    world.folder.findings.unlink()
    sink = UnreliableSink()
    world.save("confirmed")
    for step in steps:
        if step in EVENTS:
            happen(world, step)
        else:
            world.work(sink, step)
    world.clock.advance(DAY_SECONDS)
    world.work(sink, "delivered")
    world.work(sink, "delivered")
    with FindingsStore(world.folder.findings) as store:
        remaining = store.open_notifications()
        states = Counter(row.state for row in store.notifications("synthetic-1"))

    repeated = {key: count for key, count in sink.delivered.items() if count > 1}
    assert remaining == []
    assert set(states) <= {"sent", "refused"}
    assert all(count <= 1 + sink.crashes[key] for key, count in repeated.items())
    assert any(key.startswith("synthetic-1.digest.") for key in sink.delivered)
    assert {"synthetic-1-130.confirmed"} <= sink.delivered.keys() | sink.refused
