"""The service manager: readiness and watchdog messages in both directions, log priorities, and niceness."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TextIO, cast

from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.core.wording import escaped

LOG = logging.getLogger(__name__)
SEND_TIMEOUT_SECONDS = 10.0
"""How long a message that is sent once may wait: the kernel queues few datagrams, on some machines ten."""
START_LIMIT_NS = 600 * SECOND_NS
"""How long a daemon may start, and the detector work, without a sign of progress.

A consumer may have to read days of a journal first; on a busy host Spark takes minutes to start.
"""
AUTOGROUP_PATH = Path("/proc/self/autogroup")
_AUTOGROUP_ATTEMPTS, _AUTOGROUP_PERIOD_NS = (
    20,
    SECOND_NS // 10,
)  # the kernel takes ten changes a second
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_MAX_DATAGRAM_BYTES = 4096
_PRIORITIES = {  # syslog(3)
    logging.CRITICAL: 2,
    logging.ERROR: 3,
    logging.WARNING: 4,
    logging.INFO: 6,
    logging.DEBUG: 7,
}


def is_main_process(environment: Mapping[str, str]) -> bool:
    """True in the process that systemd started for a service: its children inherit the environment."""
    return environment.get("SYSTEMD_EXEC_PID") == str(os.getpid())


class Notifier:
    """Sends messages as sd_notify(3) does; without an address, as outside of systemd, it does nothing."""

    def __init__(self, address: str, *, is_watched: bool) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._is_watched = is_watched

    def ready(self) -> None:
        self._send("READY=1", SEND_TIMEOUT_SECONDS)

    def alive(self) -> None:
        """Answer the watchdog; the main loop calls it several times within the watchdog's limit."""
        if self._is_watched:
            self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._send(f"STATUS={text}")

    def more_time(self, seconds: float) -> None:
        """Extend the time for the start to `seconds` from now on, whatever `TimeoutStartSec=` is."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}", SEND_TIMEOUT_SECONDS)

    def stopping(self) -> None:
        self._send("STOPPING=1", SEND_TIMEOUT_SECONDS)

    def _send(self, state: str, timeout_seconds: float = 0.0) -> None:
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),  # a manager that does not listen is no reason to stop
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
        ):
            sender.settimeout(timeout_seconds)
            sender.connect(self._address)
            sender.send(state.encode())


def notifier(environment: Mapping[str, str] | None = None) -> Notifier:
    """Return a notifier for the manager that started this process; without one, it does nothing."""
    if environment is None:
        environment = os.environ
    watched_pid = environment.get("WATCHDOG_PID", str(os.getpid()))
    is_watched = "WATCHDOG_USEC" in environment and watched_pid == str(os.getpid())
    return Notifier(environment.get("NOTIFY_SOCKET", ""), is_watched=is_watched)


@dataclass(slots=True)
class ChildWatchdog:
    """Receives the messages of child processes, and knows the ones that are ready or hang.

    Use it in a `with` block, start the children with `environment`, and call `receive` every second.
    """

    clock: Clock
    start_limit_ns: int  # a child hangs when it is not ready so long after it was first seen
    ready: set[int] = field(default_factory=set)
    _stopping: set[int] = field(default_factory=set)
    _heard_ns: dict[int, int] = field(default_factory=dict)
    _seen_ns: dict[int, int] = field(default_factory=dict)
    _socket: socket.socket | None = None

    def __enter__(self) -> Self:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind("")  # the kernel chooses an abstract name
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def environment(self, own: Mapping[str, str], limit_ns: int) -> dict[str, str]:
        """Return the environment of a child that sends its messages here, one at least every `limit_ns`."""
        if self._socket is None:
            raise RuntimeError("a watchdog is used in a `with` block")
        name = self._socket.getsockname()
        mine = {
            "NOTIFY_SOCKET": "@" + name[1:].decode(),
            "WATCHDOG_USEC": str(limit_ns // 1000),
        }
        return {**{key: text for key, text in own.items() if key != "WATCHDOG_PID"}, **mine}

    def receive(self) -> None:
        """Receive the messages since the last call."""
        while self._socket is not None:
            try:
                message, extra, _, _ = self._socket.recvmsg(
                    _MAX_DATAGRAM_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size)
                )
            except BlockingIOError:
                return
            for level, kind, raw in extra:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                    self._note(_CREDENTIALS.unpack(raw)[0], message.split(b"\n"))

    def hanging(self, limits_ns: Mapping[int, int]) -> list[int]:
        """Return the processes that are silent, or not ready, for too long.

        `limits_ns` has every running process, and how long it may be silent once it is ready. Processes that
        are not in it are forgotten.
        """
        known, now_ns = limits_ns.keys(), self.clock.mono_ns()
        self.ready &= known
        self._stopping &= known
        self._heard_ns = {pid: at for pid, at in self._heard_ns.items() if pid in known}
        self._seen_ns = {pid: self._seen_ns.get(pid, now_ns) for pid in known}
        watched = sorted(known - self._stopping)
        return [pid for pid in watched if self._is_late(pid, limits_ns[pid], now_ns)]

    def _is_late(self, pid: int, limit_ns: int, now_ns: int) -> bool:
        if pid in self.ready:
            return self._heard_ns[pid] < now_ns - limit_ns
        return self._seen_ns[pid] < now_ns - self.start_limit_ns

    def _note(self, pid: int, lines: list[bytes]) -> None:
        if b"READY=1" in lines:
            self.ready.add(pid)
        if b"STOPPING=1" in lines:
            self.ready.discard(pid)
            self._stopping.add(pid)  # stopping may take its time
        self._heard_ns[pid] = self.clock.mono_ns()


def watchdog_limit_ns(usual_ns: int) -> int:
    """Return the watchdog's limit for this process, or the usual one where no manager watches it."""
    limit_us = os.environ.get("WATCHDOG_USEC", "")
    return int(limit_us) * 1000 if limit_us.isdecimal() else usual_ns


class EscapedStream:
    """Standard output or error for what this program prints: no text from outside commands a terminal.

    Keys of plans, replies of servers and names on pages may hold commands of terminals, or marks that turn
    the direction of what follows. Rich, whose colours are such commands too, writes past it.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream  # the name by which Rich finds it

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(escaped(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # whatever a stream has
        return getattr(self.rich_proxied_file, name)


class LineFormatter(logging.Formatter):
    """Formats a record as one line, whatever its fields hold, and a traceback below it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the library's
        return escaped(super().formatMessage(record)).replace("\n", "\\n")


class JournalFormatter(LineFormatter):
    """Formats log lines for the journal of systemd: with a priority (sd-daemon(3)) and without a time.

    Without priorities `journalctl -p warning` would show nothing. The journal takes each line of a record as
    a message of its own, so each line has one.
    """

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return with_priority(record.levelno, super().format(record))


def with_priority(level: int, text: str) -> str:
    """Return the text with the priority of a `logging` level in front of each line."""
    least = max((known for known in _PRIORITIES if known <= level), default=logging.DEBUG)
    return "\n".join(f"<{_PRIORITIES[least]}>{line}" for line in text.split("\n"))


def is_journal_stream(environment: Mapping[str, str] | None = None, descriptor: int = 2) -> bool:
    """True where this descriptor, by default standard error, goes straight to the journal of systemd.

    A child inherits the variable of systemd.exec(5), but its standard error may be a file: compare both.
    """
    if environment is None:
        environment = os.environ
    try:
        found = os.fstat(descriptor)
    except OSError:  # it is closed
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def print_error(text: str) -> None:
    """Print to standard error why this program ends."""
    _print(logging.ERROR, text)


def print_warning(text: str) -> None:
    """Print to standard error what the user should change."""
    _print(logging.WARNING, text)


def _print(level: int, text: str) -> None:
    sys.stderr.write(f"{with_priority(level, text) if is_journal_stream() else text}\n")


def escape_output() -> None:
    """Let nothing that this process prints command a terminal; see `EscapedStream`."""
    sys.stdout = cast("TextIO", EscapedStream(sys.stdout))
    sys.stderr = cast("TextIO", EscapedStream(sys.stderr))


def set_up_logging() -> None:
    """Send the log to standard error, formatted for people or for the journal of systemd."""
    handler = logging.StreamHandler()
    if is_journal_stream():
        handler.setFormatter(JournalFormatter())
    else:
        handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)


def apply_niceness_to_group(
    clock: Clock, environment: Mapping[str, str] | None = None, group: Path = AUTOGROUP_PATH
) -> None:
    """Give the scheduling group of a service the niceness of its main process, so that `Nice=` has effect.

    The kernel groups processes by session and shares the processor between groups first (sched(7),
    autogroup). A service is a session of its own, so its niceness counts only within it until its group has
    the same. `CPUWeight=` creates groups too, but a kernel with `CONFIG_RT_GROUP_SCHED` gives those no time
    for real-time threads, and the load would lose its priority. Where another service has such a group, this
    changes nothing.
    """
    if environment is None:
        environment = os.environ
    niceness = os.getpriority(os.PRIO_PROCESS, 0)  # nice() would set it, which a service may not
    if not is_main_process(environment) or niceness <= 0:
        return
    for _ in range(_AUTOGROUP_ATTEMPTS):
        try:
            group.write_text(str(niceness))
        except BlockingIOError:
            clock.sleep_until(clock.mono_ns() + _AUTOGROUP_PERIOD_NS)
        except OSError as error:
            LOG.info("group_niceness_not_set error=%s", error.strerror)
            return
        else:
            return
    LOG.warning("group_niceness_not_set attempts=%d", _AUTOGROUP_ATTEMPTS)
