"""The live view of a run on a terminal: a panel that is redrawn, and plain lines where there is none.

Everything that a run, a cluster or a log has named passes `shown`: no name can move the cursor, turn the
direction of the text or fill the screen. Colours only repeat what the words say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import accumulate, groupby
from threading import Event
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from soak.app.live.follow import Bin, Latency
from soak.app.live.run import LiveRun
from soak.app.live.snapshot import PhaseSpan, Snapshot, Subscription, clock_text
from soak.core import wording
from soak.core.model import Finding
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.store.run_folder import RunFolder, read_plan, read_run

LINE_EVERY_SECONDS = 10
MAX_NAME = 80
MAX_LINE = 240
_NOTES = 8  # newest lines that stay below the panel
_QUANTILES = (("p50", "p99", "p99.9"), ("p50", "p99"), ("p99",))
"""What a table has room for."""
_CELL, _GAP = 9, 2  # columns of a latency with the gap before it, and of a gap
_HEIGHT = 24  # lines, where the terminal does not say
_HEAT_HEIGHT = 20  # a lower terminal has no room for the heat strip
_MAX_SUBSCRIPTIONS = 4
_SPARKLINE = 60  # columns at most
# of `BAND_EDGES`
BANDS = ("< 1 ms", "1-10 ms", "10-100 ms", "0.1-1 s", "1-10 s", "> 10 s")
_BAND_STYLES = ("green", "green", "yellow", "red", "bold red", "bold red")
_SHADES = ((0.5, "█"), (0.1, "▓"), (0.01, "▒"), (0.0, "░"))
_NO_ANSWER = "no answer"
_LABEL = max(map(len, (*BANDS, _NO_ANSWER))) + 1

Part = Text | Table


class View(Protocol):
    """Where a run is shown."""

    def show(self, snapshot: Snapshot) -> None: ...
    def note(self, line: str) -> None: ...
    def close(self) -> None: ...


def open_view(console: Console, title: str) -> View:
    """Return a panel if the console is a terminal that can redraw, otherwise plain lines."""
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveView(console, title).start()
    return PlainView(console, title)


# --- Words.


def shown(text: str, width: int = MAX_LINE) -> str:
    """Return a text from outside as one harmless line of at most `width` characters."""
    # Cut first: a name of many megabytes is not searched through.
    return wording.shortened(wording.printable(wording.shortened(text, 4 * width)), width)


def shown_lines(text: str) -> str:
    """Return a text of several lines, each of them harmless."""
    return "\n".join(wording.printable(line) for line in text.splitlines())


def latency_text(seconds: float) -> str:
    """Return a latency for display, `-` where it was not measured."""
    return wording.amount(seconds, "seconds")


def count_text(value: float) -> str:
    """Return a number of messages for display, `-` where it was not counted."""
    return wording.amount(value, "")


def time_text(snapshot: Snapshot) -> str:
    """Return where a run is: `soak 2:10 of 3:45, 1:22 of this phase left`."""
    if not snapshot.has_begun:
        return "the run never began" if snapshot.is_over else "the run is being prepared"
    clock = f"{clock_text(snapshot.k)} of {clock_text(snapshot.total_seconds)}"
    phase = f"{shown(snapshot.phase, MAX_NAME)} {clock}"
    if snapshot.has_stopped:
        return phase
    if snapshot.now_k < 0:
        return f"{phase}, the load begins in {clock_text(-snapshot.now_k)}"
    current = next((one for one in snapshot.phases if one.from_k <= snapshot.k < one.to_k), None)
    late = snapshot.now_k - snapshot.total_seconds
    if current is None or late > 0:
        return f"{phase}, recording ended {clock_text(late)} ago" if late > 0 else phase
    most = "at most " if current.name == "drain" else ""
    return f"{phase}, {most}{clock_text(current.to_k - snapshot.k)} of this phase left"


def phases_text(snapshot: Snapshot) -> str:
    """Return all phases with their lengths; the present one in brackets: `warm-up 0:45 > [soak 2:50]`."""
    return " > ".join(_phase_text(one, snapshot) for one in snapshot.phases)


def _phase_text(span: PhaseSpan, snapshot: Snapshot) -> str:
    text = f"{shown(span.name, MAX_NAME)} {clock_text(span.to_k - span.from_k)}"
    is_now = span.from_k <= snapshot.k < span.to_k and not snapshot.is_over
    return f"[{text}]" if is_now else text


def rates_text(snapshot: Snapshot) -> str:
    """Return what is sent and acknowledged a second, and received where there is one subscription."""
    parts = [
        f"sent {count_text(snapshot.sent)}/s",
        f"acknowledged {count_text(snapshot.acknowledged)}/s",
    ]
    if snapshot.failed > 0:
        parts.append(f"failed {count_text(snapshot.failed)}/s")
    if len(snapshot.subscriptions) == 1:
        parts.append(_received_text(snapshot.subscriptions[0]))
    return ", ".join(parts)


def _received_text(one: Subscription) -> str:
    return f"received {count_text(one.received)}/s, lag {count_text(one.lag)}"


def totals_text(snapshot: Snapshot) -> str:
    """Return the messages of the whole run, as far as it was read."""
    totals = snapshot.totals
    parts = [
        f"sent {count_text(totals.sent)}",
        f"acknowledged {count_text(totals.acknowledged)}",
        f"failed {count_text(totals.failed)}",
    ]
    for one in snapshot.subscriptions[:_MAX_SUBSCRIPTIONS]:
        of = f" by subscription {one.index}" if len(snapshot.subscriptions) > 1 else ""
        parts.append(f"received{of} {count_text(one.total)}")
    read = "" if snapshot.read_ratio >= 1 else f" (read so far: {100 * snapshot.read_ratio:.0f}%)"
    return f"in all: {', '.join(parts)} messages{read}"


def incident_lines(snapshot: Snapshot, most: int) -> list[tuple[str, bool]]:
    """Return lines about so many incidents, open ones first, each with whether it is a bad one."""
    unread = [(_unread_text(snapshot), True)] if snapshot.unread else []
    hidden = [(line, False) for line in _hidden_line(snapshot, most)]
    return [*unread, *_finding_lines(snapshot, most), *hidden]


def _unread_text(snapshot: Snapshot) -> str:
    return shown(f"the incidents cannot be read: {snapshot.unread}")


def _finding_lines(snapshot: Snapshot, most: int) -> list[tuple[str, bool]]:
    newest_first = sorted(snapshot.findings, key=lambda one: (one.state == "gone", -one.onset_k))
    return [
        (shown(wording.finding_text(one, snapshot.start_wall_ns)), _is_bad(one))
        for one in newest_first[:most]
    ]


def _hidden_line(snapshot: Snapshot, most: int) -> list[str]:
    hidden = len(snapshot.findings) - most
    return [f"and {wording.counted(hidden, 'more incident')}"] if hidden > 0 else []


def _is_bad(found: Finding) -> bool:
    return found.state == "confirmed" and found.is_about_cluster


def report_text(snapshot: Snapshot) -> str:
    """Return what the report of a run says first; "" where there is none."""
    report = snapshot.report
    return "" if report is None else shown(report.headline or f"verdict {report.verdict}")


# --- Watching from another terminal.


def watch(folder: RunFolder, console: Console, clock: Clock, stop: Event, *, is_once: bool) -> None:
    """Show a run until it ends or `stop` is set; one that is over, or with `is_once` any, a single time.

    Raises:
        SoakError: this is no run folder, or a file in it is damaged.
    """
    run = read_run(folder)
    live = LiveRun(folder, run, read_plan(folder), clock)
    if is_once or live.look().is_over:
        _print_once(live.look_at_all(), console)
        return
    view = open_view(console, f"soak {run.name}  {folder.path}")
    try:
        while not stop.is_set():
            found = live.look()
            if found.is_over:
                view.show(live.look_at_all())
                break
            view.show(found)
            stop.wait((SECOND_NS - clock.mono_ns() % SECOND_NS) / SECOND_NS)
    finally:
        view.close()


def _print_once(found: Snapshot, console: Console) -> None:
    """Print a run at one moment: the panel on a terminal, lines that stand alone elsewhere."""
    title = shown(f"soak {found.name}  {found.run_id}")
    if console.is_terminal:
        most = _HEIGHT + len(found.findings)
        console.print(Group(Text(title, style="bold"), *panel(found, console.width, most)))
        return
    incidents = [line for line, _ in incident_lines(found, len(found.findings))]
    report = filter(None, [report_text(found)])
    for line in (title, plain_line(found), *report, *incidents):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


# --- Plain lines.


class PlainView:
    """Prints a line every ten seconds and at each event, for a log.

    Of an incident there is one line when it begins, when its cause changes, and when it is resolved.
    """

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._last_k: int | None = None
        self._last_phase = ""
        self._has_trouble = False
        self._last_unread = ""
        self._reported: dict[str, tuple[str, str, bool]] = {}

    def show(self, snapshot: Snapshot) -> None:
        for one in snapshot.findings:
            # Not the whole text: an outage and a missed objective have counts that grow while they last.
            news = (one.state, one.cause, one.is_about_cluster)
            if self._reported.get(one.key) != news:
                self._reported[one.key] = news
                self.note(shown(wording.finding_text(one, snapshot.start_wall_ns)))
        if snapshot.unread and snapshot.unread != self._last_unread:
            self._last_unread = snapshot.unread
            self.note(_unread_text(snapshot))
        is_due = self._last_k is None or snapshot.now_k - self._last_k >= LINE_EVERY_SECONDS
        is_news = snapshot.phase != self._last_phase or bool(snapshot.troubles) != self._has_trouble
        if is_due or is_news:
            self._last_k, self._last_phase = snapshot.now_k, snapshot.phase
            self._has_trouble = bool(snapshot.troubles)
            self._print(plain_line(snapshot))

    def note(self, line: str) -> None:
        self._print(shown_lines(line))

    def close(self) -> None:
        pass

    def _print(self, line: str) -> None:
        stamp = datetime.now(UTC).strftime("%H:%M:%SZ")
        self._console.print(f"{stamp} {line}", markup=False, highlight=False, soft_wrap=True)


def plain_line(snapshot: Snapshot) -> str:
    """Return a run at one moment in a line, in an outage with how long it has lasted."""
    clock = f"{clock_text(snapshot.k)}/{clock_text(snapshot.total_seconds)}"
    start = f"{clock} {shown(snapshot.phase, MAX_NAME)}: "
    troubles = "".join(f"; {shown(one)}" for one in snapshot.troubles)
    if snapshot.has_stopped:
        return start + totals_text(snapshot) + troubles
    parts = [
        f"sent {count_text(snapshot.sent)}/s",
        f"acknowledged {count_text(snapshot.acknowledged)}/s",
        *([f"failed {count_text(snapshot.failed)}/s"] if snapshot.failed > 0 else []),
    ]
    for one in snapshot.subscriptions:
        of = f" by subscription {one.index}" if len(snapshot.subscriptions) > 1 else ""
        parts.append(f"received{of} {count_text(one.received)}/s")
    parts.append(f"publish p99 {latency_text(snapshot.publish.p99)}")
    for one in snapshot.subscriptions:
        of = f" of subscription {one.index}" if len(snapshot.subscriptions) > 1 else ""
        latency = f"p50 {latency_text(one.latency.p50)} p99 {latency_text(one.latency.p99)}"
        parts.append(f"end to end{of} {latency}")
    late = f"; {snapshot.detection}" if snapshot.detection else ""
    return start + ", ".join(parts) + troubles + late


# --- The panel.


class LiveView:
    """Shows a panel: phase, rates, latencies with sparklines, heat strip, incidents."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = shown(title)
        self._notes: list[str] = []
        self._snapshot: Snapshot | None = None
        # Redirected, standard output would be a proxy of Rich's around our own, and Rich looks through only
        # one: its own control sequences would be escaped like those of names.
        self._live = Live(
            console=console, auto_refresh=False, transient=False, redirect_stdout=False
        )

    def start(self) -> Self:
        self._live.start()
        return self

    def show(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._refresh()

    def note(self, line: str) -> None:
        if "\n" in line:  # a mail: printed above the panel, where it stays
            self._live.console.print(
                shown_lines(line), markup=False, highlight=False, soft_wrap=True
            )
            return
        stamp = datetime.now(UTC).strftime("%H:%M:%SZ")
        self._notes = [*self._notes, f"{stamp} {shown(line)}"][-_NOTES:]
        self._refresh()

    def close(self) -> None:
        self._live.stop()

    def _refresh(self) -> None:
        size = self._console.size
        self._live.update(self._body(size.width, size.height), refresh=True)

    def _body(self, width: int, height: int) -> Group:
        parts: list[Part] = [Text(self._title, style="bold", overflow="ellipsis", no_wrap=True)]
        if self._snapshot is not None:
            parts += panel(self._snapshot, width, height - 1 - len(self._notes))
        parts += [Text(line, overflow="ellipsis", no_wrap=True) for line in self._notes]
        return Group(*parts)


def panel(snapshot: Snapshot, width: int, height: int = _HEIGHT) -> list[Part]:
    """Return the parts of the panel for a terminal of this size; what says least is left out first."""
    parts: list[Part] = [_line(time_text(snapshot), "bold")]
    parts += [_line(text, "bold red") for text in map(shown, snapshot.troubles)]
    share = snapshot.k / max(1, snapshot.total_seconds)
    parts += [Text(bar(share, width)), _line(phases_text(snapshot))]
    if snapshot.has_stopped:
        parts += [_line(totals_text(snapshot))]
        if snapshot.report is not None:
            parts.append(Text(report_text(snapshot), style="bold", overflow="fold"))
    else:
        parts += list(_rates(snapshot))
    if snapshot.retention:
        parts.append(_line(f"retention: {snapshot.retention}"))
    if snapshot.invalid and not snapshot.is_over:
        why = shown(snapshot.invalid, MAX_NAME)
        parts.append(_line(f"the client was the bottleneck: {why}", "yellow"))
    if snapshot.detection:
        parts.append(_line(snapshot.detection, "yellow"))
    table = latency_table(snapshot, width)
    parts.append(table)
    used = len(parts) + table.row_count
    if height >= _HEAT_HEIGHT:
        heat = heat_lines(snapshot, width)
        parts += heat
        used += len(heat)
    return [*parts, *_incidents(snapshot, width, height - used - 1)]


def _incidents(snapshot: Snapshot, width: int, room: int) -> Iterator[Text]:
    """Give the incidents that fit into so many lines, at least one of them."""
    lines = _finding_lines(snapshot, max(1, room))  # each of them takes at least one
    ends = list(accumulate(_height(line, width) for line, _ in lines))
    fits = (
        most
        for most in range(len(lines), 1, -1)
        if ends[most - 1] + sum(_height(line, width) for line in _hidden_line(snapshot, most))
        <= room
    )
    for line, is_bad in incident_lines(snapshot, next(fits, 1)):
        yield Text(line, style="bold red" if is_bad else "", overflow="fold")


def _height(line: str, width: int) -> int:
    return -(-len(line) // width)


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, overflow="ellipsis", no_wrap=True)


def _rates(snapshot: Snapshot) -> Iterator[Text]:
    yield _line(rates_text(snapshot))
    if len(snapshot.subscriptions) > 1:
        # The ones that lag most are seen first; the others are counted.
        slowest = sorted(snapshot.subscriptions, key=lambda one: -_number(one.lag))
        for one in sorted(slowest[:_MAX_SUBSCRIPTIONS], key=lambda one: one.index):
            yield _line(f"subscription {one.index}: {_received_text(one)}")
        hidden = len(slowest) - _MAX_SUBSCRIPTIONS
        if hidden > 0:
            yield _line(f"and {wording.counted(hidden, 'more subscription')} with less lag")


def _number(value: float) -> float:
    return value if value == value else -1.0  # noqa: PLR0124  # NaN


def latency_table(snapshot: Snapshot, width: int) -> Table:
    """Return the latencies of the newest second with sparklines; of a run that is over, of its report."""
    rows = list(latency_rows(snapshot, "end to end {}", _MAX_SUBSCRIPTIONS))
    room = width - max(len(name) for name, _, _ in rows)
    # The last one is dropped first, but p99 stays.
    quantiles = next((names for names in _QUANTILES if len(names) * _CELL <= room), _QUANTILES[-1])
    history = f"p99 of the last {clock_text(len(snapshot.publish_history))}"
    room = min(room - len(quantiles) * _CELL - _GAP, _SPARKLINE)
    table = Table(box=None, pad_edge=False, show_edge=False)
    for heading in ("", *quantiles):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    if room >= len(history):
        table.add_column(history, no_wrap=True)
    columns = len(table.columns)
    for name, latency, values in rows:
        by_name = {"p50": latency.p50, "p99": latency.p99, "p99.9": latency.p999}
        cells = [latency_text(by_name[one]) for one in quantiles]
        table.add_row(*[name, *cells, wording.sparkline(values, room)][:columns])
    return table


def latency_rows(
    snapshot: Snapshot, of_one: str, most: int
) -> Iterator[tuple[str, Latency, Sequence[float]]]:
    """Give name, latency and history of its p99; `of_one` names that of one of several subscriptions."""
    report = snapshot.report if snapshot.is_over else None
    publish = snapshot.publish if report is None else report.publish
    yield "publish", publish, snapshot.publish_history
    several = snapshot.subscriptions
    if report is not None and len(several) > 1:  # the report has one for all of them
        yield "end to end, all", report.end_to_end, ()
        return
    for one in several[:most]:
        name = of_one.format(one.index) if len(several) > 1 else "end to end"
        yield name, one.latency if report is None else report.end_to_end, one.p99_history


def heat_lines(snapshot: Snapshot, width: int) -> list[Part]:
    """Return the publish latencies of the whole run: a row a band, a column some seconds, dark for many."""
    room = width - _LABEL
    if room < 8 or not any(sum(one.bands) for one in snapshot.bins):  # noqa: PLR2004  # columns
        return []
    columns, each = columns_of(snapshot.bins, room)
    used = [at for at in range(len(BANDS)) if any(one.bands[at] for one in columns)]
    lines: list[Part] = []
    for at in range(max(used), min(used) - 1, -1):
        cells = "".join(_cell(one, at) for one in columns)
        lines.append(Text(f"{BANDS[at]:>{_LABEL - 1}} ") + Text(cells, style=_BAND_STYLES[at]))
    if any(one.silent_seconds for one in columns):
        marks = "".join("x" if one.silent_seconds else " " for one in columns)
        lines.insert(0, Text(f"{_NO_ANSWER:>{_LABEL - 1}} ") + Text(marks, style="bold red"))
    foot = (
        f"publish latency since the start, a column is {wording.span(each * snapshot.bin_seconds)}"
    )
    lines.append(_line(" " * _LABEL + foot))
    return lines


def columns_of(bins: Sequence[Bin], room: int) -> tuple[list[Bin], int]:
    """Return at most so many bins, each of several of these, and of how many."""
    each = max(1, -(-len(bins) // room))
    columns = []
    for _, several in groupby(range(len(bins)), key=lambda at: at // each):
        first, *others = several
        one = bins[first]
        for at in others:
            one = one.merged(bins[at])
        columns.append(one)
    return columns, each


def _cell(column: Bin, band: int) -> str:
    total = sum(column.bands)
    share = column.bands[band] / total if total else 0.0
    return next((sign for least, sign in _SHADES if share > least), " ")


def bar(share: float, width: int) -> str:
    """Return a progress bar that is readable without colour."""
    room = max(4, min(width, 80) - 5)
    full = round(room * min(max(share, 0.0), 1.0))
    return f"{'━' * full}{'·' * (room - full)} {min(max(share, 0.0), 1.0):4.0%}"
