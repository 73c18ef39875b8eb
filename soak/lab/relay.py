"""A network of the lab's own: a process before the brokers that delays, holds up or cuts what passes.

Needs no root. A lost packet is one that TCP sends again, so what is seen of it is a wait of `RESEND_SECONDS`,
and all that was sent after it waits too.
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
from soak.lab.broker_setup import listens
from soak.lab.files import replace_text
from soak.service import children

RESEND_SECONDS = 0.2
"""Linux's least time before it sends a packet again (tcp(7): TCP_RTO_MIN)."""

_START_SECONDS = 20
_STOP_SECONDS = 5.0
_HEED_SECONDS = 5
_LOOK_NS = SECOND_NS // 50


@dataclass(frozen=True, slots=True)
class Network:
    """What happens to what passes, in both directions."""

    delay_seconds: float = 0.0
    lost_ratio: float = 0.0  # of the pieces that pass
    is_cut: bool = False  # nothing passes, and nothing is refused
    only: int = 0  # on the way to this broker alone, by its place from 1; 0: to all of them


def heeded_path(network_path: Path) -> Path:
    """Return where the process says what it has heeded, in the words of what it was told."""
    return network_path.with_name("heeded.json")


class Relay:
    """The process at work; `ports` are where it listens on loopback and where each leads."""

    def __init__(
        self, folder: Path, ports: Mapping[int, int], *, heed_seconds: int = _HEED_SECONDS
    ) -> None:
        self._folder = folder
        self._ports = dict(ports)
        self._heed_seconds = heed_seconds
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return when it listens; from the main thread.

        Raises:
            LabError: it did not come up.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._heeded.unlink(missing_ok=True)
        self.apply(Network())
        pairs = [f"{here}:{there}" for here, there in self._ports.items()]
        module = "soak.lab.relay_process"
        command = [sys.executable, "-m", module, str(self._folder / "network.json"), *pairs]
        self._process = children.spawn(command, log_path=self._folder / "relay.log")
        if not self._comes(lambda: all(map(listens, self._ports)), _START_SECONDS):
            said = children.log_tail(self._folder / "relay.log")
            self.stop()
            raise LabError(f"the lab's relay did not start:\n{said}")

    def apply(self, network: Network) -> None:
        """Return when the network is so, or at once when the relay has ended: then nothing passes.

        Raises:
            LabError: the relay is at work and did not heed it.
        """
        text = json.dumps(asdict(network))
        replace_text(self._folder / "network.json", text)
        is_heeded = self._comes(lambda: self._says(text), self._heed_seconds)
        if self.is_running and not is_heeded:
            raise LabError(f"the lab's relay did not heed {network}")

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def _heeded(self) -> Path:
        return heeded_path(self._folder / "network.json")

    def _says(self, text: str) -> bool:
        return self._heeded.exists() and self._heeded.read_text() == text

    def _comes(self, has_come: Callable[[], bool], seconds: int) -> bool:
        """Return whether it came while the process lived and the time lasted."""
        clock = SystemClock()
        deadline_ns = clock.mono_ns() + seconds * SECOND_NS
        while not has_come():
            if not self.is_running or clock.mono_ns() > deadline_ns:
                return False
            clock.sleep_until(clock.mono_ns() + _LOOK_NS)
        return True

    def stop(self) -> None:
        if self._process is not None:
            children.stop(self._process, _STOP_SECONDS)
