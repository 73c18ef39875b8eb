"""A detector's state that another program wrote is made anew from the journals, and never read."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.store.run_folder import RunFolder
from spark.streaming.job import forget_other
from spark.streaming.panel_state import layout

LAYOUT = layout()
NOTES = {
    "none": None,
    "older": "128.4\n",
    "newer": "131.7\n",
    "damaged": "\udcff\n",
    "other shards": f"{layout(2)}\n",
}


def begun(tmp_path: Path, note: str | None) -> RunFolder:
    """Return a run whose detector has committed a batch."""
    folder = RunFolder(tmp_path)
    (folder.checkpoint / "commits").mkdir(parents=True)
    (folder.checkpoint / "commits" / "7").touch()
    if note is not None:
        (folder.spark / "layout").write_text(note, errors="surrogateescape")
    return folder


@pytest.mark.parametrize("note", NOTES.values(), ids=NOTES)
def test_a_state_of_another_layout_is_made_anew_and_said_once(
    tmp_path: Path, note: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    folder = begun(tmp_path, note)

    forget_other(folder, LAYOUT)
    is_left = folder.checkpoint.exists()
    (folder.checkpoint / "commits").mkdir(parents=True)
    forget_other(folder, LAYOUT)

    assert (is_left, folder.checkpoint.exists()) == (False, True)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("detector_state_rebuilt was=")
    assert line.endswith(f" is={LAYOUT}")


def test_a_state_of_this_layout_is_kept_and_a_new_run_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    same, new = begun(tmp_path / "same", f"{LAYOUT}\n"), RunFolder(tmp_path / "new")

    forget_other(same, LAYOUT)
    forget_other(new, LAYOUT)

    assert (same.checkpoint / "commits" / "7").exists()
    assert (new.spark / "layout").read_text() == f"{LAYOUT}\n"
    assert caplog.records == []
