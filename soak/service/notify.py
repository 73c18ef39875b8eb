"""Tells systemd that a daemon is ready and that its main loop still turns: the protocol of sd_notify(3)."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

PATIENCE_SECONDS = 10.0
"""What is said once is waited for so long: the kernel holds few datagrams, on some machines ten."""


def is_main(environment: Mapping[str, str]) -> bool:
    """True in the process that systemd started for a service: a child has the same environment."""
    return environment.get("SYSTEMD_EXEC_PID") == str(os.getpid())


class Notifier:
    """Datagrams to a socket; without an address, as outside of systemd, nothing happens."""

    def __init__(self, address: str, *, is_watched: bool) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._is_watched = is_watched

    def ready(self) -> None:
        self._send("READY=1", PATIENCE_SECONDS)

    def alive(self) -> None:
        """Answer the watchdog; call it from the main loop, several times within its limit."""
        if self._is_watched:
            self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """Say in one line what `systemctl status` is to show."""
        self._send(f"STATUS={text}")

    def more_time(self, seconds: float) -> None:
        """Ask that the start may take so long from now on, whatever `TimeoutStartSec=` is."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}", PATIENCE_SECONDS)

    def stopping(self) -> None:
        self._send("STOPPING=1", PATIENCE_SECONDS)

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
