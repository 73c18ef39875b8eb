"""What every lab broker needs: free ports, checked settings, a bounded log, and tools run to their end."""

from __future__ import annotations

import random
import socket
import subprocess
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from soak.core.errors import LabError
from soak.service import children

_PORTS = range(20_000, 32_000)  # below those that the kernel chooses, so a restart finds them free

_LOGGING = """\
<Configuration status="WARN">
  <Appenders>
    <RollingFile name="file" fileName={log} filePattern={pattern}>
      <PatternLayout pattern="[%d] %p %m (%c)%n%ex"/>
      <SizeBasedTriggeringPolicy size="8MB"/>
      <DefaultRolloverStrategy max="3"/>
    </RollingFile>
  </Appenders>
  <Loggers><Root level="INFO"><AppenderRef ref="file"/></Root></Loggers>
</Configuration>
"""


def logging_xml(log_path: Path) -> str:
    """Return a log4j2 configuration: INFO into one file, at most 32 MB with its predecessors."""
    return _LOGGING.format(log=quoteattr(str(log_path)), pattern=quoteattr(f"{log_path}.%i"))


def check_settings(settings: Mapping[str, str], own: Container[str]) -> None:
    """Refuse settings that the lab itself sets, `own`, and those that contain a line break.

    Raises:
        LabError: with the name of the setting.
    """
    for key, value in settings.items():
        if key in own:
            raise LabError(f"the lab itself sets {key}; remove it from lab.settings")
        if "\n" in f"{key}{value}" or "\r" in f"{key}{value}":
            raise LabError(f"lab.settings: {key!r} contains a line break")


def properties(pairs: Mapping[str, str]) -> str:
    """Return a Java properties file; a backslash is its escape character."""
    return "".join(f"{key}={value}\n".replace("\\", "\\\\") for key, value in pairs.items())


def is_listening(port: int) -> bool:
    """Return whether a process listens on a port of loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_ports(count: int) -> list[int]:
    """Return ports on which no process listens now.

    Raises:
        LabError: there are fewer.
    """
    found: list[int] = []
    for port in random.sample(_PORTS, 200):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise LabError(f"fewer than {count} of 200 ports tried on 127.0.0.1 are free")


def run_tool(
    name: str, command: Sequence[str], folder: Path, limit_seconds: float, *logs: Path
) -> None:
    """Run a tool in `folder` to its end; its output goes to the first log, and errors show the ends of all.

    Raises:
        LabError: it failed, or did not end.
    """
    process = children.spawn(command, log_path=logs[0], cwd=folder)
    try:
        status = process.wait(limit_seconds)
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{name} did not end in {limit_seconds:g} s") from error
    finally:
        children.kill(process)
    if status != 0:
        output = "".join(children.log_tail(path) for path in logs)
        raise LabError(f"{name} failed:\n{output}")
