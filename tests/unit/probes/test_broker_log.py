"""The probe `broker_log`: events of recorded logs, their times, rotation, floods and hostile text."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

import pytest

from probes.broker_log.probe import BrokerLog, Config, preflight
from probes.broker_log.tail import MAX_BEHIND_BYTES, MAX_LINE_BYTES, LogTail
from probes.broker_log.timestamps import TimestampReader
from probes.common.polling import MAX_EVENTS
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.model import Event, Reading
from soak.core.units import SECOND_NS
from tests.support.fakes import FakeClock
from tests.support.paths import DATA

pytestmark = pytest.mark.usefixtures("in_utc")

RECORDED = DATA / "recorded" / "logs"
ROLLED = (
    "[2026-09-22 00:53:20,250] INFO [LocalLog partition=t-0, dir=/d] "
    "Rolled new log segment at offset {} in 8 ms. (L)\n"
)


def wall_ns(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000) * (SECOND_NS // 1000)


def line(offset: int) -> str:
    return ROLLED.format(offset)


class Followed:
    """The probe on one log, without its thread; `poll` is a round and a reading one second later."""

    def __init__(self, folder: Path, name: str = "broker.log") -> None:
        self.path = folder / name
        self.path.touch()
        self.clock = FakeClock(wall_ns=wall_ns("2026-09-22T00:53:20+00:00"))
        self.probe = BrokerLog(Config(log=str(self.path)), self.clock)
        self.poll()  # the beginning: at the end of what is there

    def write(self, text: str | bytes) -> None:
        with self.path.open("ab") as file:
            file.write(text.encode() if isinstance(text, str) else text)

    def poll(self) -> Reading:
        self.clock.advance(1.0)
        self.probe.poll()
        return self.probe.taken(self.clock.mono_ns())

    def offsets(self) -> list[object]:
        return [event.fields.get("offset") for event in self.poll().events]


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    return Followed(tmp_path)


def test_an_event_has_the_time_of_the_log_and_of_the_reading(followed: Followed) -> None:
    """Both to the millisecond."""
    followed.write(line(23))

    reading = followed.poll()

    (event,) = reading.events
    assert event == Event(
        "segment_roll",
        wall_ns("2026-09-22T00:53:20.250+00:00"),
        wall_ns("2026-09-22T00:53:20.250+00:00"),
        {
            "topic": "t",
            "partition": 0,
            "offset": 23,
            "log": "broker.log",
            "seen_ns": followed.clock.wall_ns(),
        },
    )


def test_kinds_of_events_are_counted_and_zero_is_a_value(followed: Followed) -> None:
    """A detector needs a series without gaps."""
    followed.write(line(1) + line(2))

    counts = {
        dict(c.labels).get("kind"): v
        for c, v in followed.poll().samples
        if c.metric == "broker_log_events"
    }

    assert counts["segment_roll"] == 2.0
    assert counts["gc_pause"] == 0.0


def test_pauses_are_summed_each_second(followed: Followed) -> None:
    """In seconds."""
    followed.write((RECORDED / "gc-z-21.log").read_bytes())

    found = {column.metric: value for column, value in followed.poll().samples}

    assert found["jvm_gc_stall_seconds"] == pytest.approx(0.012345)
    assert found["jvm_gc_pause_seconds"] == pytest.approx(0.025 / 1000)


@pytest.mark.parametrize("polls", [1, 2])
def test_a_collection_inside_another_is_counted_once_however_the_lines_are_read(
    followed: Followed, polls: int
) -> None:
    """JDK 11 logs the inner one first, and a poll may fall between the two lines."""
    inner = "[77.061s][info][gc] GC(9) Pause Full (Allocation Failure) 116M->61M(123M) 61.000ms\n"
    outer = "[77.061s][info][gc] GC(8) Pause Young (Allocation Failure) 122M->61M(123M) 75.000ms\n"
    readings = []
    for text in [inner + outer] if polls == 1 else [inner, outer]:
        followed.write(text)
        readings.append(followed.poll())
    samples = [one for reading in readings for one in reading.samples]
    paused = [value for column, value in samples if column.metric == "jvm_gc_pause_seconds"]
    counted = [value for column, value in samples if ("kind", "gc_pause") in column.labels]

    assert sum(paused) == pytest.approx(0.075)
    assert (sum(counted), sum(len(one.events) for one in readings)) == (1.0, 1)


def test_the_end_of_a_pause_that_begins_with_a_blank_is_a_pause(followed: Followed) -> None:
    """JDK 8 splits that of a concurrent mode failure: the longest of CMS."""
    followed.write(
        " (concurrent mode failure): 1214K->800K(1300K), 40.5 secs] 1500K->800K(1900K), "
        "[Metaspace: 30K->30K(1062K)], 42.25 secs] [Times: user=40.0 sys=0.1, real=42.25 secs]\n"
    )
    reading = followed.poll()
    found = {column.metric: value for column, value in reading.samples}

    assert found["jvm_gc_pause_seconds"] == 42.25
    assert [one.kind for one in reading.events] == ["gc_pause"]


def test_a_collection_of_a_new_jvm_with_the_numbers_of_the_one_before_counts(
    followed: Followed,
) -> None:
    """Two lines that belong together are written at once, so in one read or the next."""
    for text in (
        "[7.1s][info][gc] GC(1) Pause Full (Metadata GC Threshold) 6M->5M(23M) 11.000ms\n",
        "",
        "[0.9s][info][gc] GC(0) Pause Young (Allocation Failure) 6M->5M(23M) 15.000ms\n",
    ):
        followed.write(text)
        events = followed.poll().events

    assert [one.fields["pause_seconds"] for one in events] == [0.015]


def test_pauses_are_measured_from_the_first_line_of_the_collector_on(followed: Followed) -> None:
    """A log without such lines does not measure them; later a second without a pause is zero."""

    def paused(text: str) -> float | None:
        followed.write(text)
        found = {column.metric: value for column, value in followed.poll().samples}
        return found.get("jvm_gc_pause_seconds")

    pause = (RECORDED / "gc-comma-21.log").read_text().splitlines(keepends=True)[1]

    assert [paused(line(1)), paused(pause), paused(line(2))] == [
        None,
        pytest.approx(0.880722),
        0.0,
    ]


def test_lines_from_before_the_start_are_no_events(tmp_path: Path) -> None:
    """The probe starts at the end of the log."""
    (tmp_path / "broker.log").write_text(line(1))
    followed = Followed(tmp_path)
    followed.write(line(2))

    assert followed.offsets() == [2]


def test_an_incomplete_line_is_no_event_until_it_ends(followed: Followed) -> None:
    """Half a line is not matched."""
    followed.write(line(23)[:-20])
    assert followed.offsets() == []

    followed.write(line(23)[-20:])

    assert followed.offsets() == [23]


def test_rotation_by_rename_loses_nothing(followed: Followed) -> None:
    """Lines at the end of the old file and at the beginning of the new one are read."""
    followed.write(line(1))
    followed.path.rename(followed.path.with_suffix(".1"))
    assert followed.offsets() == [1]  # there is no new one yet
    with followed.path.with_suffix(".1").open("a") as old:
        old.write(line(2) + line(3).rstrip("\n"))
    followed.write(line(4))

    assert followed.offsets() == [2, 3, 4]
    assert followed.offsets() == []


@pytest.mark.parametrize("trouble", ["no rights", "a folder", "gone"])
def test_rotation_to_a_log_that_cannot_be_read_yet_loses_nothing(
    followed: Followed, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as between the creation of the new file and the change of its owner."""
    followed.write(line(1))
    followed.path.rename(followed.path.with_suffix(".1"))
    with monkeypatch.context() as patched:
        if trouble == "no rights":
            followed.path.touch()
            patched.setattr(os, "open", _refused)
        if trouble == "a folder":
            followed.path.mkdir()
        seen = followed.offsets()
    if trouble == "a folder":
        followed.path.rmdir()
    followed.write(line(2))

    assert seen + followed.offsets() == [1, 2]


def _refused(*_given: object) -> int:
    raise PermissionError(13, "Permission denied")


def test_lines_written_right_before_a_rename_are_read(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old file is read once more when the new one exists."""
    real_open = os.open

    def opened(path: Path, flags: int) -> int:
        with followed.path.with_suffix(".1").open("a") as old:
            old.write(line(23))
        return real_open(path, flags)

    followed.path.rename(followed.path.with_suffix(".1"))
    followed.write(line(24))
    monkeypatch.setattr(os, "open", opened)

    assert followed.offsets() == [23, 24]


def test_copy_and_truncate_is_recognised(followed: Followed) -> None:
    """Also if the file has grown beyond the last position by the next read."""
    followed.write(line(1))
    followed.poll()
    os.truncate(followed.path, 0)
    followed.write(line(2))
    assert followed.offsets() == [2]

    os.truncate(followed.path, 0)
    followed.write(line(3) + line(4) + line(5))

    assert followed.offsets() == [3, 4, 5]


def test_a_missing_log_is_a_failure_and_is_read_once_it_appears(tmp_path: Path) -> None:
    """A broker may start later; its log is then read from the beginning."""
    probe = BrokerLog(Config(log=str(tmp_path / "late.log")), FakeClock())
    with pytest.raises(ProbeError, match=r"late\.log: No such file"):
        probe.poll()

    (tmp_path / "late.log").write_text(line(23))
    probe.poll()

    assert [event.fields["offset"] for event in probe.taken(0).events] == [23]


def test_a_log_that_goes_on_under_another_name_is_a_failure(followed: Followed) -> None:
    """As of a JVM 8, whose next file has the next number: its silence would be read as no pauses."""
    followed.write(line(1))
    followed.poll()
    followed.path.rename(followed.path.with_suffix(".1"))

    with pytest.raises(ProbeError, match=r"broker\.log: No such file"):
        [followed.poll() for _ in range(100)]

    followed.write(line(2))
    assert followed.offsets() == [2]


@pytest.mark.parametrize("hole", [1000, MAX_LINE_BYTES, 2 * MAX_BEHIND_BYTES])
def test_a_truncated_log_that_its_program_goes_on_with_where_it_was_has_a_hole(
    followed: Followed, hole: int
) -> None:
    """As after `program > log` and with the GC log of JDK 8; nothing is lost."""
    followed.write(line(1))
    followed.poll()
    os.truncate(followed.path, 0)
    with followed.path.open("r+b") as file:
        file.seek(hole)
        file.write(line(23).encode())

    events = followed.poll().events

    assert [(event.kind, event.fields.get("offset")) for event in events] == [("segment_roll", 23)]


def test_zeros_where_a_filesystem_has_no_holes_are_not_lost_text(followed: Followed) -> None:
    """More than the longest line."""
    followed.write(line(1))
    followed.poll()
    os.truncate(followed.path, 0)
    followed.write(b"\0" * (3 * MAX_LINE_BYTES))
    kinds = [event.kind for event in followed.poll().events]
    followed.write(line(23))

    assert kinds == []
    assert followed.offsets() == [23]


def test_a_log_that_appears_later_shows_its_time_zone(tmp_path: Path) -> None:
    """A container may write another one than this host; there was no file a second ago, so it is fresh."""
    clock = FakeClock(wall_ns=wall_ns("2026-09-22T00:53:20+00:00"))
    probe = BrokerLog(Config(log=str(tmp_path / "late.log")), clock)
    with pytest.raises(ProbeError):
        probe.poll()
    (tmp_path / "late.log").write_text(line(23).replace("00:53:20", "02:53:20"))
    clock.advance(1.0)
    probe.poll()

    (event,) = probe.taken(clock.mono_ns()).events

    assert event.at_ns == wall_ns("2026-09-22T00:53:20.250+00:00")


def test_a_long_json_object_has_its_own_time(followed: Followed) -> None:
    """Also behind the labels that a log collector writes first."""
    labels = {f"label-{at}": "x" * 63 for at in range(100)}
    pause = "[12.345s][info][gc] GC(41) Pause Remark 24M->4M(256M) 3.190ms"
    wrapped = {"labels": labels, "log": f"{pause}\n", "time": "2026-09-22T00:53:19.250Z"}
    followed.write(json.dumps(wrapped) + "\n")

    (event,) = followed.poll().events

    assert event.at_ns == wall_ns("2026-09-22T00:53:19.250+00:00")


@pytest.mark.parametrize("more", [(), ("other.log",)])
def test_preflight_names_each_log_that_cannot_be_read(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    """Before the run; one that is there is none of them."""
    (tmp_path / "broker.log").touch()
    logs = tuple(str(tmp_path / name) for name in (*more, "gc.log"))
    warnings = preflight(Config(log=str(tmp_path / "broker.log"), more_logs=logs), FakeClock())

    assert len(warnings) == len(logs)
    assert all(log in warning for log, warning in zip(logs, warnings, strict=True))


def test_a_missing_log_does_not_affect_the_others(followed: Followed) -> None:
    """It is reported once a minute."""
    logs = Config(log=str(followed.path), more_logs=(str(followed.path.with_name("gc.log")),))
    followed.probe = BrokerLog(logs, followed.clock)
    kinds = [[event.kind for event in followed.poll().events]]
    followed.write(line(23))
    kinds += [[event.kind for event in followed.poll().events]]

    assert kinds == [["log_failed"], ["segment_roll"]]


def test_a_path_that_is_not_a_regular_file_is_refused(tmp_path: Path) -> None:
    """A pipe would block, and a device never ends."""
    os.mkfifo(tmp_path / "pipe")

    for name in (str(tmp_path / "pipe"), str(tmp_path), "/dev/zero"):
        with pytest.raises(ProbeError, match=r"is not a file|cannot read"):
            LogTail(Path(name)).read()


def test_a_huge_line_is_skipped(tmp_path: Path) -> None:
    """Memory is bounded; the next line is read."""
    path = tmp_path / "log"
    path.touch()
    tail = LogTail(path)
    tail.read()
    with path.open("ab") as file:
        file.write(b"x" * (3 * MAX_LINE_BYTES))
    first = tail.read()
    with path.open("ab") as file:
        file.write(b"\n" + line(23).encode())

    second = tail.read()

    assert (first.text, first.lost_bytes) == (b"", 2 * MAX_LINE_BYTES)
    assert second.text.endswith(line(23).encode())
    assert len(second.text) == MAX_LINE_BYTES + 1 + len(line(23))


def test_a_log_that_grows_too_fast_is_read_on_near_its_end(followed: Followed) -> None:
    """An event has the number of skipped bytes."""
    followed.write(b"x")
    with followed.path.open("ab") as file:
        file.truncate(2 * MAX_BEHIND_BYTES)  # a hole, no disk
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + line(23).encode())

    events = followed.poll().events + followed.poll().events

    assert {event.kind for event in events} == {"segment_roll", "log_skipped"}
    (skipped,) = (event for event in events if event.kind == "log_skipped")
    assert int(skipped.fields["bytes"]) > MAX_BEHIND_BYTES


@pytest.mark.long
def test_a_flood_of_events_is_counted_but_not_recorded(followed: Followed) -> None:
    """At most a thousand events a reading are recorded."""
    followed.write("".join(line(at) for at in range(MAX_EVENTS + 23)))

    reading = followed.poll()

    found = {column.name: value for column, value in reading.samples}
    assert len(reading.events) == MAX_EVENTS
    assert found["broker_log_dropped_events"] == 23.0
    assert found['broker_log_events{kind="segment_roll",log="broker.log"}'] == MAX_EVENTS + 23


@pytest.mark.parametrize(
    "start",
    [
        "java.io.IOException: ",
        "Caused by: java.io.IOException: ",
        "\tSuppressed: java.io.IOException: ",
        "org.example.Odd$InnerError: ",
    ],
)
def test_a_line_of_a_stack_trace_is_no_event(followed: Followed, start: str) -> None:
    """It continues the previous line: an exception may quote anything."""
    followed.write(f"{start}Deleted log /d/t-0/00000000000000000000.log.deleted\n")

    assert followed.poll().events == ()


@pytest.mark.parametrize(
    "start",
    [
        "",
        "INFO ",
        " INFO ",
        "[main] INFO ",
        "22nd of September, 0.53 h: ",
        "<9> ",
        '{"level":"INFO","at":"?"} ',
        "[12.3h] ",
    ],
)
def test_a_line_whose_timestamp_cannot_be_read_is_dated_by_when_it_was_read(
    followed: Followed, start: str
) -> None:
    """It happened between the last read and this one, which the event says."""
    before_ns = followed.clock.wall_ns()
    followed.write(f"{start}Deleted log /d/t-0/00000000000000000000.log.deleted\n")

    reading = followed.poll()

    (event,) = reading.events
    assert (event.since_ns, event.at_ns) == (before_ns, followed.clock.wall_ns())
    counts = {column.name: value for column, value in reading.samples}
    assert counts['broker_log_events{kind="segment_unlink",log="broker.log"}'] == 1.0


@pytest.mark.parametrize(
    ("start", "events"),
    [
        ("  INFO  ", 1),
        ("       WARN ", 1),
        (" [ERROR] ", 1),
        ("      2026-09-22 00:53:20,250 ", 1),
        (" [00:53:20,250] INFO ", 1),
        ("  information: ", 0),
        ("    at java.io.File ", 0),
        ("\tINFO ", 0),
        ("  2026 segments: ", 0),
    ],
)
def test_a_line_that_begins_with_blanks_is_an_event_if_they_pad_a_level_or_a_timestamp(
    followed: Followed, start: str, events: int
) -> None:
    """Else it continues the previous one."""
    followed.write(f"{start}Deleted log /d/t-0/00000000000000000000.log.deleted\n")

    assert len(followed.poll().events) == events


def test_foreign_text_in_an_event_is_bounded_and_escaped(followed: Followed) -> None:
    """It cannot control a terminal."""
    name = "\x1b\u202e" + "x" * 500
    followed.write(f"[2026-09-22 00:53:20,250] INFO [{name}] Created new ledger 23 (M)\n")

    (event,) = followed.poll().events

    topic = event.fields["topic"]
    assert isinstance(topic, str)
    assert topic.startswith("\\x1b\\u202e")
    assert len(topic) == 200


def test_the_time_zone_of_a_log_follows_from_its_fresh_lines(followed: Followed) -> None:
    """Whole quarters of an hour: India writes 06:23."""
    followed.write(line(1).replace("00:53:20", "06:23:20"))

    (event,) = followed.poll().events

    assert event.at_ns == wall_ns("2026-09-22T00:53:20.250+00:00")


def test_without_a_log_the_probe_is_not_available() -> None:
    """The reason is reported once."""
    with pytest.raises(NotAvailableError, match=r"broker_log\.log is not set"):
        BrokerLog(Config(), FakeClock()).read()


@pytest.mark.parametrize(
    ("stamp", "meant"),
    [
        ("[2026-09-22 00:53:20,250] INFO", "2026-09-22T00:53:20.250+00:00"),
        ("2026-09-22T08:53:20,250+0800 [main] INFO", "2026-09-22T00:53:20.250+00:00"),
        ("[2026-09-22T00:53:20.250+0000][0.048s][info]", "2026-09-22T00:53:20.250+00:00"),
        ("INFO  2026-09-22 00:53:20,250 [shard 0:main]", "2026-09-22T00:53:20.250+00:00"),
        ("WARN  2026-09-22 00:53:20,250 [shard 0]", "2026-09-22T00:53:20.250+00:00"),
        (" WARN [2026-09-22 00:53:20,250] x", "2026-09-22T00:53:20.250+00:00"),  # of %5p
        ("2026-09-22T00:53:20.250000000Z stdout F [x]", "2026-09-22T00:53:20.250+00:00"),
        # padded levels, before and behind, and padded timestamps
        ("      WARN 2026-09-22 00:53:20,250 x", "2026-09-22T00:53:20.250+00:00"),
        ("  ERROR: 2026-09-22 00:53:20,250 x", "2026-09-22T00:53:20.250+00:00"),
        (" SEVERE 2026-09-22 00:53:20,250 x", "2026-09-22T00:53:20.250+00:00"),
        (" [INFO] 2026-09-22 00:53:20,250 x", "2026-09-22T00:53:20.250+00:00"),
        ("  info 2026-09-22 00:53:20,250 x", "2026-09-22T00:53:20.250+00:00"),
        ("[INFO ] 00:53:20,250 x", "2026-09-22T00:53:20.250+00:00"),
        ("[ WARN] 00:53:20,250 x", "2026-09-22T00:53:20.250+00:00"),
        ("    2026-09-22 00:53:20,250 INFO x", "2026-09-22T00:53:20.250+00:00"),
        (" [2026-09-22T00:53:20.250Z] INFO x", "2026-09-22T00:53:20.250+00:00"),
        ("[   00:53:20,250] INFO x", "2026-09-22T00:53:20.250+00:00"),
        ("  1790038400250 INFO x", "2026-09-22T00:53:20.250+00:00"),
        ("[ 1790038400.250] x", "2026-09-22T00:53:20.250+00:00"),
        # log4j's COMPACT
        ("20260922005320250 INFO x", "2026-09-22T00:53:20.250+00:00"),
        ("INFO [20260922005320250] x", "2026-09-22T00:53:20.250+00:00"),
        ("20260922005320,250 INFO x", "2026-09-22T00:53:20.250+00:00"),
        ("20260922005320 INFO x", "2026-09-22T00:53:20+00:00"),
        ("20260922T005320250 INFO x", "2026-09-22T00:53:20.250+00:00"),
        # the offset of the zone behind a blank; or another number
        ("2026-09-22 06:23:20,250 +05:30 INFO x", "2026-09-22T00:53:20.250+00:00"),
        ("[2026-09-21T20:53:20.250 -04:00] x", "2026-09-22T00:53:20.250+00:00"),
        ("22 Sep 2026 06:38:20,250 +0545 x", "2026-09-22T00:53:20.250+00:00"),
        ("Tue Sep 22 06:23:20 +0530 2026 x", "2026-09-22T00:53:20+00:00"),
        ("2026-09-22 00:53:20,250 -1234 records", "2026-09-22T00:53:20.250+00:00"),
        ("2026-09-22 00:53:20,250 +05 x", "2026-09-22T00:53:20.250+00:00"),
        # log4j with other patterns: no fraction, no date, the month by its name
        ("2026-09-22 00:53:20 INFO  UnifiedLog:66 - x", "2026-09-22T00:53:20+00:00"),
        ("00:53:20,250 INFO  [UnifiedLog] x", "2026-09-22T00:53:20.250+00:00"),
        ("INFO 00:53:20.250 [main] x", "2026-09-22T00:53:20.250+00:00"),
        ("[23:53:20,250] INFO x", "2026-09-21T23:53:20.250+00:00"),
        ("22 Sep 2026 00:53:20,250 INFO x", "2026-09-22T00:53:20.250+00:00"),
        ("2026/09/22 00:53:20.250 [info] x", "2026-09-22T00:53:20.250+00:00"),
        ("20260922 00:53:20:250 INFO x", "2026-09-22T00:53:20.250+00:00"),
        ("[main] INFO 2026-09-22 00:53:20,250 x", "2026-09-22T00:53:20.250+00:00"),
        ("Sep 22, 2026 12:53:20 AM kafka.log.Log info", "2026-09-22T00:53:20+00:00"),
        ("Tue Sep 22 00:53:20 UTC 2026 INFO x", "2026-09-22T00:53:20+00:00"),
        ("22/Sep/2026:02:53:20 +0200 x", "2026-09-22T00:53:20+00:00"),
        # short years and the orders of countries: the one that is nearest to now
        ("26/09/22 00:53:20 INFO x", "2026-09-22T00:53:20+00:00"),
        ("22.09.2026 00:53:20,250 INFO x", "2026-09-22T00:53:20.250+00:00"),
        ("22/09/26 00:53:20.250 x", "2026-09-22T00:53:20.250+00:00"),
        ("[9/22/26, 12:53:20\u202fAM] x", "2026-09-22T00:53:20+00:00"),
        ("09/22/2026 00:53:20.250 x", "2026-09-22T00:53:20.250+00:00"),
        ("22-Sep-26 00:53:20.250 INFO x", "2026-09-22T00:53:20.250+00:00"),
        # other separators, and none
        ("2026-09-22-00:53:20.250 x", "2026-09-22T00:53:20.250+00:00"),
        ("2026-09-22 at 00:53:20.250 x", "2026-09-22T00:53:20.250+00:00"),
        ("20260922T005320.250Z INFO x", "2026-09-22T00:53:20.250+00:00"),
        ("I20260922 00:53:20.250000    77 log.cc:66] x", "2026-09-22T00:53:20.250+00:00"),
        ("kafka-1  | [2026-09-22 00:53:20,250] INFO x", "2026-09-22T00:53:20.250+00:00"),
        # syslog (RFC 3164 and 5424), with and without the program's own timestamp; klog
        ("Sep 22 00:53:20 b1 kafka[77]: x", "2026-09-22T00:53:20+00:00"),
        ("<30>Sep  2 00:53:20 b1 kafka[77]: x", "2026-09-02T00:53:20+00:00"),
        (
            "Sep 22 00:53:20 b1 rpk[77]: INFO  2026-09-22 00:53:20,250 [shard  0:main] storage",
            "2026-09-22T00:53:20.250+00:00",
        ),
        (
            "Sep 22 00:53:20 b1 kafka[77]: deleted what was made 2026-08-01 00:00:00,250",
            "2026-09-22T00:53:20+00:00",
        ),
        ("<165>1 2026-09-22T02:53:20.250+02:00 b1 kafka 77 - - x", "2026-09-22T00:53:20.250+00:00"),
        # a relay of another zone
        (
            "Sep 22 02:53:20 b1 kafka[77]: [2026-09-22T00:53:20.250+0000][0.048s][info]",
            "2026-09-22T00:53:20.250+00:00",
        ),
        (
            "Sep 22 00:53:20 b1 pulsar[77]: 00:53:20.250 [pulsar-io-4-7] INFO x",
            "2026-09-22T00:53:20.250+00:00",
        ),
        ("Dec 31 23:59:59 b1 kafka[77]: x", "2026-12-31T23:59:59+00:00"),
        ("I0922 00:53:20.250000    77 log.go:66] x", "2026-09-22T00:53:20.250+00:00"),
        (
            '<exclusive-end id="1" timestamp="2026-09-22T00:53:20.250" />',
            "2026-09-22T00:53:20.250+00:00",
        ),
        # seconds to nanoseconds since 1970
        ("[1790038400250ms][info][gc] GC(1) x", "2026-09-22T00:53:20.250+00:00"),
        ("[0.048s][1790038400250ms][info][gc] GC(1) x", "2026-09-22T00:53:20.250+00:00"),
        ("1790038400.250 INFO x", "2026-09-22T00:53:20.250+00:00"),
        ("ts=1790038400250000 level=info x", "2026-09-22T00:53:20.250+00:00"),
        ("ts=1790038400.250 level=info x", "2026-09-22T00:53:20.250+00:00"),
        ("level=info ts=1790038400250 msg=x", "2026-09-22T00:53:20.250+00:00"),
        ('level=info time="1790038400.250" msg=x', "2026-09-22T00:53:20.250+00:00"),
        ("caller=a.go:3 timestamp=1790038400250 msg=x", "2026-09-22T00:53:20.250+00:00"),
        ("1.79003840025e+09\tINFO\tx", "2026-09-22T00:53:20.250+00:00"),
        (
            "ts=1790038400.250 msg='made at 2026-08-01 00:00:00,123'",
            "2026-09-22T00:53:20.250+00:00",
        ),
        ("[2026-09-22 00:53:20,250] x timestamp=1790000000000", "2026-09-22T00:53:20.250+00:00"),
        # nanoseconds
        ("2026-09-22T00:53:20.250123456+00:00 x", "2026-09-22T00:53:20.250+00:00"),
        ("[1790038400250123456ns][info][gc] GC(1) x", "2026-09-22T00:53:20.250+00:00"),
        ("[48123456ns][1790038400250ms][info][gc] GC(1) x", "2026-09-22T00:53:20.250+00:00"),
        # JSON of log4j, logstash, zap, Docker
        (
            '{"@timestamp":"2026-09-22T00:53:20.250Z","message":"x"}',
            "2026-09-22T00:53:20.250+00:00",
        ),
        (
            '{"instant":{"epochSecond":1790038400,"nanoOfSecond":250000000},"message":"x"}',
            "2026-09-22T00:53:20.250+00:00",
        ),
        ('{"timeMillis":1790038400250,"message":"x"}', "2026-09-22T00:53:20.250+00:00"),
        ('{"level":"info","ts":1790038400.25,"msg":"x"}', "2026-09-22T00:53:20.250+00:00"),
        (
            r'{"log":"[2026-09-22 00:53:20,250] x\n","time":"2026-09-22T00:53:20.250757986Z"}',
            "2026-09-22T00:53:20.250+00:00",
        ),
        # a collector that reads a file writes when it read the line; the program's zone may be another one
        (
            '{"@timestamp":"2026-09-22T00:53:27.100Z","message":"[2026-09-22 06:23:20,250] INFO x"}',
            "2026-09-22T00:53:20.250+00:00",
        ),
        (
            '{"@timestamp":"2026-09-22T00:53:20.250Z","message":"made at 2026-08-01 00:00:00,123"}',
            "2026-09-22T00:53:20.250+00:00",
        ),
        (
            "2026-09-22T02:53:20+02:00 b1 kafka[77]: [2026-09-22 06:23:20,250] INFO x",
            "2026-09-22T00:53:20.250+00:00",
        ),
        ('kafka-1  | {"timeMillis":1790038400250,"message":"x"}', "2026-09-22T00:53:20.250+00:00"),
        ('{"eventTime":"2026-09-22T00:53:20.250Z","message":"x"}', "2026-09-22T00:53:20.250+00:00"),
        ('{"instant":"2026-09-22T00:53:20.250Z","message":"x"}', "2026-09-22T00:53:20.250+00:00"),
        ('{"@t":"2026-09-22T00:53:20.250Z","message":"x"}', "2026-09-22T00:53:20.250+00:00"),
        ('{"uptime":"3 days","message":"00:53:20.250 x"}', "2026-09-22T00:53:20.250+00:00"),
        (r'{"log":"[2026-09-22 00:53:20,250] x\n"}', "2026-09-22T00:53:20.250+00:00"),
        (r'{"log":"{\"time\":\"2026-09-22T00:53:20.250Z\"}\n"}', "2026-09-22T00:53:20.250+00:00"),
    ],
)
def test_timestamps_of_every_format_are_read(stamp: str, meant: str) -> None:
    """log4j of Kafka and Pulsar, the JVM, Redpanda, container runtimes, syslog and JSON."""
    now_ns = wall_ns("2026-09-22T00:53:21+00:00")

    found = TimestampReader().wall_ns(stamp, now_ns, is_fresh=False)

    assert found is not None
    assert abs(found - wall_ns(meant)) < SECOND_NS // 1000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "at x.y",
        "[2026-13-45 00:00:00,000] x",
        "[9999-99-99",
        "[9999-12-31 23:59:59,000] x",
        "  2026-09-22 00:53:20,250",
        "25:00:00,000 INFO x",
        "4294967296 bytes were deleted",
        "10.0.0.9 12:00 x",
        "99/99/99 00:53:20 x",
        '{"message":"x"}',
        "{",
        '{"time":true}',
    ],
)
def test_other_text_is_no_timestamp(text: str) -> None:
    """Such as a month 13."""
    assert TimestampReader().wall_ns(text, 0, is_fresh=True) is None


def test_an_uptime_is_placed_by_the_line_that_was_read_soonest() -> None:
    """Until a smaller uptime shows that the process was restarted."""
    stamps, begin = TimestampReader(), 1_790_000_000 * SECOND_NS
    first = stamps.wall_ns("[10.000s][info][gc] x", begin + 11 * SECOND_NS, is_fresh=True)
    second = stamps.wall_ns("[12.500s][info][gc] x", begin + int(12.6 * SECOND_NS), is_fresh=True)
    anew = stamps.wall_ns("[500ms][info][gc] x", begin + 60 * SECOND_NS, is_fresh=True)

    assert first == begin + 11 * SECOND_NS
    assert second == begin + int(12.6 * SECOND_NS)
    assert anew == begin + 60 * SECOND_NS


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("[10.000s]", "[12.500s]"),
        ("[10.000000000s]", "[12.500000000s]"),
        ("[10000ms]", "[12500ms]"),
        ("[10000000000ns]", "[12500000000ns]"),
        ("[1790038400000ns]", "[1792538400000ns]"),  # half an hour, and no milliseconds since 1970
        ("[1790038400ms]", "[1790040900ms]"),  # three weeks, and no seconds since 1970
        ("[1790038400123456ns]", "[1790040900123456ns]"),
        ("[  10.000s]", "[  12.500s]"),
    ],
)
def test_an_uptime_of_every_unit_is_placed(first: str, second: str) -> None:
    """The decorations uptime, uptimemillis and uptimenanos, of a JVM of any age."""
    stamps, begin = TimestampReader(), 1_790_038_400 * SECOND_NS
    stamps.wall_ns(f"{first}[info][gc] x", begin, is_fresh=True)

    found = stamps.wall_ns(f"{second}[info][gc] x", begin + 4 * SECOND_NS, is_fresh=True)

    assert found == begin + 2_500_000_000


@pytest.mark.parametrize(("step", "seconds"), [(60, 300), (600, 1)])
def test_an_uptime_follows_the_wall_clock_when_that_is_set_forward(step: int, seconds: int) -> None:
    """After some minutes; by a long step at once. A virtual machine that was paused has the same effect."""
    stamps, begin = TimestampReader(), 1_790_000_000
    for uptime in range(600 + seconds):
        wall = begin + uptime + (step if uptime >= 600 else 0)
        found = stamps.wall_ns(f"[{uptime}.000s][info][gc] x", wall * SECOND_NS, is_fresh=True)

    assert found == wall * SECOND_NS


def test_lines_out_of_order_are_of_one_process() -> None:
    """Several threads of a JVM write to its log: a line may be a millisecond older than the one before."""
    stamps, begin = TimestampReader(), 1_790_000_000 * SECOND_NS
    stamps.wall_ns("[10.000s][info][gc] x", begin + 10 * SECOND_NS, is_fresh=True)

    found = stamps.wall_ns("[9.999s][info][gc] x", begin + 11 * SECOND_NS, is_fresh=True)

    assert found == begin + 9_999 * SECOND_NS // 1000
