"""The live view: panel, plain lines and the snapshot that they show."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from soak.app.live_view import Latency, LiveView, PlainView, Snapshot, bar, open_view, panel
from soak.core.model import Finding
from soak.core.units import SECOND_NS

FOUND = Finding(
    key="r-100",
    run="r",
    raised_k=100,
    onset_k=101,
    interval=(100, 102),
    series='consume.0@h|end_to_end_latency_seconds{quantile="0.99"}',
    kind="step",
    before=0.004,
    after=0.061,
    state="confirmed",
    confidence=0.99,
    is_about_cluster=True,
)


def _snapshot(k: int = 130, findings: tuple[Finding, ...] = (FOUND,)) -> Snapshot:
    return Snapshot(
        start_wall_ns=1_790_000_000 * SECOND_NS,
        k=k,
        total_seconds=225,
        end_k=None,
        phase="soak",
        sent=1000.0,
        received=998.0,
        lag=3.0,
        publish=Latency(0.005, 0.06, 0.07),
        end_to_end=Latency(0.005, math.nan, 0.08),
        invalid="",
        p50_history=(0.005,) * 300,
        p99_history=(0.01,) * 200 + (0.06,) * 100,
        findings=findings,
    )


@pytest.mark.parametrize("width", [24, 44, 80, 200])
def test_the_panel_fits_any_terminal(width: int) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    for part in panel(_snapshot(), width):
        console.print(part)

    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "2:10 of 3:45" in out.getvalue()


def test_no_colour_loses_nothing() -> None:
    """What NO_COLOR shows is the text; colour only repeats it."""
    plain, coloured = io.StringIO(), io.StringIO()
    for out, system in ((plain, None), (coloured, "truecolor")):
        console = Console(file=out, width=80, force_terminal=True, color_system=system)  # type: ignore[arg-type]  # a literal
        for part in panel(_snapshot(), 80):
            console.print(part)

    assert "\x1b[" not in plain.getvalue()
    assert "confirmed" in plain.getvalue()
    assert "58%" in plain.getvalue()


def test_without_a_terminal_a_line_comes_every_ten_seconds_and_for_each_finding() -> None:
    out = io.StringIO()
    view = open_view(Console(file=out, width=80), "soak x")
    for k in range(100, 125):
        view.show(_snapshot(k, (FOUND,) if k >= 113 else ()))

    lines = out.getvalue().splitlines()
    assert isinstance(view, PlainView)
    assert len([line for line in lines if " soak: sent 1,000/s" in line]) == 3
    assert len([line for line in lines if "confirmed" in line]) == 1
    assert any("(x15) since 14:15:01Z, cause unknown" in line for line in lines)


def test_a_mail_is_printed_above_the_panel_and_stays() -> None:
    out = io.StringIO()
    view = LiveView(Console(file=out, width=80, force_terminal=True), "soak x").start()
    view.show(_snapshot())
    view.note("mail arrived:\nSubject: step\n\nbody")
    view.note("making the report")
    view.close()

    assert "Subject: step" in out.getvalue()
    assert "making the report" in out.getvalue()


@pytest.mark.parametrize(("share", "full"), [(-1.0, 0), (0.0, 0), (0.5, 8), (1.0, 15), (7.0, 15)])
def test_the_bar_shows_the_share(share: float, full: int) -> None:
    assert bar(share, 20).count("━") == full
