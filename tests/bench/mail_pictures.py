"""Draw the mails of a run as a phone shows them, and write their texts, for docs/evidence/mails.md.

python -m tests.bench.mail_pictures RUN_DIR [KEY ...] --into docs/evidence/mails

The alert daemon makes the mails from the journals and the findings of a run that is over, as of the instants
at which they were due then. Nothing in the run folder is changed, and nothing is sent.
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from soak.alerting.daemon import AlertDaemon
from soak.core.model import Explanation, Finding
from soak.core.ports import CHART_URL, Message, Outcome
from soak.store.findings.rows import Notification, NotificationKind, is_correction, is_end
from soak.store.findings.store import FindingsStore
from soak.store.run_folder import RunFolder, read_plan, read_run
from tests.support.browser import Browser, chromium
from tests.support.fakes import FakeClock

INTO = Path("docs/evidence/mails")
WIDTH, HEIGHT = 390, 844  # of a phone, in its own pixels
_KINDS: tuple[NotificationKind, ...] = ("opened", "named", "corrected", "resolved", "revised")
_SINK = "picture"
_UNLIMITED = 10_000


class KeptMessages:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def send(self, message: Message) -> Outcome:
        self.messages.append(message)
        return Outcome("delivered")


def messages_of(folder: RunFolder, keys: Sequence[str], copy: RunFolder) -> list[Message]:
    """Return the messages about the incidents of these keys, of all without any, and that of the end.

    `copy` becomes a run folder with the same journals and no findings but these.
    """
    run, plan, sink = read_run(folder), read_plan(folder), KeptMessages()
    plan = replace(plan, alerts=replace(plan.alerts, max_per_hour=_UNLIMITED))
    copy.path.mkdir()
    for path in (folder.plan, folder.run_json, folder.phases):
        shutil.copy(path, copy.path)
    copy.journal.symlink_to(folder.journal.resolve())
    copy.findings.touch()
    with FindingsStore(folder.findings, is_read_only=True) as store:
        found = [one for one in store.findings(run.id) if one.is_about_cluster]
        rows = store.notifications(run.id)
        due = {(row.subject, row.kind): row for row in rows}
        changes = store.changes(run.id)
    with FindingsStore(copy.findings) as store:
        store.record_changes(run.id, changes)
    for one in found:
        if (keys and one.key not in keys) or (one.key, "opened") not in due:
            continue
        for kind in _KINDS:
            if (row := due.get((one.key, kind))) is not None:
                _save(copy, _as_of(one, row), FakeClock(wall_ns=row.created_wall_ns))
                clock = FakeClock(wall_ns=row.done_wall_ns or row.created_wall_ns)
                AlertDaemon(copy, plan, run, {_SINK: sink}, clock).deliver()
    if folder.summary.exists() and not keys:
        clock = FakeClock(wall_ns=max(row.created_wall_ns for row in rows))
        with FindingsStore(copy.findings) as store:
            store.queue_end(run.id, _end_summary(folder), [_SINK], clock.wall_ns())
        AlertDaemon(copy, plan, run, {_SINK: sink}, clock).deliver()
    return sink.messages


def _as_of(finding: Finding, row: Notification) -> Finding:
    """Return a finding as it was when a notification was queued; by now its cause may be another one."""
    if not is_end(row.kind):
        finding = replace(finding, state="confirmed", resolved_k=None)
    if row.kind == "named":  # the final cause is not known then
        return replace(finding, is_settled=False)
    if is_correction(row.kind) or not row.named or row.named[-1].cause == finding.cause:
        return finding
    named = row.named[-1]
    then = Explanation(named.cause, 0.0, (), suspect=named.suspect)  # its evidence is not kept
    return replace(finding, causes=(then,), is_settled=False)


def _save(folder: RunFolder, finding: Finding, clock: FakeClock) -> None:
    with FindingsStore(folder.findings) as store:
        store.save_finding(finding, [_SINK], clock.wall_ns())


def _end_summary(folder: RunFolder) -> str:
    body: Mapping[str, object] = json.loads(folder.summary.read_text())
    return json.dumps({**body, "overview": json.loads(folder.overview.read_text())})


def draw(browser: Browser, message: Message, path: Path) -> None:
    """Write the picture of a message, and its text beside it."""
    chart = base64.b64encode(message.chart_png or b"").decode()
    page = path.with_suffix(".html")
    page.write_text(message.html.replace(CHART_URL, f"data:image/png;base64,{chart}"))
    browser.open(page, width=WIDTH, height=HEIGHT)
    browser.picture(path, is_whole=True)
    page.unlink()
    path.with_suffix(".txt").write_text(f"Subject: {message.subject}\n\n{message.text}")


def run() -> None:
    """Draw what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("keys", nargs="*")
    parser.add_argument("--into", type=Path, default=INTO)
    given = parser.parse_args()
    given.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="soak-mails-") as temporary, chromium() as browser:
        copy = RunFolder(Path(temporary) / "run")
        folder = RunFolder(given.run_dir.resolve())
        for message in messages_of(folder, given.keys, copy):
            own, named = str(copy.path.resolve()), str(folder.path)
            message = replace(  # noqa: PLW2901  # it names the folder of the run
                message,
                text=message.text.replace(own, named),
                html=message.html.replace(own, named),
            )
            draw(browser, message, given.into / f"{message.key}.png")


if __name__ == "__main__":
    run()
