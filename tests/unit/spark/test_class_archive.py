"""A JVM is told of the archive of Spark's classes where there is one, and starts without it too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spark.cluster import class_archive


def test_a_jvm_is_told_of_the_archive_of_its_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    before = class_archive.options()
    class_archive.archive_path().parent.mkdir(parents=True)
    class_archive.archive_path().touch()

    assert before == []
    assert class_archive.options() == [
        f"-XX:SharedArchiveFile={tmp_path}/share/soakd/spark-classes.jsa",
        "-Xshare:auto",
    ]


def test_an_archive_that_cannot_be_made_is_said_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All works without it."""
    (tmp_path / "share").write_text("a file")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))

    assert class_archive.main() == 1
    assert "Spark will start in twice the time" in capsys.readouterr().err
