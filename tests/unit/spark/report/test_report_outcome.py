"""What the terminal says of a finished run."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from soak.app.outcome import show_outcome
from soak.store.run_folder import RunFolder

AUDIT = {"sent": 12_345_678, "lost": None}


def _shown(path: Path, **changes: object) -> str:
    found: dict[str, Any] = {
        "kind": "step",
        "metric": "end_to_end_latency_seconds",
        "labels": {"source": "consume.0@h", "quantile": "0.99"},
        "at": "2026-09-21T14:15:12Z",
        "before": 0.0041,
        "after": 0.061,
        "ratio": 14.9,
        "cause": "unknown",
        "state": "confirmed",
        "is_about_cluster": True,
        "evidence": [{"text": "why"}],
        **changes,
    }
    coverage = {"seconds": 240, "gaps": [{}], "untrusted_seconds": 0}
    body = {
        "verdict": "regressed",
        "headline": "Regressed: 23 acknowledged messages were lost.",
        "findings": [found],
        "audit": AUDIT,
        "coverage": coverage,
    }
    folder = RunFolder(path)
    folder.summary.parent.mkdir(parents=True)
    folder.summary.write_text(json.dumps(body))
    out = io.StringIO()
    show_outcome(Console(file=out, width=300), folder)
    return out.getvalue()


def test_a_finding_is_reported_in_the_words_of_mail_and_report(tmp_path: Path) -> None:
    assert (
        "finding: p99 end-to-end latency of consume.0@h 4.1 ms -> 61 ms (x15) "
        "at 2026-09-21T14:15:12Z, cause unknown, confirmed\n  - why\n"
    ) in _shown(tmp_path)


def test_a_finding_that_is_not_held_against_the_cluster_says_so(tmp_path: Path) -> None:
    """As a fall back to the old level, which has no cause and needs none."""
    assert ("cause unknown, confirmed, not counted against the cluster\n  - why\n") in _shown(
        tmp_path, is_about_cluster=False
    )


def test_an_acknowledged_finding_has_its_note(tmp_path: Path) -> None:
    shown = _shown(tmp_path, acknowledged="brokers were\nrolled")

    assert "cause unknown, confirmed, acknowledged: brokers were rolled\n" in shown


def test_the_verdict_is_reported_with_what_it_rests_on(tmp_path: Path) -> None:
    """Without a finding, too: a loss has none, nor does a validity check."""
    lines = "verdict: regressed\nRegressed: 23 acknowledged messages were lost.\n"
    assert lines in _shown(tmp_path)


def test_a_count_that_nobody_knows_is_reported_as_in_the_report(tmp_path: Path) -> None:
    assert "audit: sent 12,345,678, lost not known\n" in _shown(tmp_path)


def test_a_drift_is_called_one(tmp_path: Path) -> None:
    """As in the mail: it did not step."""
    assert "p99 end-to-end latency of consume.0@h drifting 4.1 ms -> 61 ms" in _shown(
        tmp_path, kind="drift"
    )


def test_evidence_cannot_order_the_terminal_about(tmp_path: Path) -> None:
    """A log line may hold anything; and one gap is one."""
    shown = _shown(tmp_path, evidence=[{"text": "log \x1b[2Jline\nfinding: none"}])

    assert "  - log \\x1b[2Jline finding: none\n" in shown
    assert "coverage: 240 s, 1 gap, 0 s invalid" in shown


def test_a_finding_without_numbers_is_reported_too(tmp_path: Path) -> None:
    """JSON has no infinity: what is none is null."""
    assert "latency of consume.0@h - -> 61 ms at" in _shown(tmp_path, before=None, ratio=None)


def test_a_run_whose_report_was_interrupted_says_how_to_make_it(tmp_path: Path) -> None:
    """A second Ctrl-C ends the report; the run has ended in order all the same."""
    out = io.StringIO()

    show_outcome(Console(file=out, width=300), RunFolder(tmp_path))

    said = f"this run has no report; `soak report {tmp_path}` creates it\n"
    assert out.getvalue() == said
