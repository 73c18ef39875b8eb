"""The attach protocol of the JVM: ask a running JVM of this user to collect garbage, without a JDK.

The protocol is that of `sun.tools.attach.VirtualMachineImpl`: a file that asks for a listener, SIGQUIT, and
the socket that appears; then a version and four words, each ended by a zero byte.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
from contextlib import suppress
from pathlib import Path

from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.units import SECOND_NS

_LIMIT_SECONDS = 10


def collect_garbage(pid: int) -> None:
    """Have a JVM collect all its garbage, and return when it has.

    Raises:
        LabError: it does not answer; it may have ended.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_LIMIT_SECONDS)
            _connect(connection, pid)
            connection.sendall(b"1\0jcmd\0GC.run\0\0\0")
            with connection.makefile("rb") as answer:
                said = answer.read()
    except OSError as error:
        raise LabError(f"the JVM {pid} does not answer: {error}") from error
    if not said.startswith(b"0\n"):
        raise LabError(f"the JVM {pid} refuses to collect: {said[:200]!r}")


def clear() -> None:
    """Remove the sockets that this user's killed JVMs have left; one that lives makes another when asked."""
    for path in Path("/tmp").glob(".java_pid*"):  # noqa: S108  # where every JVM puts it
        pid = path.name.removeprefix(".java_pid")
        with suppress(OSError):  # it has gone
            about = path.lstat()
            is_ours = stat.S_ISSOCK(about.st_mode) and about.st_uid == os.getuid()
            if is_ours and pid.isdecimal() and not Path("/proc", pid).exists():
                path.unlink()


def remove_socket(pid: int) -> None:
    """Remove the socket of a JVM, which one that is killed would leave; it makes another when it is asked."""
    with suppress(OSError):  # it has ended
        _address(pid).unlink(missing_ok=True)


def _connect(connection: socket.socket, pid: int) -> None:
    try:
        connection.connect(str(_address(pid)))
    except (
        ConnectionRefusedError,
        FileNotFoundError,
    ):  # of a JVM that was killed, or not asked for yet
        remove_socket(pid)
        _ask_for_listener(pid)
        connection.connect(str(_address(pid)))


def _address(pid: int) -> Path:
    return Path(f"/proc/{pid}/root/tmp/.java_pid{pid}")


def _ask_for_listener(pid: int) -> None:
    """Return when the JVM has opened its socket."""
    asking = Path(f"/proc/{pid}/cwd/.attach_pid{pid}")
    asking.touch(0o600)
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + _LIMIT_SECONDS * SECOND_NS
    try:
        os.kill(pid, signal.SIGQUIT)
        while not _address(pid).exists():
            if clock.mono_ns() > deadline_ns:
                raise TimeoutError("it opened no socket")
            clock.sleep_until(clock.mono_ns() + SECOND_NS // 100)
    finally:
        asking.unlink(missing_ok=True)
