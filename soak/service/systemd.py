"""The service manager: readiness and watchdog notifications (both ends), log priorities, and the niceness of a service."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from soak.core.ports import Clock
from soak.core.units import SECOND_NS

SEND_TIMEOUT_SECONDS = 10.0
"""What is said once is waited for so long: the kernel holds few datagrams, on some machines ten."""


def is_main_process(environment: Mapping[str, str]) -> bool:
    """True in the process that systemd started for a service: a child has the same environment."""
    return environment.get("SYSTEMD_EXEC_PID") == str(os.getpid())


class Notifier:
    """Datagrams to a socket; without an address, as outside of systemd, nothing happens."""

    def __init__(self, address: str, *, is_watched: bool) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._is_watched = is_watched

    def ready(self) -> None:
        self._send("READY=1", SEND_TIMEOUT_SECONDS)

    def alive(self) -> None:
        """Answer the watchdog; call it from the main loop, several times within its limit."""
        if self._is_watched:
            self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """Say in one line what `systemctl status` is to show."""
        self._send(f"STATUS={text}")

    def more_time(self, seconds: float) -> None:
        """Ask that the start may take so long from now on, whatever `TimeoutStartSec=` is."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}", SEND_TIMEOUT_SECONDS)

    def stopping(self) -> None:
        self._send("STOPPING=1", SEND_TIMEOUT_SECONDS)

    def _send(self, state: str, patience_seconds: float = 0.0) -> None:
        """Say it, if need be once the manager has taken in what others said before."""
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),  # a manager that does not listen is no reason to stop
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
        ):
            sender.settimeout(patience_seconds)
            sender.connect(self._address)
            sender.send(state.encode())


def notifier(environment: Mapping[str, str] | None = None) -> Notifier:
    """Return what speaks to the manager that started this process, if one did and wants to hear of it."""
    if environment is None:
        environment = os.environ
    watched_pid = environment.get("WATCHDOG_PID", str(os.getpid()))
    is_watched = "WATCHDOG_USEC" in environment and watched_pid == str(os.getpid())
    return Notifier(environment.get("NOTIFY_SOCKET", ""), is_watched=is_watched)


# --- Hears from child processes what a service manager would hear: who is ready, and who hangs.

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_MAX_DATAGRAM_BYTES = 4096


START_LIMIT_NS = 600 * SECOND_NS
"""How long a daemon may take to be ready: a consumer may have to read days of a journal first."""


@dataclass(slots=True)
class ChildWatchdog:
    """Use it in a `with` block; the children get `environment`, and `take` is to be called each second."""

    clock: Clock
    start_limit_ns: int  # a child that is not ready so long after it was first seen hangs
    ready: set[int] = field(default_factory=set)
    _ending: set[int] = field(default_factory=set)
    _heard_ns: dict[int, int] = field(default_factory=dict)
    _seen_ns: dict[int, int] = field(default_factory=dict)
    _socket: socket.socket | None = None

    def __enter__(self) -> Self:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind("")  # the kernel finds an abstract name
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def environment(self, own: Mapping[str, str], limit_ns: int) -> dict[str, str]:
        """Return the variables for a child: it is to speak to us, and answer within this limit."""
        if self._socket is None:
            raise RuntimeError("a watch is used in a `with` block")
        name = self._socket.getsockname()
        mine = {
            "NOTIFY_SOCKET": "@" + name[1:].decode(),
            "WATCHDOG_USEC": str(limit_ns // 1000),
        }
        return {**{key: text for key, text in own.items() if key != "WATCHDOG_PID"}, **mine}

    def take(self) -> None:
        """Take in what was said since the last call."""
        while self._socket is not None:
            try:
                said, extra, _, _ = self._socket.recvmsg(
                    _MAX_DATAGRAM_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size)
                )
            except BlockingIOError:
                return
            for level, kind, raw in extra:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                    self._note(_CREDENTIALS.unpack(raw)[0], said.split(b"\n"))

    def hanging(self, limits_ns: Mapping[int, int]) -> list[int]:
        """Return those that are silent, or not ready, for too long; forgets all that are gone.

        `limits_ns` has each process that is there, and for how long it may be silent once it was ready.
        """
        known, now_ns = limits_ns.keys(), self.clock.mono_ns()
        self.ready &= known
        self._ending &= known
        self._heard_ns = {pid: at for pid, at in self._heard_ns.items() if pid in known}
        self._seen_ns = {pid: self._seen_ns.get(pid, now_ns) for pid in known}
        watched = sorted(known - self._ending)
        return [pid for pid in watched if self._is_late(pid, limits_ns[pid], now_ns)]

    def _is_late(self, pid: int, limit_ns: int, now_ns: int) -> bool:
        if pid in self.ready:
            return self._heard_ns[pid] < now_ns - limit_ns
        return self._seen_ns[pid] < now_ns - self.start_limit_ns

    def _note(self, pid: int, said: list[bytes]) -> None:
        if b"READY=1" in said:
            self.ready.add(pid)
        if b"STOPPING=1" in said:
            self.ready.discard(pid)
            self._ending.add(pid)  # what it still has to do may take its time
        self._heard_ns[pid] = self.clock.mono_ns()


def watchdog_limit_ns(usual_ns: int) -> int:
    """Return within which time our own manager wants to hear of us, or else the usual time."""
    asked = os.environ.get("WATCHDOG_USEC", "")
    return int(asked) * 1000 if asked.isdecimal() else usual_ns


# --- Log lines as systemd's journal takes them from a stream: the priority in front, sd-daemon(3), and
# no stamp.
# Without it all that a daemon says is of one priority, and `journalctl -p warning` shows nothing.

_PRIORITIES = {  # syslog(3)
    logging.CRITICAL: 2,
    logging.ERROR: 3,
    logging.WARNING: 4,
    logging.INFO: 6,
    logging.DEBUG: 7,
}


class JournalFormatter(logging.Formatter):
    """Each line of a record has its priority: the journal takes each for a message of its own."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return with_priority(record.levelno, super().format(record))


def with_priority(level: int, text: str) -> str:
    """Return the text with the priority of this level of `logging` in front of each line."""
    least = max((known for known in _PRIORITIES if known <= level), default=logging.DEBUG)
    return "\n".join(f"<{_PRIORITIES[least]}>{line}" for line in text.split("\n"))


def is_journal_stream(environment: Mapping[str, str] | None = None, descriptor: int = 2) -> bool:
    """True where what this process writes there, by default its errors, goes straight to the journal.

    Systemd tells the stream's device and inode (systemd.exec(5)): a child's may be a file by now.
    """
    if environment is None:
        environment = os.environ
    try:
        found = os.fstat(descriptor)
    except OSError:  # it is closed
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def print_error(text: str) -> None:
    """Say on standard error why this program ends."""
    sys.stderr.write(f"{with_priority(logging.ERROR, text) if is_journal_stream() else text}\n")


def set_up_logging() -> None:
    """Have the log go to standard error, as a person or as the journal reads it."""
    handler = logging.StreamHandler()
    if is_journal_stream():
        handler.setFormatter(JournalFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)


# --- Has the `Nice=` of a service count beside other services.
# The kernel groups processes by session and shares the processor between groups first (sched(7),
# autogroup). A
# service is a session of its own, so its niceness counts within it alone until its group is given the same.
# `CPUWeight=` would do that too, but makes groups in which a kernel that has `CONFIG_RT_GROUP_SCHED`
# leaves no
# time for real-time threads: the load would lose its priority. Where another service has such a group, this
# changes nothing.

LOG = logging.getLogger("soak.service.systemd")
AUTOGROUP_PATH = Path("/proc/self/autogroup")
_TRIES, _APART_NS = 20, SECOND_NS // 10  # the kernel takes one such word in a tenth of a second


def apply_niceness_to_group(
    clock: Clock, environment: Mapping[str, str] | None = None, group: Path = AUTOGROUP_PATH
) -> None:
    """Give the group of a service's main process its own niceness, where the kernel has such groups."""
    if environment is None:
        environment = os.environ
    niceness = os.getpriority(os.PRIO_PROCESS, 0)  # nice() would set it, which a service may not
    if not is_main_process(environment) or niceness <= 0:
        return
    for _ in range(_TRIES):
        try:
            group.write_text(str(niceness))
        except BlockingIOError:
            clock.sleep_until(clock.mono_ns() + _APART_NS)
        except OSError as error:
            LOG.info("niceness_of_group_left error=%s", error.strerror)
            return
        else:
            return
    LOG.warning("niceness_of_group_left tries=%d", _TRIES)
