"""Files that processes share: atomic replacement and lock files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from soak.core.errors import RunFolderError
from soak.service.files import file_lock, is_locked, lock_holder, write_atomically
from tests.support.fakes import refuse


def test_a_lock_is_held_for_the_block(tmp_path: Path) -> None:
    """Meanwhile the file names its holder, and nobody else gets the lock."""
    path = tmp_path / "run.lock"
    before = is_locked(path), lock_holder(path)
    with file_lock(path, "this run folder"):
        within = is_locked(path), lock_holder(path)
        with (
            pytest.raises(
                RunFolderError, match=rf"this run folder is in use by process {os.getpid()}"
            ),
            file_lock(path, "this run folder"),
        ):
            pytest.fail("it was taken twice")

    assert before == (False, None)
    assert within == (True, os.getpid())
    assert not is_locked(path)


def test_a_lock_of_another_user_is_an_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both for taking the lock and for asking whether it is taken."""
    monkeypatch.setattr(os, "open", refuse)
    message = r"^cannot write /.*/run\.lock: permission denied$"

    with pytest.raises(RunFolderError, match=message), file_lock(tmp_path / "run.lock", "x"):
        pytest.fail("it was taken")
    with pytest.raises(RunFolderError, match=message):
        is_locked(tmp_path / "run.lock")


def test_a_failed_replacement_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no temporary file: a full drive would get another one with each attempt."""
    path = tmp_path / "run.json"
    write_atomically(path, "old")
    monkeypatch.setattr(os, "fsync", refuse)

    with pytest.raises(OSError, match=r"run\.json"):
        write_atomically(path, "new")

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
