"""One probe on a thread of its own: what hangs in it holds up nobody else."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from queue import SimpleQueue

from soak.core.model import Reading
from soak.core.ports import Clock, Probe

TURN_SECONDS = 0.002
"""A probe waits so long for the others: at once, they would hand the interpreter to and fro at each file
that they open. One that hangs costs the rest no more than this."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one reading came to; times are on the monotonic clock."""

    name: str
    begin_ns: int
    end_ns: int
    result: Reading | Exception


class Reader:
    """Reads when asked and puts the answer into a queue that all readers share, as they do `turn`."""

    def __init__(
        self,
        name: str,
        probe: Probe,
        answers: SimpleQueue[Answer],
        turn: threading.Lock,
        clock: Clock,
    ) -> None:
        self._name = name
        self._probe = probe
        self._answers = answers
        self._turn = turn
        self._clock = clock
        self._asked: SimpleQueue[bool] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"probe-{name}", daemon=True)

    def ask(self) -> None:
        """Have the probe read once; not again before its answer has come."""
        if self._thread.ident is None:
            self._thread.start()
        self._asked.put(True)

    def close(self) -> None:
        """Have the probe closed, by the thread that read it; returns at once."""
        if self._thread.ident is None:
            self._probe.close()
        else:
            self._asked.put(False)

    def wait(self, timeout_seconds: float) -> None:
        """Wait until it is closed; a thread that hangs is left behind."""
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)

    def _work(self) -> None:
        while self._asked.get():
            has_turn = self._turn.acquire(timeout=TURN_SECONDS)
            begin_ns = self._clock.mono_ns()
            result = self._read()
            answer = Answer(self._name, begin_ns, self._clock.mono_ns(), result)
            if has_turn:
                self._turn.release()
            self._answers.put(answer)
        self._probe.close()

    def _read(self) -> Reading | Exception:
        try:
            return self._probe.read()
        except Exception as error:  # noqa: BLE001  # judged, or raised again, by who takes the answer
            return error
