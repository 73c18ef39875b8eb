"""Kafka at full speed: our producer and consumer against kafka-producer-perf-test and its sister."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient

from soak.core.errors import SoakError
from soak.core.plan.plan import Plan
from tests.bench import daemons, kafka_tools
from tests.bench.figures import Goal, Measures, Spec, stolen
from tests.bench.process import wait_all

SIZE = 1024
PARTITIONS = 4
SETTINGS = {
    "as it comes": {"acks": "all", "linger.ms": "5", "enable.idempotence": "true"},
    "128 KiB batches": {
        "acks": "all",
        "linger.ms": "1",
        "batch.size": "131072",
        "enable.idempotence": "false",
    },
}
"""Of both sides, by what people call them; the rest is each client's default. The first are those of the
Java client without a setting, the second those of the published comparisons."""


@dataclass(frozen=True, slots=True)
class Length:
    """How long one round is: a JVM's start costs some 4 s of CPU, which few messages share or many."""

    name: str
    load_seconds: int  # of our producer, which goes by the clock
    count: int  # of the peer's messages: about as many
    has_read_rate: bool  # False: the messages are read in too few seconds to tell a rate from


SHORT = Length("1 million", 4, 1_000_000, has_read_rate=False)
LONG = Length("5 million", 16, 5_000_000, has_read_rate=True)


def producer_specs(settings: str, length: Length) -> tuple[Spec, ...]:
    what = f"producer, {settings}, {length.name}"
    return (
        Spec("rate", f"{what}: messages/s", Goal(ratio_least=1.3)),
        Spec("cpu_us", f"{what}: CPU us a message", Goal(ratio_most=0.45)),
        stolen(what),
    )


def consumer_specs(length: Length) -> tuple[Spec, ...]:
    what = f"consumer, {length.name}"
    cpu = Spec("cpu_us", f"{what}: CPU us a message", Goal(ratio_most=0.45))
    rate = Spec("rate", f"{what}: messages/s", Goal(ratio_least=1.0))
    return (rate, cpu, stolen(what)) if length.has_read_rate else (cpu, stolen(what))


_ASKED_PER_SECOND = 1_000_000  # more than can be done: what is over is counted as missed
_LIMIT_SECONDS = 120
_WARM_UP_SHARE = 5  # one part in so many


@dataclass(frozen=True, slots=True)
class FullSpeed:
    """One broker, and how long each side works; `folder` is this one's own."""

    servers: str
    folder: Path
    length: Length
    settings: dict[str, str]

    def our_producer(self, number: int) -> Measures:
        plan = self.plan(f"ours-{number}")
        measures, _ = self._produce(plan)
        self._delete(plan.topic.name)
        return measures

    def peer_producer(self, number: int) -> Measures:
        plan = self.plan(f"peer-{number}")
        daemons.create_topics(plan)
        measures = kafka_tools.produce(
            self.servers,
            plan.topic.name,
            self.settings,
            count=self.length.count,
            warm_up=self.length.count // _WARM_UP_SHARE,
            size=SIZE,
            log_path=self.folder / f"{plan.topic.name}.log",
        )
        self._delete(plan.topic.name)
        return measures

    def filled(self) -> tuple[Plan, int]:
        """Return a plan whose topic our producer has filled, and how many messages lie in it."""
        plan = self.plan("filled")
        _, count = self._produce(plan)
        return plan, count

    def our_consumer(self, plan: Plan, count: int, number: int) -> Measures:
        # Without a lead: what is read before a run begins is recorded in its first second.
        path = self.folder / f"consume-{number}"
        folder = daemons.prepare(path, plan, load_seconds=600, lead_seconds=0)
        running = [daemons.spawn(folder, "consume")]
        (usage,) = wait_all(running, _LIMIT_SECONDS, daemons.has_received(folder, count))
        found = daemons.seconds(folder, "consume")
        for name, expected in (("received_messages", count), ("duplicated_messages", 0)):
            if daemons.total(found, name) != expected:
                raise SoakError(f"{name} is {daemons.total(found, name)}, not {expected}")
        measures = {"cpu_us": usage.cpu_seconds * 1e6 / count}
        if self.length.has_read_rate:
            between = daemons.busy(found, "received_messages")
            measures["rate"] = daemons.rate(between, "received_messages")
        return measures

    def peer_consumer(self, plan: Plan, count: int, number: int) -> Measures:
        log_path = self.folder / f"peer-consume-{number}.log"
        name = plan.topic.name
        measures = kafka_tools.consume(self.servers, name, count=count, log_path=log_path)
        if self.length.has_read_rate:
            measures["rate"] = kafka_tools.middle_rate(log_path.read_text(encoding="utf-8"))
        return measures

    def plan(self, name: str) -> Plan:
        """Return a plan whose topic no other round has."""
        raw: dict[str, Any] = {
            "name": "bench",
            # the Java client's buffer.memory is 32 MiB
            "broker": {
                "kafka": {"producer": {**self.settings, "queue.buffering.max.kbytes": 32768}}
            },
            "topic": {"name": f"{self.folder.name}-{name}", "partitions": PARTITIONS},
            "load": {
                "rate": f"{_ASKED_PER_SECOND}/s",
                "message_size": f"{SIZE}B",
                "backlog": "1s",
                "catch_up_ratio": 1.0,
            },
        }
        return daemons.plan_of(raw, {"bootstrap_servers": self.servers})

    def _produce(self, plan: Plan) -> tuple[Measures, int]:
        """Run our producer into a new topic; return what it did, and how many it sent."""
        daemons.create_topics(plan)
        load_seconds = self.length.load_seconds
        folder = daemons.prepare(self.folder / plan.topic.name, plan, load_seconds)
        running = [daemons.spawn(folder, "produce")]
        (usage,) = wait_all(running, load_seconds + _LIMIT_SECONDS)
        found = daemons.seconds(folder, "produce")
        sent, acked = (daemons.total(found, f"{word}_messages") for word in ("sent", "acked"))
        if sent != acked:
            raise SoakError(f"{sent} messages were sent and {acked} acknowledged")
        warm_up = -(-load_seconds // _WARM_UP_SHARE)
        steady = [one for one in found if warm_up <= one.k < load_seconds]
        measures = {
            "rate": daemons.rate(steady, "acked_messages"),
            "cpu_us": usage.cpu_seconds * 1e6 / sent,
        }
        return measures, sent

    def _delete(self, topic: str) -> None:
        """Free gigabytes before the next round."""
        admin = AdminClient({"bootstrap.servers": self.servers})
        for future in admin.delete_topics([topic]).values():
            future.result(30)
