"""Files that processes share: atomic replacement and lock files."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from soak.core.errors import NotAvailableError, RunFolderError
from soak.service.files import (
    cached_script,
    file_lock,
    is_locked,
    lock_holder,
    user_cache,
    write_atomically,
)
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


@pytest.mark.long
def test_a_file_is_utf_8_in_every_locale(tmp_path: Path) -> None:
    """It is read as UTF-8 whatever the language of the next host."""
    path = tmp_path / "run.json"
    program = (
        "import sys; from pathlib import Path; from soak.service.files import write_atomically; "
        "write_atomically(Path(sys.argv[1]), '\\u00fc\\u2192')"
    )
    subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", program, str(path)],
        env={**os.environ, "LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0"},
        check=True,
        timeout=60,
    )

    assert path.read_bytes() == "ü→".encode()


def test_a_user_without_a_home_folder_is_asked_for_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container with an arbitrary user id."""

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)

    with pytest.raises(NotAvailableError, match="set XDG_CACHE_HOME"):
        user_cache()


def test_a_program_on_a_noexec_file_system_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark said no more than that it could not run it."""
    path = cached_script(tmp_path, "x", "#!/bin/sh\n")
    monkeypatch.setattr(os, "access", lambda *_: False)

    with pytest.raises(NotAvailableError, match=rf"{path} may not be run: .*noexec"):
        cached_script(tmp_path, "x", "#!/bin/sh\n")
