"""The archive of Spark's classes: its JVMs use it where there is one, and start without it too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spark.cluster import class_archive


def test_an_archive_that_cannot_be_made_is_reported_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All works without it."""
    (tmp_path / "share").write_text("a file")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))

    assert class_archive.main() == 1
    assert "Spark will start in twice the time" in capsys.readouterr().err
