"""Hears from child processes what a service manager would hear: who is ready, and who hangs."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from soak.core.ports import Clock

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_LONGEST = 4096


@dataclass(slots=True)
class Watch:
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
                    _LONGEST, socket.CMSG_SPACE(_CREDENTIALS.size)
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


def limit_ns(usual_ns: int) -> int:
    """Return within which time our own manager wants to hear of us, or else the usual time."""
    asked = os.environ.get("WATCHDOG_USEC", "")
    return int(asked) * 1000 if asked.isdecimal() else usual_ns
