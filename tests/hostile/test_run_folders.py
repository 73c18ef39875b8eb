"""Run folders of another host, or that hold garbage: clear errors, and no file of this host leaves it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from soak.app.analysis.fleet import overview
from soak.app.live.folder import ServedFolder
from soak.core import json_text
from soak.core.clock import SystemClock
from soak.core.cluster.drives import Measured, to_json
from soak.core.errors import SoakError
from soak.store.findings.store import FindingsStore
from soak.store.journal.reader import segment_name
from soak.store.merge import MAX_SEGMENT_BYTES, merge_run_folder
from soak.store.run_folder import (
    RunFolder,
    append_drive_checks,
    read_acknowledged,
    read_any_plan,
    read_created_topics,
    read_drive_checks,
    read_phases,
    read_run,
    read_sender_id,
)
from spark.batch.comparison.run import read_summary
from spark.batch.outcomes import forecast_of
from spark.report.job import drill_of, durability_of
from tests.support.fakes import FakeClock
from tests.support.hostile_servers import rounds
from tests.support.live import written_run

RUN = {
    "id": "r1",
    "start_wall_ns": 10**18,
    "host": "b",
    "versions": {},
    "state": "ended",
    "name": "x",
}
SECRET = "swordfish"
SEGMENT = "000000.jsonl"


def folder_of(path: Path, host: str) -> RunFolder:
    folder = RunFolder(path)
    (folder.journal / f"probe@{host}").mkdir(parents=True)
    (folder.journal / f"probe@{host}" / SEGMENT).write_text("line\n")
    folder.run_json.write_text(json.dumps({**RUN, "host": host}))
    folder.drives.mkdir()
    return folder


def linked(target: Path, secret: Path) -> None:
    target.unlink(missing_ok=True)
    target.symlink_to(secret)


def piped(target: Path, _: Path) -> None:
    target.unlink(missing_ok=True)
    os.mkfifo(target)


def zeros(target: Path, _: Path) -> None:
    target.unlink(missing_ok=True)
    target.symlink_to("/dev/zero")


def huge(target: Path, _: Path, size_bytes: int = 2**40) -> None:
    with target.open("wb") as file:
        file.truncate(size_bytes)


@pytest.mark.parametrize("made", [linked, piped, zeros, huge])
@pytest.mark.parametrize("name", [f"journal/probe@b/{SEGMENT}", "drives/b.json", "run.json"])
def test_only_plain_files_of_another_host_are_read(
    tmp_path: Path, name: str, made: Callable[[Path, Path], None]
) -> None:
    """A link, a pipe, a device or a huge file in place of ours is an error that names it, at once."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    into, part = folder_of(tmp_path / "a", "a"), folder_of(tmp_path / "b", "b")
    made(part.path / name, secret)

    with pytest.raises(SoakError, match=name.rpartition("/")[2]):
        merge_run_folder(into, part)

    texts = [path.read_text() for path in into.path.rglob("*") if path.is_file()]
    assert not any(SECRET in text for text in texts)
    assert name.startswith("drives") or not list(into.journal.glob("probe@b"))


@pytest.mark.parametrize("name", ["journal", "journal/probe@b", "drives"])
def test_a_link_in_place_of_a_folder_is_not_followed(tmp_path: Path, name: str) -> None:
    into, part = folder_of(tmp_path / "a", "a"), folder_of(tmp_path / "b", "b")
    elsewhere = tmp_path / "elsewhere"
    (part.path / name).rename(elsewhere)
    (part.path / name).symlink_to(elsewhere)

    with pytest.raises(SoakError, match="links are not followed"):
        merge_run_folder(into, part)

    assert name == "drives" or not list(into.journal.glob("probe@b"))


def test_files_of_other_names_stay_where_they_are(tmp_path: Path) -> None:
    into, part = folder_of(tmp_path / "a", "a"), folder_of(tmp_path / "b", "b")
    for name in ("journal/probe@b/x.jsonl", "journal/probe@b/.000001.jsonl", "drives/.x.json"):
        (part.path / name).write_text(SECRET)
    (part.journal / "..@b").mkdir()
    (part.journal / "probe@b\x1b[2J").mkdir()

    assert merge_run_folder(into, part) == ["probe@b"]
    assert [path.name for path in (into.journal / "probe@b").iterdir()] == [SEGMENT]


def test_sparse_segments_leave_the_floor_of_the_first_host_free(tmp_path: Path) -> None:
    """Each of them fits, and all together do not: nothing is written."""
    into, part = folder_of(tmp_path / "a", "a"), folder_of(tmp_path / "b", "b")
    floor = shutil.disk_usage(into.path).free - 2 * MAX_SEGMENT_BYTES
    into.plan.write_text(f"name: x\nprobes: {{pressure: {{}}}}\nfree_space_floor: {floor}B\n")
    for number in range(1, 5):
        huge(part.journal / "probe@b" / segment_name(number), tmp_path, MAX_SEGMENT_BYTES)

    with pytest.raises(SoakError, match=r"probe@b has 1,073,741,829 bytes, .* free_space_floor of"):
        merge_run_folder(into, part)

    assert [path.name for path in into.journal.iterdir()] == ["probe@a"]
    assert not list(into.path.glob(".*"))


OWN, THEIRS = Measured("a", ("/data",), "before", 1), Measured("b", ("/data",), "before", 2)
FORGED = replace(OWN, fsync_p99_seconds=9.0)


def test_no_host_replaces_what_another_one_measured_of_its_drives(tmp_path: Path) -> None:
    """Neither the checks of the first host nor those that were merged before: some are only added."""
    into, part = folder_of(tmp_path / "a", "a"), folder_of(tmp_path / "b", "b")
    append_drive_checks(into, [OWN, replace(OWN, host="c")])
    append_drive_checks(part, [FORGED, THEIRS, replace(FORGED, host="c", at_wall_ns=3)])

    assert merge_run_folder(into, part) == ["probe@b", "drives/b.json", "drives/c.json"]

    assert read_drive_checks(into) == [
        *(OWN, replace(OWN, host="c"), THEIRS, replace(FORGED, host="c", at_wall_ns=3))
    ]
    assert merge_run_folder(into, part) == []


@pytest.mark.parametrize(
    "measured",
    [FORGED, replace(THEIRS, host="../../x"), replace(THEIRS, fsync_p99_seconds=math.nan)],
)
def test_drive_checks_in_the_file_of_another_host_are_an_error(
    tmp_path: Path, measured: Measured
) -> None:
    """A host cannot speak for the first one in a file of its own, nor name a file elsewhere."""
    into, part = folder_of(tmp_path / "a", "a"), folder_of(tmp_path / "b", "b")
    (part.drives / "b.json").write_text(json.dumps({"drives": [to_json(measured)]}))

    with pytest.raises(SoakError, match=r"b\.json is damaged"):
        merge_run_folder(into, part)

    assert read_drive_checks(into) == []


READERS: dict[str, Callable[[RunFolder], object]] = {
    "run.json": read_run,
    "topics.json": read_created_topics,
    "acknowledged.json": read_acknowledged,
    "phases.jsonl": lambda folder: read_phases(folder.phases),
    "drives/b.json": read_drive_checks,
    "plan.yaml": read_any_plan,
    "durability.json": durability_of,
    "forecast.json": forecast_of,
    "lab/faults.jsonl": drill_of,
    "report/summary.json": read_summary,
}
DEEP = "[" * 100_000
GARBAGE: list[Any] = [
    *(
        b"",
        b"\x00" * 100,
        b"\xff\xfe",
        DEEP.encode(),
        b'{"a":' * 50_000,
        b"null",
        b"[]",
        b"7",
        b'"x"',
    ),
    *(b"{}", b'{"drives": 7}', b'{"drives": [7]}', b'{"drives": [{"state": 7}]}', b"1" * 5000),
    *(b'{"id": {"a": 1}}', b'{"asked": 7, "made": 7}', b'{"t": "end", "k": 1e400}', b"NaN"),
]


@pytest.mark.long
@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_in_a_file_of_a_run_is_an_error_that_names_it(
    tmp_path: Path, name: str, garbage: bytes
) -> None:
    folder = folder_of(tmp_path / "b", "b")
    (folder.path / name).parent.mkdir(exist_ok=True)
    (folder.path / name).write_bytes(garbage)

    with contextlib.suppress(SoakError):
        READERS[name](folder)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("made", [piped, zeros, huge])
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_small_file_of_a_run_is_an_error_that_names_it_at_once(
    tmp_path: Path, name: str, made: Callable[[Path, Path], None]
) -> None:
    """A pipe is not waited for, a device is not read for ever, and a huge file not into memory."""
    folder = folder_of(tmp_path / "b", "b")
    (folder.path / name).parent.mkdir(exist_ok=True)
    made(folder.path / name, tmp_path)

    with pytest.raises(SoakError, match=name):
        READERS[name](folder)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("made", [piped, zeros, huge])
def test_a_run_whose_sender_is_no_small_file_has_none(
    tmp_path: Path, made: Callable[[Path, Path], None]
) -> None:
    folder = folder_of(tmp_path / "b", "b")
    made(folder.path / "sender", tmp_path)

    assert read_sender_id(folder) == ""


@pytest.mark.timeout(20)
def test_an_overview_of_runs_leaves_out_the_one_with_a_pipe(tmp_path: Path) -> None:
    """The others are read, and it is named."""
    for name in "ab":
        folder = folder_of(tmp_path / name, name)
        folder.summary.parent.mkdir()
        summary = {"run": name, "name": "n", "start": "", "verdict": "clean", "findings": []}
        folder.summary.write_text(json.dumps(summary))
    piped(folder.summary, tmp_path)

    found = overview([tmp_path], None, FakeClock())

    assert [one.run for one in found.runs] == ["a"]
    assert [str(folder.summary) in one for one in found.unread] == [True]


@pytest.mark.parametrize("name", READERS)
def test_a_folder_in_place_of_a_file_is_an_error(tmp_path: Path, name: str) -> None:
    folder = folder_of(tmp_path / "b", "b")
    (folder.path / name).unlink(missing_ok=True)
    (folder.path / name).mkdir(parents=True)

    with contextlib.suppress(SoakError):
        READERS[name](folder)


@pytest.mark.parametrize(
    "line", ['{"phase":"warmup","from_k":1}', "7", '{"phase":"soak","from_k":"x"}', "{}"]
)
def test_phases_that_are_damaged_take_no_other_run_from_the_list(tmp_path: Path, line: str) -> None:
    """The list says which file is damaged; it was not shown at all."""
    for name in ("bad", "good"):
        written_run(tmp_path / name)
    with (tmp_path / "bad" / "phases.jsonl").open("a") as file:
        file.write(f"{line}\n")

    runs, _ = ServedFolder(tmp_path).runs(SystemClock().wall_ns())

    assert {one.name: one.state for one in runs} == {
        "bad": "phases.jsonl is damaged",
        "good": "running",
    }


def test_any_value_in_run_json_is_a_run_or_an_error(tmp_path: Path) -> None:
    """Keys with values of other kinds and sizes: what is read has the types that the program relies on."""
    folder = folder_of(tmp_path / "b", "b")
    for source in rounds("run.json", 300):
        body = {**RUN, source.choice([*RUN, "only", "new"]): _value(source)}
        folder.run_json.write_text(json.dumps(body))
        try:
            run = read_run(folder)
        except SoakError:
            continue
        assert isinstance(run.id, str)
        assert type(run.start_wall_ns) is int
        assert all(isinstance(one, str) for one in (*run.only, *run.versions.values(), run.state))


def _value(source: random.Random) -> object:
    return source.choice(
        [
            *(None, True, 0, -1, 2**63, 10**400, 1.5, float("nan"), float("inf"), "", "\x1b[2J"),
            *("x" * 10_000, [], [1], ["a"], {}, {"a": 1}, {"a": "b"}, [[]], "\u202e", "\ud800"),
        ]
    )


@pytest.mark.parametrize(
    "garbage", [b"", b"garbage" * 1000, b"SQLite format 3\x00" + b"\xff" * 4096]
)
def test_garbage_in_findings_is_an_error_or_a_new_store(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "findings.db"
    path.write_bytes(garbage)

    with contextlib.suppress(SoakError), FindingsStore(path) as store:
        assert store.findings("r1") == []


HALVES = ('"\\ud800"', '{"\\udfff": 1}', '"\\ud800\\ud800"', '"\ud800"', b'"\xed\xa0\x80"')
NOT_FINITE = ("NaN", "[Infinity]", "-Infinity", "1e999", '{"a": -1E400}', "9" * 400 + ".5")
LARGE = (DEEP, '{"a":' * 50_000, "1" * 5000, "-" + "9" * 400, b"\xff\xfe[", "{")


@pytest.mark.parametrize("text", [*LARGE, *HALVES, *NOT_FINITE], ids=lambda text: ascii(text)[:40])
def test_json_of_others_is_a_value_or_a_value_error(text: str | bytes) -> None:
    """Depth and size of numbers included: `RecursionError` and `OverflowError` end a daemon.

    Half a surrogate pair cannot be written again, and what is not finite spoils each sum.
    """
    with pytest.raises(ValueError, match=r"."):
        json_text.loads(text)


def test_both_halves_of_a_character_and_an_escaped_backslash_are_read() -> None:
    text = r'["\ud83d\ude00", "\\ud800", "\u0000"]'

    assert (
        json_text.loads(text) == json_text.loads(text.encode()) == ["\U0001f600", r"\ud800", "\0"]
    )


def test_numbers_of_clusters_are_read() -> None:
    """Unsigned and signed ones of 64 bits."""
    assert json_text.loads("[18446744073709551615, -9223372036854775808, 1.5e300]") == [
        2**64 - 1,
        -(2**63),
        1.5e300,
    ]
