"""The JVM of a Kafka node: as small as what it has to hold allows.

Serial collector and the first compiler only: on two cores at 2,000 messages a second the p99 was
calm from the tenth second on, at two thirds of the CPU time that the defaults take.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from soak.service import java

_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
_START_MIB = 256
_LEAST_MIB = 512
_PARTITIONS_A_MIB = 10
_PURGED_AFTER = 1_000  # fetches that waited, in a broker as it comes
_WAITED_FOR = 500_000  # partitions that those fetches together may still be noted at
_PARTITIONS_A_SECOND = 50  # of two cores that others use too; a recovery reads every log


@dataclass(frozen=True, slots=True)
class Machine:
    """What every node of a cluster is run with."""

    jars: Path
    partitions: int  # that a node is to hold, copies included

    @property
    def heap(self) -> tuple[str, str]:
        """Return the options that bound the JVM's heap."""
        return f"-Xms{_START_MIB}m", f"-Xmx{_LEAST_MIB + self.partitions // _PARTITIONS_A_MIB}m"

    @property
    def settings(self) -> dict[str, str]:
        """Return what a broker of so many partitions is to have otherwise.

        A fetch that waited stays noted at each partition it asked for until the next purge, with half a KiB
        for each of them in every note: of 10,000 partitions 240 such fetches, two minutes, took a GiB.
        """
        interval = _WAITED_FOR // max(1, self.partitions)
        if interval >= _PURGED_AFTER:
            return {}
        return {"fetch.purgatory.purge.interval.requests": str(max(1, interval))}

    def patience_seconds(self, least: int) -> int:
        """Return how long to wait for what a node without partitions does within `least` seconds."""
        return least + self.partitions // _PARTITIONS_A_SECOND


def command(folder: Path, jars: Path, options: tuple[str, ...]) -> list[str]:
    """Return the words before the main class of a program of Kafka's."""
    return [
        str(java.java_home() / "bin" / "java"),
        *options,
        *_QUICK,
        f"-Dlog4j2.configurationFile={folder / 'log4j2.xml'}",
        f"-Djava.io.tmpdir={folder / 'tmp'}",
        "-Dlog4j.shutdownHookEnabled=false",  # it would close the log before Kafka is done
        f"-XX:ErrorFile={folder / 'logs' / 'crash.log'}",
        "-XX:+ExitOnOutOfMemoryError",
        *("-cp", str(jars / "*")),
    ]
