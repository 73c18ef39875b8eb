"""The end of a run: progress of its report, and messages that wait."""

from __future__ import annotations

import threading
from pathlib import Path

from soak.app.outcome import read_progress, send_pending
from tests.support.alerting.daemon import DELIVERED, AlertWorld


def test_messages_that_were_not_sent_at_the_end_are_counted_and_the_command_is_named(
    tmp_path: Path,
) -> None:
    """No daemon of the run is left to send them."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    world.change_plan("sinks: {mail: {to: [a@example.org], host: 127.0.0.1, port: 9}}")
    notes: list[str] = []

    send_pending(world.folder, threading.Event(), notes.append)

    assert notes == [
        f"1 message not sent yet: `soak alert --pending {tmp_path}` tries again for a day"
    ]
    assert world.states() == [("opened", "deferred")]


def test_lines_of_progress_are_taken_from_the_log_of_a_report_once(tmp_path: Path) -> None:
    """What an earlier report, Java or a warning printed is left there, as is a line that is not whole."""
    log = tmp_path / "report.log"
    log.write_text("report: writing the page\n")
    from_byte = log.stat().st_size
    with log.open("a") as file:
        file.write("WARNING: Java\nreport: starting Spark\nreport: reading the jour")
    first, from_byte = read_progress(log, from_byte)
    with log.open("a") as file:
        file.write("nals\n")
    second, _ = read_progress(log, from_byte)

    assert first == ["report: starting Spark"]
    assert second == ["report: reading the journals"]
