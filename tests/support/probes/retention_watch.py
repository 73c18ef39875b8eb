"""The retention probe on a fake Kafka of one topic, polled by hand."""

from __future__ import annotations

from probes.retention_kafka.probe import Config, RetentionKafka
from soak.core.model import Event, Reading
from soak.core.units import SECOND_NS
from tests.support.fakes import FakeClock, FakeOffsets
from tests.support.probes.fake_folders import FakeFolders

TOPIC = "soak-1"
SEGMENT = 1000  # messages
SEGMENT_BYTES = 2**20


class Watch:
    """A probe on a fake cluster whose partitions hold segments of 1000 messages, 1 MiB each."""

    def __init__(self, partitions: int = 1, **settings: object) -> None:
        self.clock = FakeClock(mono_ns=5 * SECOND_NS)
        self.cluster = FakeOffsets(self.clock, TOPIC, [0] * partitions)
        self.folders = FakeFolders(self.clock)
        config = Config(topics=(TOPIC,), **{"directory": "/data", **settings})  # type: ignore[arg-type]  # what a test sets
        self.is_local = config.directory is not None
        for at in range(partitions if self.is_local else 0):
            for base in range(0, 100 * SEGMENT, SEGMENT):
                self.folders.roll(self.path(at), base, SEGMENT_BYTES)
        self.probe = RetentionKafka(
            config, self.clock, connect=lambda _: self.cluster, folders=self.folders
        )

    @staticmethod
    def path(partition: int) -> str:
        return f"/data/{TOPIC}-{partition}"

    def delete(self, count: int = 1, partition: int = 0) -> None:
        """Let the offset move and the files go, all at once."""
        begin = self.cluster.starts[partition]
        self.cluster.starts[partition] += count * SEGMENT
        bases = range(begin, begin + count * SEGMENT, SEGMENT)
        for base in bases if self.is_local else ():
            self.folders.rename(self.path(partition), base)
            self.folders.unlink(self.path(partition), base)

    def poll(self) -> Reading:
        """Poll once, and read a second later."""
        self.probe.poll(self.cluster)
        self.clock.advance(1)
        return self.probe.loop.buffer.take(self.clock.mono_ns())


def deletions(reading: Reading) -> list[Event]:
    return [event for event in reading.events if event.kind == "retention_deletion"]


def values(reading: Reading) -> dict[str, float]:
    return {column.metric: value for column, value in reading.samples}
