"""The log of what was injected cannot be read before it is published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from soak.core.errors import LabError
from soak.lab.fault_log import FaultLog


def test_nothing_is_visible_before_it_is_published(tmp_path: Path) -> None:
    """The folder is empty while lines are written; afterwards they are all there, in order."""
    log = FaultLog(tmp_path)
    for number in range(23):
        log.record({"burst": number})
    assert list(tmp_path.iterdir()) == []

    log.publish(tmp_path / "faults.jsonl")
    log.close()

    lines = (tmp_path / "faults.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"burst": number} for number in range(23)]


def test_a_filesystem_without_nameless_files_gets_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linking fails there; the content is the same."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("os.link", refuse)
    log = FaultLog(tmp_path)
    log.record({"burst": 1})

    log.publish(tmp_path / "faults.jsonl")
    log.close()

    assert [path.name for path in tmp_path.iterdir()] == ["faults.jsonl"]
    assert (tmp_path / "faults.jsonl").read_text() == '{"burst":1}\n'


def test_an_earlier_log_is_never_overwritten(tmp_path: Path) -> None:
    """The run was resumed, or the folder is not this run's."""
    path = tmp_path / "faults.jsonl"
    path.write_text("earlier\n")
    log = FaultLog(tmp_path)

    with pytest.raises(LabError, match="exists already"):
        log.publish(path)
    log.close()

    assert path.read_text() == "earlier\n"


def test_a_log_that_is_full_says_so_and_grows_no_more(tmp_path: Path) -> None:
    """A fault that runs for days must not fill the drive."""
    log = FaultLog(tmp_path, limit_lines=3)
    for number in range(10):
        log.record({"n": number})

    log.publish(tmp_path / "f")
    log.close()

    assert (tmp_path / "f").read_text() == '{"n":0}\n{"n":1}\n{"truncated":true}\n'
