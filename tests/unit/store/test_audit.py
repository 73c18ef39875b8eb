"""The audit of a run from its journals: by subscription, over gaps, for all clients of a source."""

from __future__ import annotations

from pathlib import Path

from soak.core.header import instance_of, stream_name
from soak.core.journal_format import End, columns_line, encode
from soak.core.model import Record, Span
from soak.core.plan import text
from soak.core.units import SECOND_NS
from soak.store.audit import audit_run, is_loss_known
from soak.store.run_folder import Run, RunFolder

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
    for settings in (
        'producer: {acks: "0"}',
        'producer: {request.required.acks: "0"}',
        'common: {acks: "0"}, producer: {linger.ms: 1}',
        'common: {acks: all}, producer: {request.required.acks: "0"}',
    ):
        assert not is_loss_known(text.load(_plan(kafka=f"{{{settings}}}"), "p").plan)
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
