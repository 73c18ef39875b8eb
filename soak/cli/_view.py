"""The live view of a run: a refreshed panel on a terminal, plain lines everywhere else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from soak.cli import _text
from soak.cli._snapshot import Snapshot
from soak.core import wording

LINE_EVERY_SECONDS = 10
NOTES = 6  # newest lines kept below the panel
NARROW = 60


class View(Protocol):
    def show(self, snapshot: Snapshot) -> None: ...
    def note(self, line: str) -> None: ...
    def close(self) -> None: ...


def open_view(console: Console, title: str) -> View:
    """Return the panel where the console is a terminal that can redraw, plain lines elsewhere."""
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveView(console, title).start()
    return PlainView(console, title)


class PlainView:
    """One line every ten seconds and whenever something happens; good in a log."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._last_k: int | None = None
        self._last_phase = ""
        self._states: dict[str, str] = {}

    def show(self, snapshot: Snapshot) -> None:
        for found in snapshot.findings:
            line = wording.finding(found, snapshot.start_wall_ns)
            if self._states.get(found.key) != line:
                self._states[found.key] = line
                self.note(line)
        is_due = self._last_k is None or snapshot.k - self._last_k >= LINE_EVERY_SECONDS
        if is_due or snapshot.phase != self._last_phase:
            self._last_k, self._last_phase = snapshot.k, snapshot.phase
            self._print(
                f"{_text.span(snapshot.k)}/{_text.span(snapshot.total_seconds)} {snapshot.phase}: "
                f"sent {_text.count(snapshot.sent)}/s, received {_text.count(snapshot.received)}/s, "
                f"publish p99 {_text.latency(snapshot.publish.p99)}, "
                f"end to end p50 {_text.latency(snapshot.end_to_end.p50)} "
                f"p99 {_text.latency(snapshot.end_to_end.p99)}"
            )

    def note(self, line: str) -> None:
        self._print(line)

    def close(self) -> None:
        pass

    def _print(self, line: str) -> None:
        stamp = datetime.now(UTC).strftime("%H:%M:%SZ")
        self._console.print(f"{stamp} {line}", markup=False, highlight=False, soft_wrap=True)


class LiveView:
    """The panel: phase, progress, rates, latencies with sparklines, findings as they come."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._notes: list[str] = []
        self._snapshot: Snapshot | None = None
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def start(self) -> Self:
        self._live.start()
        return self

    def show(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._refresh()

    def note(self, line: str) -> None:
        if "\n" in line:  # a mail: above the panel, where it stays
            self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)
            return
        stamp = datetime.now(UTC).strftime("%H:%M:%SZ")
        self._notes = [*self._notes, f"{stamp} {line}"][-NOTES:]
        self._refresh()

    def close(self) -> None:
        self._live.stop()

    def _refresh(self) -> None:
        self._live.update(self._body(self._console.width), refresh=True)

    def _body(self, width: int) -> Group:
        parts: list[Text | Table] = [Text(self._title, style="bold")]
        if self._snapshot is not None:
            parts += panel(self._snapshot, width)
        parts += [Text(line, overflow="fold") for line in self._notes]
        return Group(*parts)


def panel(snapshot: Snapshot, width: int) -> list[Text | Table]:
    """Return the parts of the panel for a terminal of this width."""
    clock = f"{_text.span(snapshot.k)} of {_text.span(snapshot.total_seconds)}"
    done = max(0, min(snapshot.k, snapshot.total_seconds))
    parts: list[Text | Table] = [
        Text(f"{snapshot.phase}  {clock}"),
        Text(bar(done / max(1, snapshot.total_seconds), width)),
        Text(
            f"sent {_text.count(snapshot.sent)}/s  received {_text.count(snapshot.received)}/s  "
            f"lag {_text.count(snapshot.lag)}"
        ),
    ]
    if snapshot.untrusted:
        parts.append(Text(f"this client was the bottleneck: {snapshot.untrusted}", style="yellow"))
    table = Table(box=None, pad_edge=False, show_edge=False)
    for heading in ("", "p50", "p99") if width < NARROW else ("", "p50", "p99", "p99.9"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, value in (("publish", snapshot.publish), ("end to end", snapshot.end_to_end)):
        cells = [_text.latency(value.p50), _text.latency(value.p99), _text.latency(value.p999)]
        table.add_row(name, *cells[: len(table.columns) - 1])
    parts.append(table)
    room = min(width - 5, 120)
    parts.append(Text(f"p50  {wording.sparkline(snapshot.p50_history, room)}"))
    parts.append(Text(f"p99  {wording.sparkline(snapshot.p99_history, room)}"))
    for found in snapshot.findings:
        style = "bold red" if found.state == "confirmed" and found.is_about_cluster else ""
        line = wording.finding(found, snapshot.start_wall_ns)
        parts.append(Text(line, style=style, overflow="fold"))
    return parts


def bar(share: float, width: int) -> str:
    """Return a progress bar that needs no colour to be read."""
    room = max(4, min(width, 80) - 5)
    full = round(room * min(max(share, 0.0), 1.0))
    return f"{'━' * full}{'·' * (room - full)} {min(max(share, 0.0), 1.0):4.0%}"
