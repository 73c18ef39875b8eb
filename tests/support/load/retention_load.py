"""Several topics with limits of their own, loaded at once until they delete: what was forecast, what came."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from soak.app import guarantees
from soak.core.clock import SystemClock
from soak.core.cluster.forecast import compare_with_event
from soak.core.model import Event
from soak.core.plan import text as plan_text
from soak.core.plan.plan import Plan
from soak.core.units import SECOND_NS
from soak.lab.ports import Node, Running

STICKY_NS = SECOND_NS // 100
TICK_NS = SECOND_NS // 500

Send = Callable[[int, bytes], None]
"""Sends a message to a partition."""


@dataclass(slots=True)
class Loaded:
    """One topic under load; `begun_ns` is when its first message was due, `forecast` that of then."""

    plan: Plan
    send: Send
    begun_ns: int = 0
    forecast: Mapping[str, object] = field(default_factory=dict)
    sent: int = 0
    _begun_mono_ns: int = 0
    _payload: bytes = field(default=b"")

    @property
    def name(self) -> str:
        return self.plan.topic.name

    def begin(self, clock: SystemClock) -> None:
        self.begun_ns, self._begun_mono_ns = clock.wall_ns(), clock.mono_ns()
        self._payload = os.urandom(self.plan.load.message_size)

    def tick(self, now_ns: int) -> None:
        """Send what is due, as a producer without keys does: a partition for a while, then the next."""
        due = int((now_ns - self._begun_mono_ns) * self.plan.load.rate) // SECOND_NS
        partition = now_ns // STICKY_NS % self.plan.topic.partitions
        for _ in range(self.sent, due):
            self.send(partition, self._payload)
        self.sent = due


class Loader:
    """Sends to all topics from one thread until it is closed."""

    def __init__(
        self, topics: Sequence[Loaded], serve: Callable[[], object] = lambda: None
    ) -> None:
        self._topics = topics
        self._serve = serve
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def foretell(self) -> None:
        """Keep what is foreseen of each topic: later they are not empty."""
        for topic in self._topics:
            topic.forecast = guarantees.forecast_plan(topic.plan, (), Path()).body

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        clock = SystemClock()
        for topic in self._topics:
            topic.begin(clock)
        while not self._stop.is_set():
            now_ns = clock.mono_ns()
            for topic in self._topics:
                topic.tick(now_ns)
            self._serve()
            clock.sleep_until(now_ns + TICK_NS)


def plan_of(
    name: str, broker: str, load: str, partitions: int, settings: Mapping[str, str]
) -> Plan:
    """Return the plan of a run over this topic alone."""
    text = (
        f"name: x\nbroker: {broker}\nload: {load}\nphases: {{warm_up: 0s, soak: 60s}}\n"
        f"topic: {{name: {name}, use_existing: true, partitions: {partitions}, settings: {{"
        + ", ".join(f"{key}: '{value}'" for key, value in settings.items())
        + "}}\n"
    )
    return plan_text.load(text, name).plan


def log_of(broker: Node | Running) -> str:
    """Return a lab broker's log, with the parts of it that were put away."""
    name = broker.log_path.name
    paths = sorted(broker.log_path.parent.glob(f"{name}*"), reverse=True)
    return "".join(path.read_text(errors="replace") for path in paths)


def outcome(topic: Loaded, events: Sequence[Event]) -> dict[str, object]:
    """Return when the first deletion of a topic was forecast, when it came, and how far these are apart."""
    found = [
        (event.since_ns + event.at_ns) / 2
        for event in events
        if event.kind == "retention_deletion" and event.fields["topic"] == topic.name
    ]
    came = (min(found) - topic.begun_ns) / SECOND_NS if found else None
    happened = compare_with_event(topic.forecast, {"first_deletion": came})
    return {"topic": topic.name, "forecast": topic.forecast["first_deletion_seconds"], **happened}
