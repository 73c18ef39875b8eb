"""A run with one finding and its alert daemon, and sinks that answer as a test wants."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import yaml

from soak.alerting.after_run import AfterRunDelivery
from soak.alerting.daemon import AlertDaemon
from soak.core.plan.text import load
from soak.core.ports import Message, Outcome
from soak.store.findings.store import FindingsStore
from soak.store.run_folder import read_run, write_run
from tests.support.alerting.findings import SERIES, finding
from tests.support.fakes import FakeClock
from tests.support.spark.synthetic_run import Shape, write_synthetic_run

RUN = "synthetic-1"
DELIVERED, RETRY = Outcome("delivered", "250 ok"), Outcome("retry", "451 later")
NEVER = Outcome("never", "550 no such user")
KEY = "synthetic-1-130"
OTHER = "synthetic-1-140"


class FakeSink:
    """Answers with the outcomes it was made with, the last one for ever; a message takes some seconds."""

    def __init__(self, clock: FakeClock, *outcomes: Outcome, seconds: float = 0.0) -> None:
        self._clock = clock
        self._outcomes = list(outcomes)
        self._seconds = seconds
        self.messages: list[Message] = []

    def send(self, message: Message) -> Outcome:
        self.messages.append(message)
        self._clock.advance(self._seconds)
        return self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]


class HookedSink:
    """Calls a function with each message first, and then answers as another sink does."""

    def __init__(self, sink: FakeSink, before: Callable[[Message], None]) -> None:
        self._sink = sink
        self._before = before

    def send(self, message: Message) -> Outcome:
        self._before(message)
        return self._sink.send(message)


class FakeRepeatingSink(FakeSink):
    """Keeps the messages that are sent again apart from the others."""

    again: Sequence[Message] = ()

    def send_again(self, messages: Sequence[Message]) -> Outcome:
        self.again = messages
        return DELIVERED


class AlertWorld:
    """A run with one finding, for which a notification to the sink `mail` is pending."""

    def __init__(self, path: Path, *outcomes: Outcome, state: str = "confirmed") -> None:
        self.folder = write_synthetic_run(path / "run", Shape(seconds=130))
        self.clock = FakeClock()
        self.sink = FakeSink(self.clock, *outcomes)
        self.save(state)

    def without_charts(self) -> AlertWorld:
        """Leave no journal to draw from: a chart is most of what a message costs."""
        self.folder.journal.rename(self.folder.path / "moved")
        return self

    def change_plan(self, more: str) -> None:
        """Replace keys of the run's plan."""
        body = yaml.safe_load(self.folder.plan.read_text())
        self.folder.plan.write_text(yaml.safe_dump({**body, **yaml.safe_load(more)}))

    def save(self, state: str, key: str = KEY) -> None:
        resolved_k = 128 if state == "gone" else None
        found = finding(
            state, key=key, run=RUN, resolved_k=resolved_k, series=SERIES.replace("@h", "@host")
        )
        with FindingsStore(self.folder.findings) as store:
            store.save_finding(found, ["mail"], self.clock.wall_ns())

    def daemon(self) -> AlertDaemon:
        """Return what a daemon that is started now works with."""
        plan = load(self.folder.plan.read_text(), "plan.yaml").plan
        sinks = {"mail": self.sink}
        return AlertDaemon(self.folder, plan, read_run(self.folder), sinks, self.clock)

    def states(self) -> list[tuple[str, str]]:
        with FindingsStore(self.folder.findings) as store:
            return [(row.kind, row.state) for row in store.notifications(RUN)]

    def end_run(self) -> None:
        """Write that the run has ended now."""
        write_run(self.folder, replace(read_run(self.folder), state="ended"))
        os.utime(self.folder.run_json, ns=(self.clock.wall_ns(), self.clock.wall_ns()))

    def after_run(self, sink: FakeSink, stack: ExitStack) -> AfterRunDelivery:
        """Return the delivery for ended runs, with one sink."""
        runs = self.folder.path.parent
        return AfterRunDelivery(runs, self.clock, stack, sinks_of=lambda _: {"mail": sink})
