"""The oracle of `make chaos` on a run that is known: content with it, and with nothing that is missing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from soak.core.header import instance_of, stream_name
from soak.core.journal_format import columns_line, encode
from soak.core.model import Column, Record
from soak.store.findings.store import FindingsStore
from soak.store.run_folder import RunFolder, write_run
from tests.chaos.kept import Kept
from tests.chaos.oracle import Known, complaints
from tests.chaos.planted import Planted
from tests.support.alerting.findings import NOW, finding
from tests.unit.app.test_lifecycle import RUN

SOURCE = "probe@host"
AUDIT = {"lost": 0, "duplicated": 0, "expired": 0, "received": 23, "acked": 22}


def written(k: int) -> bytes:
    """Return the lines of one second."""
    columns = columns_line((Column("up"),))
    record = Record(k=k, epoch=1, at_ns=0, length_ns=1, columns_id=columns.id, values=(1.0,))
    return encode(columns) + encode(record)


@dataclasses.dataclass
class World:
    """A run of which four seconds were written, one finding was saved, and its mail came."""

    folder: RunFolder
    summary: dict[str, Any]
    known: Known


@pytest.fixture
def world(tmp_path: Path) -> World:
    folder = RunFolder(tmp_path / "run")
    (folder.journal / SOURCE).mkdir(parents=True)
    write_run(folder, dataclasses.replace(RUN, start_wall_ns=0))
    (folder.journal / SOURCE / "000000.jsonl").write_bytes(b"".join(map(written, range(4))))
    kept, planted = Kept(folder.journal), Planted(folder, RUN.id, f"{SOURCE}|up")
    kept.note()
    planted.plant(10, NOW)
    summary = {"audit": dict(AUDIT), "coverage": {"gaps": []}, "findings": []}
    return World(folder, summary, Known(kept, planted, {"planted-1.confirmed": 2}, 23))


def said(world: World) -> str:
    return "\n".join(complaints(world.folder, world.summary, world.known))


def forget_a_record(world: World) -> None:
    (world.folder.journal / SOURCE / "000000.jsonl").write_bytes(written(0))


def cut_in_silence(world: World) -> None:
    world.known.kept.truncate(SOURCE, 1)


def forget_a_finding(world: World) -> None:
    world.folder.findings.unlink()


def tell_nobody(world: World) -> None:
    world.known = dataclasses.replace(world.known, came={})


def lose_a_message(world: World) -> None:
    world.summary["audit"]["lost"] = 1


def miscount(world: World) -> None:
    world.known = dataclasses.replace(world.known, in_topic=24)


def stop_detecting(world: World) -> None:
    gap = {"source": "detector", "from": "1970-01-01T00:00:00Z", "seconds": 0, "why": "behind"}
    world.summary["coverage"]["gaps"] = [gap]


def blame(world: World) -> None:
    alert = {"key": "r1-9", "at": "1970-01-01T00:01:00Z", "metric": "m", "cause": "network"}
    world.summary["findings"] = [{**alert, "is_about_cluster": True}]


def test_a_run_as_it_must_be_has_no_complaint(world: World) -> None:
    """Also one of which a mail came twice: its Message-ID tells."""
    assert said(world) == ""


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (forget_a_record, "something that was written is not there"),
        (cut_in_silence, "second 3 was cut out and is no gap"),
        (forget_a_finding, "finding planted-1 was saved and is lost"),
        (tell_nobody, "mail planted-1.confirmed never came"),
        (lose_a_message, "audit: 1 lost"),
        (miscount, "23 received, 0 cut out, and the broker holds 24"),
        (stop_detecting, "detector: behind"),
        (blame, "false alert r1-9: m from second 60, network"),
    ],
)
def test_whatever_is_not_as_it_must_be_is_a_complaint(
    world: World, harm: Callable[[World], None], complaint: str
) -> None:
    """Each alone."""
    harm(world)

    assert complaint in said(world)


@pytest.mark.parametrize("fraction_ns", [0, 1, 400_000_000, 999_999_999])
def test_a_gap_of_one_second_is_the_one_that_was_cut_out(world: World, fraction_ns: int) -> None:
    """Wherever in a second of the clock the run began: a gap's instant is reported without its fraction."""
    write_run(world.folder, dataclasses.replace(RUN, start_wall_ns=fraction_ns))
    world.known.kept.truncate(SOURCE, 0)
    gap = {"source": SOURCE, "from": "1970-01-01T00:00:03Z", "seconds": 1, "why": "no record"}
    world.summary["coverage"]["gaps"] = [gap]

    assert said(world) == ""


def test_messages_of_a_consumer_s_record_that_was_spoilt_are_none_of_the_audit(
    world: World,
) -> None:
    source = "consume.0@host"
    columns = columns_line((Column("up"),))
    stream = stream_name(instance_of(RUN.id, "produce.0@host"), 1, 0)
    spans = {stream: ((10, 19, 0, 9), (30, 30, 10, 10))}
    record = Record(7, 1, 0, 1, columns.id, (1.0,), received=spans)
    (world.folder.journal / source).mkdir()
    (world.folder.journal / source / "000000.jsonl").write_bytes(encode(columns) + encode(record))
    world.known.kept.overwrite(source)
    world.known = dataclasses.replace(world.known, in_topic=23 + 11)
    gap = {"source": source, "from": "1970-01-01T00:00:07Z", "seconds": 1, "why": "no record"}
    world.summary["coverage"]["gaps"] = [gap]

    assert said(world) == ""


def test_what_is_found_while_the_cluster_was_ill_is_true(world: World) -> None:
    """Its broker was killed a moment before."""
    blame(world)
    world.known = dataclasses.replace(world.known, excused=[(50, 55)])

    assert said(world) == ""


def test_a_mail_of_nothing_that_was_saved_is_a_complaint(world: World) -> None:
    """Somebody was woken by it, whatever the report says later."""
    came = {**world.known.came, "r1-9.confirmed": 1}
    world.known = dataclasses.replace(world.known, came=came)

    assert "mail r1-9.confirmed" in said(world)


def test_a_finding_falls_back_in_silence_no_more(world: World) -> None:
    """One that was gone and is confirmed again was written by something older."""
    gone = finding("gone", key="planted-1", run=RUN.id, resolved_k=20)
    world.known.planted.saved["planted-1"] = gone
    with FindingsStore(world.folder.findings) as store:
        assert [one.state for one in store.findings(RUN.id)] == ["confirmed"]

    assert "finding planted-1 is confirmed, it was gone" in said(world)
