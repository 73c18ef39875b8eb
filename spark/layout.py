"""Which layout the state in the detector's checkpoint has: one of another program is not read, but made anew.

The journals hold all that made it, so the query begins at their first second again.
"""

from __future__ import annotations

import logging
import shutil

from detectors.panel import LAYOUT
from soak.store.run_folder import RunFolder, write_atomically

_LOG = logging.getLogger(__name__)


def forget_other(folder: RunFolder, layout: str = LAYOUT) -> None:
    """Remove a checkpoint that a program with another layout wrote, and note the one that comes now.

    Killed in between, the next start does the same again. No Spark may use the checkpoint.
    """
    note = folder.spark / "layout"
    known = note.read_text(errors="replace").strip() if note.exists() else ""
    if known == layout:
        return
    if folder.checkpoint.exists():
        _LOG.warning("detector_state_made_anew was=%s is=%s", known or "unknown", layout)
        shutil.rmtree(folder.checkpoint)
    write_atomically(note, layout + "\n")
