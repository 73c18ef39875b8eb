"""The attach protocol of the JVM: ask a running JVM of this user to collect garbage, without a JDK.

It is that of `sun.tools.attach.VirtualMachineImpl`: create a file that asks for a listener, send SIGQUIT, and
connect to the socket that appears; then send a version and four strings, each with a zero byte at its end.
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
    """Make a JVM collect all its garbage, and return when it has done so.

    Raises:
        LabError: the JVM does not answer, because it has ended or is not one, or it refuses.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_LIMIT_SECONDS)
            _connect(connection, pid)
            connection.sendall(b"1\0jcmd\0GC.run\0\0\0")
            with connection.makefile("rb") as file:
                answer = file.read()
    except OSError as error:
        raise LabError(f"the JVM {pid} does not answer: {error}") from error
    if not answer.startswith(b"0\n"):
        raise LabError(f"the JVM {pid} refuses to collect: {answer[:200]!r}")


def remove_sockets_of_ended_jvms() -> None:
    """Remove the sockets that killed JVMs of this user left behind."""
    for path in Path("/tmp").glob(".java_pid*"):  # noqa: S108  # where every JVM puts it
        pid = path.name.removeprefix(".java_pid")
        with suppress(OSError):  # removed meanwhile
            status = path.lstat()
            is_ours = stat.S_ISSOCK(status.st_mode) and status.st_uid == os.getuid()
            if is_ours and pid.isdecimal() and not Path("/proc", pid).exists():
                path.unlink()


def remove_socket(pid: int) -> None:
    """Remove the socket of a JVM, which would remain if it were killed; the JVM makes another on request."""
    with suppress(OSError):  # the JVM has ended
        _address(pid).unlink(missing_ok=True)


def _connect(connection: socket.socket, pid: int) -> None:
    try:
        connection.connect(str(_address(pid)))
    except (ConnectionRefusedError, FileNotFoundError):  # of a killed JVM, or not requested yet
        remove_socket(pid)
        _request_listener(pid)
        connection.connect(str(_address(pid)))


def _address(pid: int) -> Path:
    return Path(f"/proc/{pid}/root/tmp/.java_pid{pid}")


def _request_listener(pid: int) -> None:
    """Return when the JVM has opened its socket."""
    request = Path(f"/proc/{pid}/cwd/.attach_pid{pid}")
    request.touch(0o600)
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + _LIMIT_SECONDS * SECOND_NS
    try:
        os.kill(pid, signal.SIGQUIT)
        while not _address(pid).exists():
            if clock.mono_ns() > deadline_ns:
                raise TimeoutError("it opened no socket")
            clock.sleep_until(clock.mono_ns() + SECOND_NS // 100)
    finally:
        request.unlink(missing_ok=True)
