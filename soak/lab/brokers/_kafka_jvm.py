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
