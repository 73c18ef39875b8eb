"""Archives of classes: which JVM writes one, which uses it, and what is never kept."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from soak.service.class_archive import ClassArchive

IN_ORDER = 128 + signal.SIGTERM
DUMPING = """#!/bin/sh
for argument do
  case "$argument" in -XX:SharedArchiveFile=*) echo classes > "${argument#*=}" ;; esac
done
"""


def home_of(path: Path, java: str) -> Path:
    program = path / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(java)
    program.chmod(0o755)
    (path / "release").write_text('JAVA_VERSION="21.0.8"\n')
    return path


def write(archive: ClassArchive, text: str) -> None:
    """Do what a JVM with the archive's options does when it ends."""
    (found,) = re.findall("-XX:ArchiveClassesAtExit=(.*)", "\n".join(archive.writing_options()))
    Path(found).write_text(text)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return home_of(tmp_path / "java", DUMPING)


def test_a_jvm_uses_what_an_earlier_one_wrote(home: Path, tmp_path: Path) -> None:
    first, later = (ClassArchive(tmp_path / "classes", home) for _ in range(2))
    before = later.options()
    write(first, "of the first")
    first.keep(IN_ORDER)

    (_, option) = later.options()
    base, program = option.removeprefix("-XX:SharedArchiveFile=").split(":")
    assert before == []
    assert Path(base).read_text() == "classes\n"
    assert Path(program).read_text() == "of the first"
    assert later.writing_options() == later.options()
    assert (later.more_seconds, len(list((tmp_path / "classes").iterdir()))) == (0, 2)


def test_of_two_that_end_at_once_the_first_one_s_is_kept(home: Path, tmp_path: Path) -> None:
    """The other may be in use by then."""
    first, second = (ClassArchive(tmp_path / "classes", home) for _ in range(2))
    write(first, "of the first")
    write(second, "of the second")
    first.keep(0)
    second.keep(0)

    kept = {path.read_text() for path in (tmp_path / "classes").iterdir()}
    assert kept == {"classes\n", "of the first"}


@pytest.mark.parametrize("status", [1, -signal.SIGKILL], ids=["failed", "killed"])
def test_what_a_jvm_left_that_did_not_end_in_order_is_removed(
    status: int, home: Path, tmp_path: Path
) -> None:
    """It may be half an archive, or one of a start that failed."""
    archive = ClassArchive(tmp_path / "classes", home)
    write(archive, "half")
    archive.keep(status)

    assert archive.options() == []
    assert [path.read_text() for path in (tmp_path / "classes").iterdir()] == ["classes\n"]


def test_a_java_that_cannot_archive_runs_without(tmp_path: Path) -> None:
    archive = ClassArchive(tmp_path / "classes", home_of(tmp_path / "java", "#!/bin/sh\nexit 1\n"))

    assert archive.writing_options() == []


def test_an_archive_belongs_to_one_java(home: Path, tmp_path: Path) -> None:
    """Another Java would refuse it, and none would write a new one."""
    archive = ClassArchive(tmp_path / "classes", home)
    write(archive, "of 21")
    archive.keep(0)
    (home / "release").write_text('JAVA_VERSION="25.0.1"\n')

    assert archive.options() == []
