"""The audit of a run from its journals: by subscription, over gaps, for all clients of a source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.core.header import instance_of, stream_name
from soak.core.journal_format import End, columns_line, encode
from soak.core.model import Column, Event, Record, Span
from soak.core.plan import text
from soak.core.units import SECOND_NS
from soak.store.audit import audit_run, is_audited, is_loss_known, pack_part, part_reader
from soak.store.journal.merged import SegmentRecord, read_segment
from soak.store.journal.reader import SourceReader
from soak.store.run_folder import Run, RunFolder, read_plan, read_run
from tests.support.examples import examples
from tests.support.load.audit_histories import Action, Fed, actions, without_zeros, world_after
from tests.support.spark.synthetic_run import Shape, write_synthetic_run

RUN = Run("r-1", 0, "host", {}, "ended")
EMPTY = columns_line(())
Lines = list[Record | End]


def _plan(more: str = "", kafka: str = "{}") -> str:
    return f"name: x\nbroker: {{kafka: {kafka}}}\ntopic: {{name: t}}\n{more}"


def _record(k: int, epoch: int = 1, **streams: dict[str, tuple[Span, ...]]) -> Record:
    return Record(k, epoch, 0, 0, EMPTY.id, (), **streams)  # type: ignore[arg-type]  # spans only


def _write(folder: RunFolder, source: str, *files: Lines) -> None:
    home = folder.journal / source
    home.mkdir(parents=True)
    for number, lines in enumerate(files):
        raw = [encode(EMPTY), *(encode(line) for line in lines)]
        (home / f"{number:06d}.jsonl").write_bytes(b"".join(raw))


def test_each_consumer_reads_for_its_subscription(tmp_path: Path) -> None:
    """Four processes, two for each subscription; the last one misses 23 messages of its partition."""
    folder = RunFolder(tmp_path)
    plan = text.load(_plan("consumers: {subscriptions: 2, per_subscription: 2}\n"), "p").plan
    streams = [stream_name(instance_of(RUN.id, "produce.0@h"), 1, at) for at in (0, 1)]
    whole: tuple[Span, ...] = ((0, 99, 0, 99),)
    part: tuple[Span, ...] = ((0, 49, 0, 49), (73, 99, 73, 99))
    _write(folder, "produce.0@h", [_record(0, acknowledged=dict.fromkeys(streams, whole)), End(1)])
    for number in range(4):
        got = part if number == 3 else whole
        _write(folder, f"consume.{number}@h", [_record(0, received={streams[number % 2]: got})])

    audit = audit_run(folder, RUN, plan)

    assert (audit.verdict()["acked"], audit.verdict()["received"]) == (200, 377)
    assert [counts["lost"] for counts in audit.by_subscription()] == [0, 23]


def _of_parts(folder: RunFolder) -> Callable[[Path], Iterator[SegmentRecord | End]]:
    parts = {}
    for path in folder.journal.glob("*/*.jsonl"):
        reader = SourceReader(path.parent)
        if is_audited(path.parent.name):
            parts[path] = pack_part(list(read_segment(path, reader)), reader.ended_epoch)
    return part_reader(parts)


@pytest.mark.long
@pytest.mark.parametrize(
    "shape",
    [
        Shape(lost=23),
        Shape(gaps=(("consume.0@host", range(50, 60)), ("produce.0@host", range(70, 75)))),
        Shape(damaged_k=60, missed=7),
        Shape(is_read=False, is_ended=False),
    ],
    ids=["lost", "gaps", "damaged", "unread"],
)
def test_the_audit_of_parts_is_that_of_the_journals(tmp_path: Path, shape: Shape) -> None:
    """What is made of each file, and packed, holds all that the audit reads."""
    folder = write_synthetic_run(tmp_path / "run", shape)
    plan, run = read_plan(folder), read_run(folder)
    whole, parts = audit_run(folder, run, plan), audit_run(folder, run, plan, _of_parts(folder))

    assert parts.verdict() == whole.verdict()
    assert parts.by_subscription() == whole.by_subscription()


@pytest.mark.long
@given(
    actions(st.just(0), st.lists(st.sampled_from(["kept", "vanished"]), min_size=1, max_size=6)),
    st.integers(1, 9),
)
@settings(max_examples=examples(200))
def test_records_that_are_one_in_a_part_are_counted_as_apart(
    tmp_path_factory: pytest.TempPathFactory, history: list[Action], size: int
) -> None:
    """In files of some records each, against a world of which every message is known."""
    world = world_after(history, producers=1)
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    for writer in set(world.writers):
        fed = zip(world.records, world.writers, strict=True)
        lines = list(_seconds_apart([one for one, name in fed if name == writer]))
        files = [lines[at : at + size] for at in range(0, len(lines), size)]
        _write_with_columns(folder, writer, files)
    plan = text.load(_plan("consumers: {subscriptions: 2}\n"), "p").plan
    audit = audit_run(folder, RUN, plan, _of_parts(folder))
    for producer in world.producers:
        for instance, epoch in producer.ended:
            audit.ended(instance, epoch)
    found = without_zeros({key: count or 0 for key, count in audit.verdict().items()})

    assert found == without_zeros(world.truth())


def _seconds_apart(own: list[Fed]) -> Iterator[tuple[Record, tuple[Column, ...]]]:
    """Give the records of one source a second for each step of the world, so that no time is missing."""
    last_ns = own[0][0].at_ns * SECOND_NS - SECOND_NS
    for record, columns, _ in own:
        at_ns = record.at_ns * SECOND_NS
        events = tuple(replace(event, at_ns=event.at_ns * SECOND_NS) for event in record.events)
        length_ns, last_ns = at_ns - last_ns, at_ns
        yield replace(record, at_ns=at_ns, length_ns=length_ns, events=events), columns


def _write_with_columns(
    folder: RunFolder, source: str, files: list[list[tuple[Record, tuple[Column, ...]]]]
) -> None:
    home = folder.journal / source
    home.mkdir(parents=True)
    for number, lines in enumerate(files):
        raw = []
        for record, columns in lines:
            named = columns_line(columns)
            raw += [encode(named), encode(replace(record, columns_id=named.id))]
        (home / f"{number:06d}.jsonl").write_bytes(b"".join(raw))


def test_events_of_the_audit_are_in_its_parts(tmp_path: Path) -> None:
    """Messages that expired or failed, offsets that did not come, a final position; a record twice."""
    folder = RunFolder(tmp_path)
    plan = text.load(_plan(), "p").plan
    stream = stream_name(instance_of(RUN.id, "produce.0@h"), 1, 0)
    sent = replace(_record(0, acknowledged={stream: ((0, 99, 0, 99),)}), sent_next={stream: 120})
    failed = Event("send_failed", 5, 4, {"lane": stream, "first": 100, "last": 109})
    read = _record(1, received={stream: ((40, 79, 40, 79),)})
    events = (
        Event("expired", 1, 0, {"partition": 0, "from_offset": 0, "to_offset": 30}),
        Event("offset_gap", 2, 1, {"partition": 0, "from_offset": 30, "to_offset": 40}),
        Event("clock_step", 2, 1, {"seconds": 3.5}),
        Event("final_position", 3, 2, {"partition": 0, "position": 80, "log_end": 90}),
    )
    _write(folder, "produce.0@h", [sent, replace(_record(1), events=(failed,))], [sent])
    _write(folder, "consume.0@h", [read, read, replace(_record(2), events=events), End(1)])
    whole, parts = audit_run(folder, RUN, plan), audit_run(folder, RUN, plan, _of_parts(folder))

    assert whole.verdict()["expired"] == 30
    assert parts.verdict() == whole.verdict()


def test_a_source_ends_for_all_of_its_clients(tmp_path: Path) -> None:
    """Its first epoch was killed, so its unacknowledged messages are unknown; the second one ended."""
    folder = RunFolder(tmp_path)
    plan = text.load(_plan("load: {clients_per_producer: 3}\n"), "p").plan
    _write(folder, "produce.0@h", [_record(0)], [_record(1, 2), End(2)])
    arrived: dict[str, tuple[Span, ...]] = {
        stream_name(instance_of(RUN.id, "produce.0@h", client), epoch, 0): ((0, 9, 0, 9),)
        for client in range(3)
        for epoch in (1, 2)
    }
    _write(folder, "consume.0@h", [_record(1, received=arrived)])

    verdict = audit_run(folder, RUN, plan).verdict()

    assert (verdict["received"], verdict["unknown"], verdict["received_unacked"]) == (60, 30, 30)


def test_a_damaged_record_of_a_consumer_is_no_loss(tmp_path: Path) -> None:
    """The 100 messages of interval 1 are unknown; the 23 of interval 3 are lost."""
    folder = RunFolder(tmp_path)
    name = stream_name(instance_of(RUN.id, "produce.0@h"), 1, 0)
    sent: tuple[Span, ...] = ((0, 499, 0, 499),)
    _write(folder, "produce.0@h", [_record(0, acknowledged={name: sent}), End(1)])
    got = [(at, at + 99 - 23 * (at == 300)) for at in range(0, 500, 100)]
    lines: Lines = [
        _record(k, received={name: ((first, last, first, last),)})
        for k, (first, last) in enumerate(got)
    ]
    _write(folder, "consume.0@h", lines)
    path = folder.journal / "consume.0@h" / "000000.jsonl"
    raw = path.read_bytes().splitlines(keepends=True)
    raw[2] = b"#" * 40 + raw[2][40:]
    path.write_bytes(b"".join(raw))

    verdict = audit_run(folder, RUN, text.load(_plan(), "p").plan).verdict()

    assert (verdict["received"], verdict["unknown"], verdict["lost"]) == (377, 100, 23)


@pytest.mark.parametrize("missing", ["000000.jsonl", "000001.jsonl"])
def test_what_a_missing_file_of_a_consumer_held_is_no_loss(tmp_path: Path, missing: str) -> None:
    """It was restarted twice, and what it read in one part is gone: 100 messages; 23 others are lost."""
    folder = RunFolder(tmp_path)
    name = stream_name(instance_of(RUN.id, "produce.0@h"), 1, 0)
    sent: tuple[Span, ...] = ((0, 299, 0, 299),)
    _write(folder, "produce.0@h", [_record(0, acknowledged={name: sent}), End(1)])
    got: list[tuple[Span, ...]] = [
        ((0, 99, 0, 99),),
        ((100, 199, 100, 199),),
        ((200, 249, 200, 249), (273, 299, 273, 299)),
    ]
    files: list[Lines] = [[_record(k, k + 1, received={name: got[k]})] for k in range(3)]
    _write(folder, "consume.0@h", *files)
    (folder.journal / "consume.0@h" / missing).unlink()

    verdict = audit_run(folder, RUN, text.load(_plan(), "p").plan).verdict()

    assert (verdict["received"], verdict["unknown"], verdict["lost"]) == (177, 100, 23)


def test_messages_of_a_missing_record_are_unknown(tmp_path: Path) -> None:
    """The producer ended on purpose, but no record has the acknowledgements of its received messages."""
    folder = RunFolder(tmp_path)
    name = stream_name(instance_of(RUN.id, "produce.0@h"), 1, 0)
    whole: tuple[Span, ...] = ((0, 9, 0, 9),)
    first, last = (
        Record(k, 1, (k + 1) * SECOND_NS, SECOND_NS, EMPTY.id, (), sent_next={name: 10})
        for k in (0, 2)
    )
    _write(folder, "produce.0@h", [first, last, End(1)])
    _write(folder, "consume.0@h", [_record(3, received={name: whole})])

    verdict = audit_run(folder, RUN, text.load(_plan(), "p").plan).verdict()

    assert (verdict["unknown"], verdict["received_unacked"]) == (10, 0)


def test_without_acknowledgements_loss_is_not_known() -> None:
    """Whichever name of the setting the plan uses."""
    for producer in (
        'producer: {acks: "0"}',
        'producer: {request.required.acks: "0"}',
        'common: {acks: "0"}, producer: {linger.ms: 1}',
        'common: {acks: all}, producer: {request.required.acks: "0"}',
    ):
        assert not is_loss_known(text.load(_plan(kafka=f"{{{producer}}}"), "p").plan)
    assert is_loss_known(text.load(_plan(), "p").plan)


def test_a_consumer_that_the_plan_does_not_have_is_shown(tmp_path: Path) -> None:
    """A journal of a fourth consumer lies in the folder of a run with one."""
    folder = RunFolder(tmp_path)
    name = stream_name(instance_of(RUN.id, "produce.0@h"), 1, 0)
    got: dict[str, tuple[Span, ...]] = {name: ((0, 9, 0, 9),)}
    _write(folder, "produce.0@h", [_record(0, acknowledged=got), End(1)])
    for number in (0, 3):
        _write(folder, f"consume.{number}@h", [_record(0, received=got)])

    verdict = audit_run(folder, RUN, text.load(_plan(), "p").plan).verdict()

    assert (verdict["received"], verdict["lost"], verdict["received_unplanned"]) == (10, 0, 10)
