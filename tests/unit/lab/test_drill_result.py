"""When, where and of which state of the program a result of a drill is."""

from __future__ import annotations

import platform
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from soak.lab.drills import result
from soak.lab.drills.result import Result

ONE = Result(drill="d", seed=1, fault="f", expected="c", cause="c", is_passed=True)
AT_NS = 1_800_000_000 * 10**9


def test_a_result_says_when_where_and_of_what_it_is(tmp_path: Path) -> None:
    """Of a folder that is no checkout the version of the package stands in for a revision."""
    found = result.stamped(ONE, "kafka", "f", result.current_origin(AT_NS, tmp_path))

    assert (found.at, found.broker) == ("2027-01-15T08:00:00Z", "kafka")
    assert found.host == platform.node()
    assert found.revision == version("soakd")


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_checkout_that_was_changed_is_marked_but_not_for_its_docs(tmp_path: Path) -> None:
    """The results themselves are written to the docs."""

    def git(*words: str) -> str:
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        command = ["git", "-C", str(tmp_path), *who, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    (tmp_path / "docs" / "evidence").mkdir(parents=True)
    for name in ("code.py", "docs/evidence/drills.jsonl"):
        (tmp_path / name).write_text("old")
    git("init")
    git("add", ".")
    git("commit", "-m", "x")
    plain = git("describe", "--always")

    (tmp_path / "docs" / "evidence" / "drills.jsonl").write_text("new")
    with_results = result.current_origin(AT_NS, tmp_path).revision
    (tmp_path / "code.py").write_text("new")
    with_code = result.current_origin(AT_NS, tmp_path).revision

    assert (with_results, with_code) == (plain, f"{plain}-dirty")


def test_a_result_of_an_earlier_version_is_read() -> None:
    """Its keys had other names."""
    line = (
        '{"drill":"d","seed":1,"fault":"quiet","expected":"nothing","cause":"unknown","is_passed":false,'
        '"missed":["told","gone","onset"],"told_seconds":21.5,"gone_seconds":18.0,'
        '"untrusted_seconds":3,"told_cause":"drive_gc"}'
    )

    found = result.parse_result(line)

    assert found.missed == ["notified", "resolved", "onset"]
    assert (found.notified_seconds, found.resolved_seconds) == (21.5, 18.0)
    assert (found.invalid_seconds, found.notified_cause) == (3, "drive_gc")
