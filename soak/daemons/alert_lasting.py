"""What was told and lasts, said again to receivers that forget, as an Alertmanager does when it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from soak.core.ports import Clock, ForgetfulSink, Sink
from soak.core.units import SECOND_NS
from soak.daemons.alert_attempt import attempt
from soak.daemons.alert_delivery import Delivery
from soak.store.findings import FindingsStore
from soak.store.run_folder import RunFolder

LOG = logging.getLogger("soak.daemons.alert")
PERIOD_NS = 120 * SECOND_NS


class Lasting:
    """Call `poll` each round; it is news to nobody, so no window and no limit holds it back."""

    def __init__(
        self,
        folder: RunFolder,
        delivery: Delivery,
        sinks: Mapping[str, Sink],
        clock: Clock,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder = folder
        self._delivery = delivery
        self._sinks = {name: one for name, one in sinks.items() if isinstance(one, ForgetfulSink)}
        self._clock = clock
        self._alive = alive
        self._next_ns = 0
        self._failed: dict[str, str] = {}  # by sink: what it last said

    def poll(self) -> None:
        """Raise `FindingsError` when the file cannot be used."""
        now_ns = self._clock.mono_ns()
        if now_ns < self._next_ns or not self._sinks or not self._folder.findings.exists():
            return
        self._next_ns = now_ns + PERIOD_NS
        for name, sink in self._sinks.items():
            self._say_again(name, sink)

    def _say_again(self, name: str, sink: ForgetfulSink) -> None:
        with FindingsStore(self._folder.findings) as store:
            rows = store.lasting(name)
        messages = self._delivery.words(rows)
        if not messages:
            return
        self._alive()
        outcome = attempt(lambda: sink.say_again(messages))
        problem = "" if outcome.result == "delivered" else outcome.detail
        if problem and problem != self._failed.get(name):
            LOG.warning("not_said_again sink=%s findings=%d why=%r", name, len(messages), problem)
        self._failed[name] = problem
