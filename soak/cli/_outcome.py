"""Prints what a run came to: verdict, findings with their evidence, audit, and where the report lies."""

from __future__ import annotations

import json
import math
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from soak.core import wording
from soak.core.model import Column
from soak.store.run_folder import RunFolder

_STYLE = {"clean": "bold green", "regressed": "bold red", "inconclusive": "bold yellow"}


def read(folder: RunFolder) -> dict[str, Any]:
    """Return `summary.json`."""
    body: dict[str, Any] = json.loads(folder.summary.read_text())
    return body


def show(console: Console, folder: RunFolder) -> None:
    """Print the outcome, or how to have one; every line stands alone in a log."""
    if not folder.summary.exists():  # the report was interrupted too
        _line(console, f"there is no report of this run; `soak report {folder.path}` makes it")
        return
    summary = read(folder)
    verdict = str(summary["verdict"])
    console.print()
    console.print(f"verdict: {verdict}", style=_STYLE.get(verdict), highlight=False)
    _line(console, str(summary["headline"]))
    for found in summary["findings"]:
        _show_finding(console, found)
    audit = ", ".join(f"{key} {wording.known(value)}" for key, value in summary["audit"].items())
    _line(console, f"audit: {audit}")
    coverage = summary["coverage"]
    _line(
        console,
        f"coverage: {coverage['seconds']} s, {wording.counted(len(coverage['gaps']), 'gap')}, "
        f"{coverage['untrusted_seconds']} s untrusted",
    )
    _line(console, f"report: {folder.report}")


def show_checks(console: Console, title: str, rows: list[tuple[str, str, str, bool]]) -> None:
    """Print what a drill expected against what was found."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in ("", "expected", "found", ""):
        table.add_column(heading, overflow="fold")
    for subject, expected, found, is_met in rows:
        cells = (subject, expected, found, "ok" if is_met else "MISSED")
        table.add_row(*map(Text, cells))  # what failed may hold brackets, which are no markup
    console.print(table)


def _show_finding(console: Console, found: dict[str, Any]) -> None:
    labels = dict(found["labels"])
    source = labels.pop("source", "")
    series = f"{source}|{Column(found['metric'], tuple(labels.items())).name}"
    before, after = _number(found["before"]), _number(found["after"])
    moved = wording.course(series, found["kind"], before, after)
    _line(
        console,
        f"finding: {wording.placed(series)} {moved} at {found['at']}, "
        f"cause {found['cause']}, {found['state']}"
        + wording.held_against(is_about_cluster=found["is_about_cluster"]),
    )
    for item in found["evidence"]:
        _line(console, f"  - {item['text'] if isinstance(item, dict) else item}")


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _line(console: Console, text: str) -> None:
    console.print(wording.printable(text), markup=False, highlight=False, soft_wrap=True)
