"""A network of the lab's own: a process before the brokers that delays, holds up or cuts what passes.

Needs no root. A lost packet is one that TCP sends again, so what is seen of it is a wait of `RESEND_SECONDS`,
and all that was sent after it waits too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.units import SECOND_NS
from soak.lab.brokers._surroundings import listens
from soak.service import children

RESEND_SECONDS = 0.2
"""Linux's least time before it sends a packet again (tcp(7): TCP_RTO_MIN)."""

_START_SECONDS = 20
_STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Network:
    """What happens to what passes, in both directions."""

    delay_seconds: float = 0.0
    lost_ratio: float = 0.0  # of the pieces that pass
    is_cut: bool = False  # nothing passes, and nothing is refused
    only: int = 0  # on the way to this broker alone, by its place from 1; 0: to all of them


class Relay:
    """The process at work; `ports` are where it listens on loopback and where each leads."""

    def __init__(self, folder: Path, ports: Mapping[int, int]) -> None:
        self._folder = folder
        self._ports = dict(ports)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return when it listens; from the main thread.

        Raises:
            LabError: it did not come up.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self.tell(Network())
        pairs = [f"{here}:{there}" for here, there in self._ports.items()]
        module = "soak.lab.relay_process"
        command = [sys.executable, "-m", module, str(self._folder / "network.json"), *pairs]
        self._process = children.spawn(command, log_path=self._folder / "relay.log")
        clock = SystemClock()
        deadline_ns = clock.mono_ns() + _START_SECONDS * SECOND_NS
        while not all(map(listens, self._ports)):
            if self._process.poll() is not None or clock.mono_ns() > deadline_ns:
                said = children.log_tail(self._folder / "relay.log")
                self.stop()
                raise LabError(f"the lab's relay did not start:\n{said}")
            clock.sleep_until(clock.mono_ns() + SECOND_NS // 50)

    def tell(self, network: Network) -> None:
        """Let the network be so from now on, within 20 ms."""
        path = self._folder / "network.json"
        draft = path.with_suffix(".part")
        draft.write_text(json.dumps(asdict(network)))
        draft.replace(path)

    def stop(self) -> None:
        if self._process is not None:
            children.stop(self._process, _STOP_SECONDS)
