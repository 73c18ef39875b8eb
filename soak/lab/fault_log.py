"""What was injected and when, in a file without a name until the detector has ended.

So the detector cannot have read it, and the reader of a report can check that.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from soak.core.errors import LabError


class FaultLog:
    """JSON lines in a nameless file on the filesystem of `folder`; one writer."""

    def __init__(self, folder: Path, *, limit_lines: int = 100_000) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - see close
        self._lines = 0
        self._limit_lines = limit_lines

    def record(self, line: Mapping[str, object]) -> None:
        """Append one line; the last one that fits says that there were more."""
        if self._lines >= self._limit_lines:
            return
        self._lines += 1
        if self._lines == self._limit_lines:
            line = {"truncated": True}
        self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def publish(self, path: Path) -> None:
        """Give the file its name. To be called when no detector of this run is alive any more.

        Raises:
            LabError: the name is taken, or the file cannot be written there.
        """
        try:
            os.fsync(self._file.fileno())
            if path.exists():
                raise LabError(f"{path} exists already; nothing was overwritten")
            if not self._link(path):
                self._copy(path)
        except OSError as error:
            raise LabError(f"cannot write {path}: {error.strerror}") from error

    def close(self) -> None:
        """Forget what was not published."""
        self._file.close()

    def _link(self, path: Path) -> bool:
        """Link the nameless file in, as open(2) shows under O_TMPFILE; False if it cannot be."""
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            # Only with a folder descriptor does Python call linkat, which follows /proc's link.
            os.link(
                f"/proc/self/fd/{self._file.fileno()}",
                path.name,
                src_dir_fd=folder,
                dst_dir_fd=folder,
                follow_symlinks=True,
            )
        except OSError:
            return False
        finally:
            os.close(folder)
        path.chmod(0o644)
        return True

    def _copy(self, path: Path) -> None:
        """Do the same where the filesystem knows no nameless files (NFS, old overlays)."""
        draft = path.with_name(f".{path.name}.part")
        self._file.seek(0)
        with draft.open("wb") as target:
            shutil.copyfileobj(self._file, target)
        draft.replace(path)
