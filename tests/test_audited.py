"""A run's audit from its journals: in order of time, by subscription, of all of a source's clients."""

from __future__ import annotations

from pathlib import Path

from soak.core import plan_text
from soak.core.header import instance_of, lane
from soak.core.journal_text import End, columns_line, encode
from soak.core.model import Record, Span
from soak.store.audited import audited, is_loss_known
from soak.store.merged_reader import MergedReader
from soak.store.run_folder import Run, RunFolder

RUN = Run("r-1", 0, "host", {}, "ended")
EMPTY = columns_line(())
Lines = list[Record | End]


def _plan(more: str = "", kafka: str = "{}") -> str:
    return f"name: x\nbroker: {{kafka: {kafka}}}\ntopic: {{name: t}}\n{more}"


def _record(k: int, inc: int = 1, **lanes: dict[str, tuple[Span, ...]]) -> Record:
    return Record(k, inc, 0, 0, EMPTY.id, (), **lanes)  # type: ignore[arg-type]  # spans only


def _write(folder: RunFolder, source: str, *files: Lines) -> None:
    home = folder.journal / source
    home.mkdir(parents=True)
    for number, lines in enumerate(files):
        raw = [encode(EMPTY), *(encode(line) for line in lines)]
        (home / f"{number:06d}.jsonl").write_bytes(b"".join(raw))


def test_records_of_all_sources_come_in_order_of_time_and_once(tmp_path: Path) -> None:
    """Over two files of a source, with a repeated record, and of one second as the sources are named."""
    folder = RunFolder(tmp_path)
    _write(folder, "b@h", [_record(0), _record(2), _record(2), End(1)], [_record(4, 2)])
    _write(folder, "a@h", [_record(1), _record(2), _record(3)])
    reader = MergedReader(folder.journal, ["b@h", "a@h"])

    found = [(source, record.inc, record.k) for source, record, _ in reader.read()]

    expected = [("b", 1, 0), ("a", 1, 1), ("b", 1, 2), ("a", 1, 2), ("a", 1, 3), ("b", 2, 4)]
    assert found == [(f"{name}@h", inc, k) for name, inc, k in expected]
    assert reader.ended == {("b@h", 1)}


def test_each_consumer_reads_for_its_subscription(tmp_path: Path) -> None:
    """Four processes, two to a subscription; the last one missed 23 of its partition's messages."""
    folder = RunFolder(tmp_path)
    plan = plan_text.load(_plan("consumers: {subscriptions: 2, per_subscription: 2}\n"), "p").plan
    lanes = [lane(instance_of(RUN.id, "produce.0@h"), 1, at) for at in (0, 1)]
    whole: tuple[Span, ...] = ((0, 99, 0, 99),)
    part: tuple[Span, ...] = ((0, 49, 0, 49), (73, 99, 73, 99))
    _write(folder, "produce.0@h", [_record(0, acknowledged=dict.fromkeys(lanes, whole)), End(1)])
    for number in range(4):
        got = part if number == 3 else whole
        _write(folder, f"consume.{number}@h", [_record(0, received={lanes[number % 2]: got})])

    audit = audited(folder, RUN, plan)

    assert (audit.verdict()["acked"], audit.verdict()["received"]) == (200, 377)
    assert [counts["lost"] for counts in audit.by_subscription()] == [0, 23]


def test_a_source_ends_for_all_of_its_clients(tmp_path: Path) -> None:
    """Its first life was killed, so that what arrived unacknowledged is unknown; the second one ended."""
    folder = RunFolder(tmp_path)
    plan = plan_text.load(_plan("load: {clients_per_producer: 3}\n"), "p").plan
    _write(folder, "produce.0@h", [_record(0)], [_record(1, 2), End(2)])
    arrived: dict[str, tuple[Span, ...]] = {
        lane(instance_of(RUN.id, "produce.0@h", client), inc, 0): ((0, 9, 0, 9),)
        for client in range(3)
        for inc in (1, 2)
    }
    _write(folder, "consume.0@h", [_record(1, received=arrived)])

    verdict = audited(folder, RUN, plan).verdict()

    assert (verdict["received"], verdict["unknown"], verdict["received_unacked"]) == (60, 30, 30)


def test_without_acknowledgements_loss_is_not_known() -> None:
    for settings in (
        'producer: {acks: "0"}',
        'producer: {request.required.acks: "0"}',
        'common: {acks: "0"}, producer: {linger.ms: 1}',
    ):
        assert not is_loss_known(plan_text.load(_plan(kafka=f"{{{settings}}}"), "p").plan)
    assert is_loss_known(plan_text.load(_plan(), "p").plan)
