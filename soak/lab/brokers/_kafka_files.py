"""The files that a single Kafka node is started with; text only, no IO."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from soak.core.errors import LabError

NODE_ID = 1

_LOGGING = """\
<Configuration status="WARN">
  <Appenders>
    <RollingFile name="file" fileName="{log}" filePattern="{log}.%i">
      <PatternLayout pattern="[%d] %p %m (%c)%n"/>
      <SizeBasedTriggeringPolicy size="8MB"/>
      <DefaultRolloverStrategy max="3"/>
    </RollingFile>
  </Appenders>
  <Loggers><Root level="INFO"><AppenderRef ref="file"/></Root></Loggers>
</Configuration>
"""


def server_properties(
    data: Path, port: int, controller_port: int, settings: Mapping[str, str]
) -> str:
    """Return the configuration of one node that is broker and controller, on loopback.

    Raises:
        LabError: `settings` names a key that the lab itself decides, or holds a line break.
    """
    own = {
        "process.roles": "broker,controller",
        "node.id": str(NODE_ID),
        "controller.quorum.voters": f"{NODE_ID}@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(data),
    }
    defaults = {
        # One node: what is kept three times elsewhere is kept once.
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        # Retention in seconds instead of minutes, so that a short run sees it.
        "log.retention.check.interval.ms": "1000",
        "log.segment.delete.delay.ms": "1000",
        "log.initial.task.delay.ms": "1000",
    }
    for key, value in settings.items():
        if key in own:
            raise LabError(f"the lab itself decides {key}; remove it from lab.settings")
        if "\n" in f"{key}{value}" or "\r" in f"{key}{value}":
            raise LabError(f"lab.settings: {key!r} holds a line break")
    return properties({**defaults, **settings, **own})


def meta_properties(cluster_id: str, directory_id: str) -> str:
    """Return the file by which Kafka knows a formatted data folder."""
    return properties(
        {
            "version": "1",
            "cluster.id": cluster_id,
            "node.id": str(NODE_ID),
            "directory.id": directory_id,
        }
    )


def logging_xml(log_path: Path) -> str:
    """Return a log4j2 configuration: INFO into one file, at most 32 MB with its predecessors."""
    escaped = str(log_path).replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return _LOGGING.format(log=escaped)


def properties(pairs: Mapping[str, str]) -> str:
    """Return a Java properties file; a backslash is its escape character."""
    return "".join(f"{key}={value}\n".replace("\\", "\\\\") for key, value in pairs.items())
