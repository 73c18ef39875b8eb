"""A relay between clients and brokers: a process that delays, loses or cuts what passes through it.

It needs no root. TCP sends a lost packet again, so a lost piece is one that is delayed by `RESEND_SECONDS`,
together with everything sent after it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.units import SECOND_NS
from soak.lab.broker_setup import is_listening
from soak.lab.files import replace_text
from soak.service import children

RESEND_SECONDS = 0.2
"""Linux's shortest time before it sends a packet again (tcp(7): TCP_RTO_MIN)."""

_START_SECONDS = 20
_STOP_SECONDS = 5.0
_APPLY_SECONDS = 5
_POLL_NS = SECOND_NS // 50


@dataclass(frozen=True, slots=True)
class Network:
    """What happens to everything that passes, in both directions."""

    delay_seconds: float = 0.0
    lost_ratio: float = 0.0  # of the pieces that pass
    is_cut: bool = False  # nothing passes, and no connection is refused
    only: int = 0  # the broker that it applies to, from 1; 0: all of them


def applied_path(network_path: Path) -> Path:
    """Return the file to which the process copies the network that it has applied."""
    return network_path.with_name("applied.json")


class Relay:
    """The relay process; `ports` maps the ports where it listens on loopback to those of the brokers."""

    def __init__(
        self, folder: Path, ports: Mapping[int, int], *, apply_seconds: int = _APPLY_SECONDS
    ) -> None:
        self._folder = folder
        self._ports = dict(ports)
        self._apply_seconds = apply_seconds
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process and return when it listens; from the main thread.

        Raises:
            LabError: it did not start.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._applied.unlink(missing_ok=True)
        self.apply(Network())
        pairs = [f"{here}:{there}" for here, there in self._ports.items()]
        command = [sys.executable, "-m", "soak.lab.relay_process"]
        command += [str(self._folder / "network.json"), *pairs]
        self._process = children.spawn(command, log_path=self._folder / "relay.log")
        if not self._await(lambda: all(map(is_listening, self._ports)), _START_SECONDS):
            reason = children.log_tail(self._folder / "relay.log")
            self.stop()
            raise LabError(f"the lab's relay did not start:\n{reason}")

    def apply(self, network: Network) -> None:
        """Return when the network is applied, or at once if the relay has ended: then nothing passes.

        Raises:
            LabError: the relay runs and did not apply it in time.
        """
        text = json.dumps(asdict(network))
        replace_text(self._folder / "network.json", text)
        is_applied = self._await(lambda: self._has_applied(text), self._apply_seconds)
        if self.is_running and not is_applied:
            raise LabError(f"the lab's relay did not apply {network}")

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Return the process id of a relay that was started."""
        if self._process is None:
            raise LabError("the lab's relay was not started")
        return self._process.pid

    @property
    def _applied(self) -> Path:
        return applied_path(self._folder / "network.json")

    def _has_applied(self, text: str) -> bool:
        return self._applied.exists() and self._applied.read_text() == text

    def _await(self, condition: Callable[[], bool], seconds: int) -> bool:
        """Return whether the condition became true while the process ran and before the time limit."""
        clock = SystemClock()
        deadline_ns = clock.mono_ns() + seconds * SECOND_NS
        while not condition():
            if not self.is_running or clock.mono_ns() > deadline_ns:
                return False
            clock.sleep_until(clock.mono_ns() + _POLL_NS)
        return True

    def stop(self) -> None:
        if self._process is not None:
            children.stop(self._process, _STOP_SECONDS)
