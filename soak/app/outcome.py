"""The outcome of a run: its report, the messages that wait for it, and what the terminal says of it."""

from __future__ import annotations

import math
import shlex
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from soak.alerting.daemon import AlertDaemon, build_sinks
from soak.core import wording
from soak.core.clock import SystemClock
from soak.core.errors import FindingsError, SoakError
from soak.core.ports import Note
from soak.core.series import SeriesId
from soak.core.units import SECOND_NS
from soak.service import children
from soak.service.files import file_lock, read_json
from soak.store.run_folder import RunFolder, read_plan, read_run, reporting_damage

EXIT_INTERRUPTED = 130
REPORT_TIMEOUT_NS = 900 * SECOND_NS
REPORT_PROGRESS = "report: "
"""Begins the lines in which `soak report` says what it does now."""
VERDICT_CODES = (0, 3, 4)
UNFINISHED_STATES = ("beginning", "running")
_VERDICT_STYLES = {"clean": "bold green", "regressed": "bold red", "inconclusive": "bold yellow"}


def run_report_process(folder: RunFolder, stop: threading.Event, note: Note) -> int:
    """Create the report in its own process; return its exit code, which is the verdict.

    `note` takes its lines of progress.

    Raises:
        SoakError: it failed, or took too long.
    """
    log = folder.logs / "report.log"
    command = [sys.executable, "-m", "soak.cli.main", "report", str(folder.path)]
    seen_bytes = log.stat().st_size if log.exists() else 0
    process = children.spawn(command, log_path=log)
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + REPORT_TIMEOUT_NS
    try:
        while process.poll() is None and clock.mono_ns() < deadline_ns:
            if stop.wait(0.2):
                return EXIT_INTERRUPTED
            lines, seen_bytes = read_progress(log, seen_bytes)
            for line in lines:
                note(line)
    finally:
        children.kill(process)
    if process.returncode not in VERDICT_CODES:
        retry = f"see {log}; `soak report {shlex.quote(str(folder.path))}` tries again"
        raise SoakError(f"the report failed with exit code {process.returncode}; {retry}")
    return process.returncode


def read_progress(path: Path, from_byte: int) -> tuple[list[str], int]:
    """Return the lines of progress in the log of a report from this byte on, and the byte after them."""
    with path.open("rb") as file:
        file.seek(from_byte)
        new = file.read()
    whole = new[: new.rfind(b"\n") + 1]
    lines = whole.decode(errors="replace").splitlines()
    return [one for one in lines if one.startswith(REPORT_PROGRESS)], from_byte + len(whole)


def make_report(run_dir: Path, make: Callable[[Path], int]) -> tuple[int, RunFolder]:
    """Create a report with `make`; return its exit code and the folder of its run.

    It is created again when the run ended meanwhile, or another run ended and `run_dir` now links to it:
    a caller who asked for that report found this one in progress and left.

    Raises:
        SoakError: no run folder, or the report cannot be created.
    """
    folder = RunFolder(run_dir.resolve())
    while True:
        state = read_run(folder).state
        code = make(folder.path)
        if read_run(folder).state != state:
            continue
        newest = RunFolder(run_dir.resolve())
        if newest == folder or read_run(newest).state in UNFINISHED_STATES:
            return code, folder
        folder = newest


def send_pending(folder: RunFolder, stop: threading.Event, note: Note) -> None:
    """Send what is due now that the report is there, such as the message about the end of the run.

    `note` takes a line about messages that wait: no daemon of this run follows to send them.
    """
    plan = read_plan(folder)
    if not plan.sinks or (plan.store is None and not folder.findings.exists()):
        return
    with file_lock(folder.path / "alert.lock", "the outbox"):
        daemon = AlertDaemon(folder, plan, read_run(folder), build_sinks(plan), SystemClock())
        daemon.deliver(stop.is_set)
        try:
            waiting = daemon.pending()
        except FindingsError as error:
            note(f"it is not known whether messages wait: {error}")
        else:
            if waiting and not (plan.lab and plan.lab.mailbox):  # that ends with this command
                runs = shlex.quote(str(folder.path.resolve().parent))
                messages = wording.counted(waiting, "message")
                note(
                    f"{messages} not sent yet: `soak alert --pending {runs}` tries again for a day"
                )
        daemon.close()


def read_summary(folder: RunFolder) -> dict[str, Any]:
    """Return `summary.json`; raises `RunFolderError` where it is damaged or unreadable."""
    with reporting_damage(folder.summary):
        return dict(read_json(folder.summary))


def show_outcome(console: Console, folder: RunFolder) -> None:
    """Print verdict, findings, audit and coverage of a run; every line stands alone in a log."""
    summary = read_summary(folder) if folder.summary.exists() else {}
    is_part = summary.get("is_running") and read_run(folder).state not in UNFINISHED_STATES
    if not summary or is_part:  # the report was interrupted too
        print_line(
            console,
            f"this run has no report; `soak report {shlex.quote(str(folder.path))}` creates it",
        )
        return
    verdict = str(summary["verdict"])
    console.print()
    console.print(f"verdict: {verdict}", style=_VERDICT_STYLES.get(verdict), highlight=False)
    print_line(console, str(summary["headline"]))
    for busy, used in summary.get("soak", {}).get("busy_hosts", {}).items():
        print_line(console, wording.busy_host_text(busy, used))
    for one in summary.get("objectives", ()):
        left = wording.budget_left_text(one["budget_left"], one["unit"])
        print_line(console, f"objective: {one['objective']}: {one['state']}, budget {left}")
    for found in summary["findings"]:
        _print_finding(console, found)
    counts = dict(summary["audit"])
    why = counts.pop("not_audited", "")
    audit = ", ".join(f"{key} {wording.known(value)}" for key, value in counts.items())
    print_line(console, f"audit: {audit}")
    if why:
        print_line(console, f"not audited: {why}")
    coverage = summary["coverage"]
    print_line(
        console,
        f"coverage: {coverage['seconds']} s, {wording.counted(len(coverage['gaps']), 'gap')}, "
        f"{coverage['untrusted_seconds']} s invalid",
    )
    print_line(console, f"report: {folder.report}")


def _print_finding(console: Console, found: dict[str, Any]) -> None:
    labels = dict(found["labels"])
    source = labels.pop("source", "")
    series = str(SeriesId(source, found["metric"], tuple(labels.items())))
    before, after = (math.nan if found[at] is None else found[at] for at in ("before", "after"))
    if found["kind"] in wording.WHOLE_SENTENCES:
        what = f"{found['what']} ({source})"
    else:
        change = wording.level_text(series, found["kind"], before, after)
        what = f"{wording.title_with_source(series)} {change}"
    print_line(
        console,
        f"finding: {what} at {found['at']}, "
        f"cause {found['cause']}, {wording.state_word(found['state'])}"
        + wording.not_counted_note(is_about_cluster=found["is_about_cluster"])
        + (f", acknowledged: {found['acknowledged']}" if found.get("acknowledged") else ""),
    )
    for item in found["evidence"]:
        print_line(console, f"  - {item['text'] if isinstance(item, dict) else item}")


def print_line(console: Console, text: str) -> None:
    """Print a text as one line that is not wrapped, with its control characters made visible."""
    console.print(wording.printable(text), markup=False, highlight=False, soft_wrap=True)
