"""A run folder: its plan, and errors that say which file cannot be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from soak.core.cluster.drives import Measured
from soak.core.errors import RunFolderError
from soak.core.plan import text as plan_text
from soak.store.run_folder import RunFolder, append_drive_checks, write_plan

WITH_SECRETS = """
name: p
broker: {kafka: {bootstrap_servers: 'h:9', common: {sasl.password: '${credential:soak_sasl}'}}}
sinks: {webhook: {url: 'https://a', token: '${credential:soak_token}'}}
"""


def test_the_plan_of_a_run_holds_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group may read it: it names the credentials, and does not contain them."""
    (tmp_path / "soak_sasl").write_text("hush")
    (tmp_path / "soak_token").write_text("hush")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    folder = RunFolder(tmp_path)
    before = os.umask(0o022)
    try:
        write_plan(folder, plan_text.load(WITH_SECRETS, "p").plan)
    finally:
        os.umask(before)
    text = folder.plan.read_text()

    assert folder.plan.stat().st_mode & 0o777 == 0o640
    assert "hush" not in text
    assert "${credential:soak_sasl}" in text
    assert "${credential:soak_token}" in text


def test_a_drive_check_that_cannot_be_written_names_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run folder may belong to another user."""

    def refuse(*_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuse)

    with pytest.raises(RunFolderError, match=r"^cannot write /.*/b\.json: permission denied$"):
        append_drive_checks(RunFolder(tmp_path), [Measured("b", ("/data",), "before", 0)])
