"""What is read of a drill's run: who was told, events, the order of records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from soak.core.journal_text import columns_line
from soak.core.model import Change, Column, Event, Explanation, Finding, Record
from soak.core.units import SECOND_NS
from soak.lab import drill_run
from soak.lab.drill_run import Told
from soak.store.findings import FindingsStore
from soak.store.journal import JournalWriter
from soak.store.run_folder import Run, RunFolder, write_run
from tests.fakes import FakeClock

COLUMNS = (Column("a_seconds"),)


def write(folder: RunFolder, source: str, *records: tuple[int, str]) -> None:
    """Write a record for each second, with an event of that kind that began a nanosecond before k."""
    writer = JournalWriter(folder.journal / source, FakeClock()).open()
    for k, kind in records:
        events = (Event(kind, 10**18, k - 1),) if kind else ()
        name = columns_line(COLUMNS).id
        writer.append(Record(k, writer.inc, 0, 1, name, (1.0,), events=events), COLUMNS)
    writer.close(is_end=True)


def test_events_of_a_kind_are_found_in_every_source(tmp_path: Path) -> None:
    """As of when they began at the earliest: the clock that stamps them may be what was set."""
    folder = RunFolder(tmp_path)
    write(folder, "consume.0@here", (7, "clock_step"), (8, ""))
    write(folder, "produce.0@here", (8, "segment_created"), (9, "clock_step"))

    assert drill_run.events(folder, "clock_step") == [6, 8]
    assert drill_run.events(folder, "suspend") == []


def test_records_that_come_after_a_later_one_are_counted(tmp_path: Path) -> None:
    """In each source by itself."""
    folder = RunFolder(tmp_path)
    write(folder, "consume.0@here", (7, ""), (8, ""), (9, ""))
    before = drill_run.disordered(folder)
    write(folder, "produce.0@here", (3, ""), (2, ""), (5, ""), (4, ""))

    assert (before, drill_run.disordered(folder)) == (0, 2)


def test_told_is_when_the_first_message_was_sent_and_gone_when_it_was_noticed(
    tmp_path: Path,
) -> None:
    """A message that waits tells nobody anything; nor is anybody told of what is the client's.

    Of one that came back the last time counts, and none while it is up.
    """
    folder = RunFolder(tmp_path)
    write_run(folder, Run("r", 0, "h", {}, "ended", "x"))
    change = Change("s", 20, 10, (9, 11), 1.0, 2.0, "confirmed", 0.9)
    finding = Finding(
        key="a",
        run="r",
        raised_k=change.raised_k,
        onset_k=change.onset_k,
        interval=change.interval,
        series=change.series,
        kind=change.kind,
        before=change.before,
        after=change.after,
        state="confirmed",
        confidence=0.9,
        is_about_cluster=True,
        causes=(Explanation("unknown", 0.5, ()),),
        changes=(),
    )
    with FindingsStore(folder.findings) as store:
        store.save_finding(finding, ["mail", "webhook"], 100)
        before = drill_run.told(folder)
        for row, at_wall_ns in zip(store.due(10**6), (300, 200), strict=True):
            store.begin_try(row, at_wall_ns, at_wall_ns)
            store.mark_sent(row, at_wall_ns)
        store.save_finding(replace(finding, state="gone", gone_k=30), ["mail", "webhook"], 400)

        of_client = replace(finding, key="b", is_about_cluster=False, state="gone", gone_k=40)
        store.save_finding(of_client, ["mail"], 500)

    gone = drill_run.told(folder)
    with FindingsStore(folder.findings) as store:
        for row in store.due(10**6):
            store.mark_sent(row, 600)
        store.save_finding(finding, ["mail", "webhook"], 700)
        again = drill_run.told(folder)
        for row in store.due(10**6):
            store.mark_sent(row, 800)
        store.save_finding(replace(finding, state="gone", gone_k=90), ["mail", "webhook"], 900)

    first, cause = {"a": 200}, {"a": "unknown"}
    assert before == Told(confirmed=frozenset("a"))
    both = frozenset("ab")
    assert gone == Told(first, cause, {"a": 400, "b": 40 * SECOND_NS}, both)
    assert again == Told(first, cause, {"b": 40 * SECOND_NS}, both)
    assert drill_run.told(folder) == Told(first, cause, {"a": 900, "b": 40 * SECOND_NS}, both)
