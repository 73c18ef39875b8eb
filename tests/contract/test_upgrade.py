"""A run that an earlier program began is read by this one; one of a later program is refused with a message.

`recorded/run-journal-1` is the beginning of a real run on a Kafka, of the first layout; a change of the
layout adds a folder and leaves it as it is.
"""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path

import pytest

from soak.core.errors import JournalError, RunFolderError
from soak.core.journal_format import VERSION
from soak.store.audit import audit_run
from soak.store.journal.reader import read_source, sources
from soak.store.run_folder import RunFolder, read_phases, read_plan, read_run
from spark.batch.digest import digest
from tests.support.paths import DATA

RECORDED = RunFolder(DATA / "recorded" / "run-journal-1")


def test_a_run_of_the_first_layout_is_read_whole() -> None:
    """Plan, run, phases, every record, and the audit over them."""
    run, plan = read_run(RECORDED), read_plan(RECORDED)
    seconds = {
        source: [(record.epoch, record.k) for record, _ in read_source(RECORDED.journal, source)]
        for source in sources(RECORDED.journal)
    }
    verdict = audit_run(RECORDED, run, plan).verdict(is_loss_known=True)

    assert (run.id, run.only, plan.load.producers) == ("chaos", (), 2)
    assert read_phases(RECORDED.phases).first_k("soak") == 5
    assert {source: len(there) for source, there in seconds.items()} == {
        "consume.0@host": 6,
        "probe@host": 6,
        "produce.0@host": 6,
        "produce.1@host": 3,
    }
    assert (verdict["sent"], verdict["acked"], verdict["received"]) == (1350, 1341, 1797)
    assert (verdict["lost"], verdict["unknown"]) == (0, 458)


def test_its_columns_mean_what_they_meant() -> None:
    """What the report and the detector make of a second of it."""
    found = digest(RECORDED.journal / "produce.0@host/000000.jsonl", 1)
    at = [column.name for column in found.columns].index('publish_latency_seconds{quantile="0.99"}')

    assert found.seconds.tolist() == [0, 1, 2, 3, 4, 5]
    assert found.values[at, -1] == 0.073588221
    assert found.damage == ()


def test_a_run_of_a_newer_journal_is_refused(tmp_path: Path) -> None:
    """The message says which version it is, and which is read."""
    shutil.copytree(RECORDED.path, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    path = folder.journal / "produce.0@host/000000.jsonl"
    head, *rest = path.read_bytes().splitlines(keepends=True)
    body = json.loads(head.partition(b"\t")[0]) | {"version": VERSION + 1}
    raw = json.dumps(body).encode()
    path.write_bytes(b"%s\t%08x\n" % (raw, zlib.crc32(raw)) + b"".join(rest))

    with pytest.raises(JournalError, match=f"version {VERSION + 1}.* reads up to {VERSION}"):
        audit_run(folder, read_run(folder), read_plan(folder))


def test_what_a_newer_program_says_of_a_run_is_refused(tmp_path: Path) -> None:
    """It names the file and what is not known."""
    shutil.copytree(RECORDED.path, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    body = json.loads(folder.run_json.read_text()) | {"zone": "b"}
    folder.run_json.write_text(json.dumps(body))

    with pytest.raises(
        RunFolderError, match=r"run\.json has unknown keys: zone\. .* a newer version"
    ):
        read_run(folder)


def test_a_phase_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    """It names the file and the phase."""
    path = tmp_path / "phases.jsonl"
    path.write_text('{"phase": "party", "from_k": 3, "reason": "planned"}\n')

    with pytest.raises(RunFolderError, match=r"phases\.jsonl .*unknown phase 'party'"):
        read_phases(path)
