"""A run folder of another user: what may not be written there is a message, and no traceback."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from soak.core.cluster.drives import Measured
from soak.core.errors import RunFolderError
from soak.service.files import file_lock, is_locked
from soak.store import run_folder
from soak.store.run_folder import RunFolder


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """Return a folder in which the system opens nothing; root could not be kept out of a real one."""

    def refuse(*_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuse)
    return RunFolder(tmp_path)


def test_a_lock_that_is_not_ours_to_take_is_told(other: RunFolder) -> None:
    with (
        pytest.raises(RunFolderError, match=r"^cannot write /.*/run\.lock: permission denied$"),
        file_lock(other.path / "run.lock", "this run folder"),
    ):
        pytest.fail("it was taken")


def test_a_lock_that_is_not_ours_to_ask_for_is_told(other: RunFolder) -> None:
    with pytest.raises(RunFolderError, match=r"^cannot write /.*/run\.lock: permission denied$"):
        is_locked(other.path / "run.lock")


def test_a_drive_check_that_may_not_be_kept_is_told(other: RunFolder) -> None:
    with pytest.raises(RunFolderError, match=r"^cannot write /.*/b\.json: permission denied$"):
        run_folder.append_drive_checks(other, [Measured("b", ("/data",), "before", 0)])
