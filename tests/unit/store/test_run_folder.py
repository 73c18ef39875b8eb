"""A run folder: its plan, and errors that say which file cannot be written."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from soak.core.cluster.drives import Measured
from soak.core.errors import RunFolderError
from soak.core.plan import text as plan_text
from soak.core.plan.plan import Plan
from soak.store.run_folder import (
    RunFolder,
    append_drive_checks,
    read_any_plan,
    read_plan,
    write_plan,
)
from tests.support.fakes import refuse

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


@pytest.mark.parametrize("read", [read_plan, read_any_plan])
def test_former_keys_in_the_plan_of_a_run_are_read_without_a_warning(
    tmp_path: Path, read: Callable[[RunFolder], object]
) -> None:
    """An earlier version of soakd wrote them, not the user."""
    folder = RunFolder(tmp_path)
    folder.plan.write_text("name: p\nbroker: {kafka: {}}\nalerts: {most_per_hour: 7}\n")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = read(folder)

    assert isinstance(plan, Plan)
    assert plan.alerts.max_per_hour == 7


def test_a_drive_check_that_cannot_be_written_names_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run folder may belong to another user."""
    monkeypatch.setattr(os, "open", refuse)

    with pytest.raises(RunFolderError, match=r"^cannot write /.*/b\.json: permission denied$"):
        append_drive_checks(RunFolder(tmp_path), [Measured("b", ("/data",), "before", 0)])
