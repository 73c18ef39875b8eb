"""The alert daemon: tells people what the findings file owes them, once, however often it must try.

That a daemon is missed goes the same way as a finding.

A message counts as sent only when the sink took it and that is on disk; what cannot be sent stays owed.
A drive that takes nothing is a bad round: nothing is sent that could not be noted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from soak.core import plugins
from soak.core.errors import FindingsError, RunFolderError
from soak.core.model import Column
from soak.core.plan import Plan
from soak.core.ports import Clock, Sink
from soak.core.units import SECOND_NS
from soak.daemons.alert_added import Added
from soak.daemons.alert_calendar import Calendar
from soak.daemons.alert_delivery import Delivery
from soak.daemons.alert_digest import Digests, never
from soak.daemons.alert_lasting import Lasting
from soak.daemons.alert_silence import Silences
from soak.daemons.alert_telling import as_told_by
from soak.daemons.context import PhaseFile, open_page
from soak.service.notify import notifier
from soak.store.findings import LONGEST_WAIT_NS, FindingsStore
from soak.store.run_folder import Run, RunFolder, exclusive, read_plan, read_run

LOG = logging.getLogger("soak.daemons.alert")
HOUR_NS = 3600 * SECOND_NS
FAREWELL_NS = 10 * SECOND_NS
"""How long the last round may take to begin another message; the sink's own limit bounds each."""

_POLL_SECONDS = 1.0


def run(run_dir: Path, stop: threading.Event, clock: Clock, telling: Path | None = None) -> int:
    """Send what is owed until `stop`, then try once more what is left; return the exit code.

    `telling` is a plan whose `sinks` and `alerts` count instead of those that the run began with.

    Raises:
        SoakError: no run folder, a sink that cannot be built, or another alert daemon at work.
    """
    folder = RunFolder(run_dir.resolve())  # `current` may become another run's before this one ends
    begun_as, known = read_plan(folder), read_run(folder)
    plan = as_told_by(telling, begun_as)
    page = open_page(folder, plan, known, "alert", clock)
    manager = notifier()
    with exclusive(folder.path / "alert.lock", "the outbox"):
        added = [name for name in plan.sinks if name not in begun_as.sinks]
        alerts = Alerts(folder, plan, known, build_sinks(plan), clock, manager.alive, added)
        manager.ready()
        settled = 0
        while not stop.is_set():
            manager.alive()
            settled += alerts.poll(stop.is_set)
            page.show([(Column("alert_settled_messages_total", (), "messages"), float(settled))])
            stop.wait(_POLL_SECONDS)
        manager.stopping()
        alerts.farewell()
    return 0


def build_sinks(plan: Plan) -> dict[str, Sink]:
    return {
        name: plugins.load("soak.sinks", name).build(config) for name, config in plan.sinks.items()
    }


class Alerts:
    """One round after the other over the outbox of one run."""

    def __init__(
        self,
        folder: RunFolder,
        plan: Plan,
        run: Run,
        sinks: Mapping[str, Sink],
        clock: Clock,
        alive: Callable[[], None] = lambda: None,
        added: Sequence[str] = (),
    ) -> None:
        """`alive` is called before each try: a round may be long; `added` are sinks of `plan` alone."""
        self._folder = folder
        self._plan = plan
        self._clock = clock
        self._alive = alive
        self._calendar = Calendar(plan.alerts)
        self._delivery = Delivery(folder, plan, run, sinks, clock)
        readers = sinks if plan.alerts.digest else {}
        self._digests = Digests(folder, run, readers, self._calendar, clock, alive)
        self._silences = Silences(folder, plan, run, tuple(sinks), clock)
        self._lasting = Lasting(folder, self._delivery, sinks, clock, alive)
        self._added = Added(folder, run, added, clock)
        self._held_back = ""  # why nothing, or not all, went out in the last round
        self._why = ""

    def poll(self, is_stopped: Callable[[], bool] = never) -> int:
        """Do a round of all that there is to tell; return how many messages were settled.

        Once it is to stop it begins nothing: the farewell comes after it, and has a limit too.
        """
        settled = self._delivered(is_stopped)
        digest = partial(self._digest, is_stopped)
        for part in (self._added.poll, self._silences.poll, self._lasting.poll, digest):
            if not is_stopped():
                self._noting_why(part)
        self._say_why()
        return settled

    def _digest(self, is_stopped: Callable[[], bool]) -> None:
        if self._plan.alerts.digest and not self._is_quiet():
            self._digests.poll(is_stopped)

    def _noting_why(self, part: Callable[[], None]) -> None:
        try:
            part()
        except (FindingsError, RunFolderError) as error:
            self._why = str(error)

    def deliver(self, is_stopped: Callable[[], bool] = never) -> None:
        """Do a round of what is owed after the end of the run, and of nothing else."""
        self._delivered(is_stopped)
        if not self._is_quiet():
            self._noting_why(partial(self._digests.poll_owed, is_stopped))
        self._say_why()

    def _delivered(self, is_stopped: Callable[[], bool]) -> int:
        """Try each message that is due once; return how many were settled."""
        self._why = ""
        if self._is_quiet():
            self._why = "maintenance"
            return 0
        return self._round(self._clock.wall_ns(), is_stopped, self._is_too_much)

    def farewell(self) -> None:
        """Try what is left, whenever it was put off to and however much it is: nobody comes after us.

        In a pause somebody will, and this is a round like others, with the same limit.
        """
        until_ns = self._clock.mono_ns() + FAREWELL_NS
        self._noting_why(self._added.queue)

        def is_late() -> bool:
            return self._clock.mono_ns() >= until_ns

        if PhaseFile(self._folder.phases).poll().end_k is None:
            self._delivered(is_late)
            self._say_why()
            return
        while self._round(self._clock.wall_ns() + LONGEST_WAIT_NS, is_late, _nothing_is_too_much):
            continue  # a sequel becomes due when the message before it is settled
        if self._plan.alerts.digest:
            self._noting_why(partial(self._digests.farewell, is_late))
        self._say_why()

    def _say_why(self) -> None:
        if self._why not in {"", self._held_back}:
            LOG.warning("messages_held_back why=%r", self._why)
        self._held_back = self._why

    def _is_quiet(self) -> bool:
        return self._calendar.is_quiet(self._clock.wall_ns())

    def _round(
        self,
        due_wall_ns: int,
        is_stopped: Callable[[], bool],
        is_too_much: Callable[[str], bool],
    ) -> int:
        if not self._folder.findings.exists():
            return 0
        settled = 0
        away = set()  # sinks that took nothing: others are not to wait for them
        try:
            self._delivery.settle()
            with FindingsStore(self._folder.findings) as store:
                rows = store.due(due_wall_ns)
            for row in rows:
                if is_stopped():
                    break
                if row.sink in away or is_too_much(row.sink):
                    continue
                self._alive()
                outcome = self._delivery.try_once(row)
                if outcome is not None and outcome.result == "retry":
                    away.add(row.sink)
                settled += outcome is None or outcome.result != "retry"
        except FindingsError as error:
            self._why = str(error)
        return settled

    def _is_too_much(self, sink: str) -> bool:
        """True when a sink has had its share of the hour: what is more waits for the next."""
        now_ns = self._clock.wall_ns()
        with FindingsStore(self._folder.findings) as store:
            sent = store.sent_between(sink, now_ns - HOUR_NS, now_ns)
        if sent < self._plan.alerts.most_per_hour:
            return False
        self._why = f"{sent} messages to {sink} in an hour"
        return True


def _nothing_is_too_much(_sink: str) -> bool:
    return False
