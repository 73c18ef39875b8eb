"""The columns line that a source's next records refer to, sent again now and then.

A file begins with one, once an hour: without this, whoever comes when the topic has lost it could read
nothing of the source until the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.store.journal_reader import lines
from soak.store.samples_topic import Line

REPEAT_NS = 60 * SECOND_NS
_MARK = b'{"t":"c"'


class RepeatedColumns:
    """Remembers the newest columns line of each source, and when one went last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begin_ns = clock.mono_ns()
        self._newest: dict[str, bytes] = {}
        self._sent_ns: dict[str, int] = {}

    def due(self, source: str, path: Path, offset: int) -> list[Line]:
        """Return the line that is to go before what a file has from `offset` on, if it is time for it."""
        sent_ns = self._sent_ns.get(source, self._begin_ns)
        if offset == 0 or self._clock.mono_ns() - sent_ns < REPEAT_NS:
            return []
        if source not in self._newest:  # an earlier process sent it
            self.note(Line(source, raw.rstrip(b"\n")) for raw in lines(path, 0, offset))
        return [Line(source, self._newest[source])] if source in self._newest else []

    def note(self, sent: Iterable[Line]) -> None:
        """Remember what went."""
        for line in sent:
            if line.raw.startswith(_MARK):
                self._newest[line.source] = line.raw
                self._sent_ns[line.source] = self._clock.mono_ns()
