"""The live view: panel, plain lines, and what badly chosen names can do to a terminal."""

from __future__ import annotations

import dataclasses
import io
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given, settings
from rich.console import Console

from soak.app.live import terminal
from soak.app.live.follow import Bin, Latency
from soak.app.live.pages import Pages
from soak.app.live.snapshot import ReportHead, Snapshot, Subscription
from soak.app.live.terminal import (
    MAX_LINE,
    LiveView,
    PlainView,
    bar,
    columns_of,
    latency_rows,
    open_view,
    panel,
    plain_line,
    shown,
)
from soak.core import wording
from soak.core.model import Explanation, Finding
from soak.service.systemd import escape_output
from soak.store.findings.store import FindingsStore
from tests.support.examples import examples
from tests.support.fakes import FakeClock
from tests.support.live import (
    FOUND,
    NASTY_TEXTS,
    OUTAGE,
    QUIET,
    is_harmless,
    snapshot,
    written_run,
)


def _drawn(found: Snapshot, width: int, height: int = 40) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    for part in panel(found, width, height):
        console.print(part)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [24, 44, 80, 200])
@pytest.mark.parametrize("count", [0, 1, 12])
def test_the_panel_fits_any_terminal(width: int, count: int) -> None:
    several = tuple(Subscription(at, 1.0, 2.0, Latency(), (0.1,) * 240) for at in range(count))

    lines = _drawn(snapshot(troubles=(OUTAGE,), subscriptions=several), width)

    assert max(map(len, lines)) <= width
    assert "2:10 of 3:45" in "\n".join(lines)


@pytest.mark.parametrize("width", [24, 28, 40, 60, 80, 105, 117])
def test_a_latency_is_shown_whole_or_not_at_all(width: int) -> None:
    latency = Latency(0.00123, 0.0456, 0.789)
    report = ReportHead("clean", "", 1, latency, latency)
    found = snapshot(900, state="ended", subscriptions=(QUIET, Subscription(1)), report=report)
    lines = [one for one in _drawn(found, width) if one.startswith(("publish", "end to end"))]

    assert len(lines) == 2
    for line in lines:
        shown_latencies = re.findall(r"[\d.]+ ms", line)
        assert shown_latencies in (
            ["45.6 ms"],
            ["1.23 ms", "45.6 ms"],
            ["1.23 ms", "45.6 ms", "789 ms"],
        )
        assert "…" not in line


@pytest.mark.parametrize("height", [10, 24, 30, 50])
def test_the_panel_of_many_incidents_is_no_higher_than_the_terminal(height: int) -> None:
    """Those left out are counted; at least one is there however low the terminal."""
    many = tuple(dataclasses.replace(FOUND, key=f"r-{at}", onset_k=at) for at in range(40))

    lines = _drawn(snapshot(findings=many), 120, height)

    assert len(lines) <= max(height, 14)
    assert "more incidents" in lines[-1]


def test_findings_that_cannot_be_read_are_not_the_same_as_none() -> None:
    """On a panel, and once in a log."""
    found, out = snapshot(findings=(), unread="findings.db: damaged"), io.StringIO()
    view = PlainView(Console(file=out, width=80), "soak x")
    view.show(found)
    view.show(found)

    line = "the incidents cannot be read: findings.db: damaged"
    assert line in "\n".join(_drawn(found, 100))
    assert out.getvalue().count(line) == 1


def test_a_panel_of_many_incidents_writes_each_line_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each second: with the square of their number, 500 incidents took three seconds."""
    many = tuple(dataclasses.replace(FOUND, key=f"r-{at}", onset_k=at) for at in range(500))
    written, text = [], wording.finding_text

    def counting(found: Finding, start_wall_ns: int) -> str:
        written.append(found.key)
        return text(found, start_wall_ns)

    monkeypatch.setattr(wording, "finding_text", counting)
    _drawn(snapshot(findings=many), 120, 600)

    assert len(written) <= 2 * len(many)


def test_sent_acknowledged_failed_and_received_are_apart() -> None:
    several = (QUIET, Subscription(1, 700.0, 118_800.0))

    text = "\n".join(_drawn(snapshot(subscriptions=several), 100))

    assert "sent 1,000/s, acknowledged 640/s, failed 360/s" in text
    assert "subscription 0: received 998/s, lag 3" in text
    assert "subscription 1: received 700/s, lag 118,800" in text


def test_the_panel_has_time_left_countdown_outage_and_heat() -> None:
    text = "\n".join(_drawn(snapshot(troubles=(OUTAGE,)), 100))

    assert "soak 2:10 of 3:45, 1:10 of this phase left" in text
    assert "warm-up 1:00 > [soak 2:20] > drain 0:25" in text
    assert "retention: old data is deleted in 3:20" in text
    assert OUTAGE in text
    assert " 1-10 ms ▓▓▓" in text
    assert "10-100 ms ███" in text
    assert "no answer" in text
    assert "0.1-1 s ▒▒▒" in text


def test_no_colour_loses_nothing() -> None:
    """What NO_COLOR shows is the text; colour only repeats it."""
    plain, coloured = io.StringIO(), io.StringIO()
    for out, system in ((plain, None), (coloured, "truecolor")):
        console = Console(file=out, width=80, force_terminal=True, color_system=system)  # type: ignore[arg-type]  # a literal
        for part in panel(snapshot(), 80):
            console.print(part)

    assert "\x1b[" not in plain.getvalue()
    assert "confirmed" in plain.getvalue()
    assert "58%" in plain.getvalue()


def test_without_a_terminal_a_line_comes_every_ten_seconds_and_for_each_finding() -> None:
    out = io.StringIO()
    view = open_view(Console(file=out, width=80), "soak x")
    for k in range(100, 125):
        view.show(snapshot(k, (FOUND,) if k >= 113 else ()))

    lines = out.getvalue().splitlines()
    assert isinstance(view, PlainView)
    assert len([line for line in lines if " soak: sent 1,000/s" in line]) == 3
    assert len([line for line in lines if "confirmed" in line]) == 1
    assert any("(x15) since 14:15:01Z, cause unknown" in line for line in lines)


MISSED = dataclasses.replace(
    FOUND,
    series='producers|objective_bad_minutes{objective="p99 publish <= 50ms for 90% of minutes"}',
    kind="objective",
    before=1.4,
    after=2.0,
)


def test_without_a_terminal_a_missed_objective_is_one_line_however_many_minutes_are_bad() -> None:
    """And another when its cause is known, and when it is over."""
    out = io.StringIO()
    view = PlainView(Console(file=out, width=80), "soak x")
    cause = (Explanation("drive_gc", 0.9, ()),)
    for k, found in enumerate(
        (
            *(dataclasses.replace(MISSED, after=float(bad)) for bad in range(2, 9)),
            dataclasses.replace(MISSED, after=9.0, causes=cause),
            dataclasses.replace(MISSED, after=10.0, causes=cause),
            dataclasses.replace(MISSED, after=10.0, causes=cause, state="gone"),
        )
    ):
        view.show(snapshot(100 + k, (found,)))

    lines = [line for line in out.getvalue().splitlines() if "objective missed" in line]
    assert [
        re.findall(r"confirmed|resolved|[\d.]+ of|drive_gc|unknown", line) for line in lines
    ] == [
        ["confirmed", "2 of", "unknown"],
        ["confirmed", "9 of", "drive_gc"],
        ["resolved", "10 of", "drive_gc"],
    ]


def test_a_plain_line_of_an_outage_says_so_at_once_and_when_it_is_over() -> None:
    """It does not wait for the next ten seconds."""
    out = io.StringIO()
    view = PlainView(Console(file=out, width=80), "soak x")
    for k in range(100, 109):
        view.show(snapshot(k, (), troubles=(OUTAGE,) if 103 <= k < 106 else ()))

    lines = out.getvalue().splitlines()
    assert [OUTAGE in line for line in lines] == [False, True, False]


def test_a_detector_that_is_behind_is_on_the_panel_and_in_lines() -> None:
    late = "the detector is 90 s behind: findings come late"
    found = dataclasses.replace(snapshot(), detection=late)

    assert plain_line(found).endswith(f"; {late}")
    assert late in "\n".join(_drawn(found, 100))


def test_a_plain_line_after_the_end_has_all_messages_and_no_rate() -> None:
    line = plain_line(snapshot(900, state="ended", phase="ended"))

    expected = "in all: sent 100,000, acknowledged 99,000, failed 1,000, received 0 messages"
    assert line == f"3:45/3:45 ended: {expected}"


def test_of_a_killed_run_messages_are_shown_and_no_rate() -> None:
    found = snapshot(130, state="silent", phase="stopped", troubles=("nothing is recorded",))

    assert "sent 100,000" in plain_line(found)
    assert plain_line(found).endswith("; nothing is recorded")
    assert "/s" not in "\n".join(_drawn(found, 100)).partition("publish")[0]


def test_after_the_load_the_panel_says_how_long_ago_it_ended() -> None:
    text = "\n".join(_drawn(snapshot(225 + 104, phase="ending"), 100))

    assert "ending 3:45 of 3:45, recording ended 1:44 ago" in text


def test_the_panel_of_a_run_that_is_over_has_its_verdict() -> None:
    report = ReportHead("regressed", "Regressed: p99 stepped.", 1, Latency(0.001), Latency(0.002))

    text = "\n".join(_drawn(snapshot(900, state="ended", phase="ended", report=report), 100))

    assert "Regressed: p99 stepped." in text
    assert "this phase left" not in text
    assert "1 ms" in text


def test_a_report_has_one_end_to_end_latency_for_all_subscriptions() -> None:
    """It was shown as that of each, also of the one that was slow."""
    report = ReportHead("clean", "", 1, Latency(0.001), Latency(0.002, 0.5))
    several = (QUIET, Subscription(1))

    found = snapshot(900, state="ended", phase="ended", subscriptions=several, report=report)

    assert list(latency_rows(found, "end to end {}", 4))[1:] == [
        ("end to end, all", Latency(0.002, 0.5), ())
    ]
    assert "end to end, all" in Pages().now(found, 0, "")


def test_a_mail_is_printed_above_the_panel_and_stays() -> None:
    out = io.StringIO()
    view = LiveView(Console(file=out, width=80, force_terminal=True), "soak x").start()
    view.show(snapshot())
    view.note("mail arrived:\nSubject: step\n\nbody")
    view.note("making the report")
    view.close()

    assert "Subject: step" in out.getvalue()
    assert "making the report" in out.getvalue()


def test_the_panel_redraws_on_the_output_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands escape what they print; the panel's own sequences are no text."""
    out = io.StringIO()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    escape_output()
    view = open_view(Console(width=80, force_terminal=True), "soak x")
    view.show(snapshot())
    view.note("mail arrived:\nSubject: step \x1b[2J\n\nbody")
    view.show(snapshot(100))
    view.close()

    assert "\x1b[2K\x1b[1A" in out.getvalue()
    assert [line for line in out.getvalue().splitlines() if "\\x1b" in line] == [
        "Subject: step \\x1b[2J"
    ]


@pytest.mark.parametrize(("share", "full"), [(-1.0, 0), (0.0, 0), (0.5, 8), (1.0, 15), (7.0, 15)])
def test_the_bar_shows_the_share(share: float, full: int) -> None:
    assert bar(share, 20).count("━") == full


@pytest.mark.parametrize("room", [8, 23, 239, 240, 1000])
def test_no_message_and_no_second_is_lost_when_bins_become_columns(room: int) -> None:
    bins = [Bin((float(at), 0, 0, 0, 0, 1.0), silent_seconds=at % 2) for at in range(240)]

    columns, each = columns_of(bins, room)

    assert len(columns) == math.ceil(240 / each) <= room
    assert sum(one.bands[0] for one in columns) == sum(range(240))
    assert sum(one.silent_seconds for one in columns) == 120


# --- Hostile names and log lines.


@given(text=NASTY_TEXTS)
def test_a_shown_text_is_one_short_harmless_line(text: str) -> None:
    line = shown(text)

    assert is_harmless(line)
    assert "\n" not in line
    assert len(line) <= MAX_LINE


def _plain(out: io.StringIO) -> PlainView:
    return PlainView(Console(file=out, width=80), "soak")


@settings(max_examples=examples(30))
@given(text=NASTY_TEXTS)
def test_no_name_reaches_a_log_as_it_is(text: str) -> None:
    """Not in a phase, a trouble, a cause, an objective, or a note; each event stays one line."""
    out = io.StringIO()
    found = dataclasses.replace(FOUND, series=f'consume.0@{text}|x_seconds{{a="{text}"}}')
    view = _plain(out)
    view.show(snapshot(0, (found,), name=text, phase=text, troubles=(text,)))
    view.note(text)

    assert is_harmless(out.getvalue())


@settings(max_examples=examples(30))
@given(text=NASTY_TEXTS)
def test_no_name_moves_the_cursor_of_a_terminal(text: str) -> None:
    """A panel without colour is text alone, and as high and wide as the terminal."""
    found = dataclasses.replace(FOUND, series=f'consume.0@{text}|x_seconds{{a="{text}"}}')
    report = ReportHead(text, text, 1, Latency(), Latency())
    for state in ("running", "ended"):
        lines = _drawn(
            snapshot(
                100, (found,), name=text, phase=text, troubles=(text,), state=state, report=report
            ),
            80,
        )

        assert is_harmless("\n".join(lines))
        assert len(lines) < 50


@pytest.mark.long
@settings(max_examples=examples(30))
@given(text=NASTY_TEXTS)
def test_a_note_and_a_title_are_harmless_on_a_terminal(text: str) -> None:
    """The sequences that are left are those of the panel itself: lines up, and erase."""
    own, out = io.StringIO(), io.StringIO()
    for file, title in ((own, "quiet"), (out, text)):
        console = Console(file=file, width=80, height=30, force_terminal=True, color_system=None)
        view = LiveView(console, title).start()
        view.show(snapshot())
        view.note(title)
        view.note(f"mail arrived:\n{title}")
        view.close()

    allowed = {"\x1b[?25l", "\x1b[?25h", "\x1b[2K", "\x1b[1A", "\r"}
    text_left = out.getvalue()
    for sequence in allowed:
        text_left = text_left.replace(sequence, "")
    assert is_harmless(text_left)


# --- `soak watch`.


def test_watching_a_run_that_is_over_prints_it_once(tmp_path: Path) -> None:
    run = written_run(tmp_path)
    for k in range(365):
        run.write("produce.0@h", k, sent=10.0, acked=10.0, failed=0.0)
    run.decide("end", 365)
    run.becomes("ended")
    with FindingsStore(run.folder.findings) as store:
        store.save_finding(FOUND, (), 1)
    out, clock = io.StringIO(), FakeClock()
    clock.advance(9999)

    terminal.watch(run.folder, Console(file=out, width=80), clock, Event(), is_once=False)

    title, line, incident = out.getvalue().splitlines()
    assert title == "soak written  r"
    assert line.startswith("6:05/6:05 ended: in all: sent 3,650, acknowledged 3,650, failed 0")
    assert incident.startswith("confirmed: p99 end-to-end latency 4 ms -> 61 ms (x15)")


def test_watching_ends_when_the_run_does(tmp_path: Path) -> None:
    """The last line is that of the end, however short the run was."""
    run, out, clock = written_run(tmp_path), io.StringIO(), FakeClock()

    terminal.watch(
        run.folder,
        Console(file=out, width=80),
        clock,
        _Stop(lambda: run.becomes("interrupted")),
        is_once=False,
    )

    assert "interrupted: in all" in out.getvalue().splitlines()[-1]


@pytest.mark.long
def test_the_last_picture_is_that_of_the_whole_run(tmp_path: Path) -> None:
    """Though the one who watches came a moment before the end, and a look reads a part."""
    run, out, clock = written_run(tmp_path), io.StringIO(), FakeClock()
    for k in range(500):
        run.write("produce.0@h", k, sent=10.0, acked=10.0, failed=0.0)
        if k < 30:  # so long lines that a look does not read all of them
            with (run.folder.journal / "produce.0@h" / "000000.jsonl").open("ab") as file:
                file.write(b"x" * 2**20 + b"\n")
    clock.advance(500.5)

    def end() -> None:
        run.decide("end", 500)
        run.becomes("ended")

    terminal.watch(run.folder, Console(file=out, width=80), clock, _Stop(end), is_once=False)

    assert "sent 5,000, acknowledged 5,000" in out.getvalue().splitlines()[-1]
    assert "read so far" not in out.getvalue().splitlines()[-1]


class _Stop(Event):
    """Lets something happen instead of a wait."""

    def __init__(self, happen: Callable[[], None]) -> None:
        super().__init__()
        self._happen = happen

    def wait(self, timeout: float | None = None) -> bool:
        self._happen()
        return timeout is None
