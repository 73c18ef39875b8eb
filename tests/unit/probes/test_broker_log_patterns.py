"""Which lines of a log are events: on recorded logs of several programs and versions, and on hostile text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.broker_log import patterns as log_patterns
from probes.broker_log import probe
from probes.broker_log.patterns import Scanner
from probes.broker_log.probe import Config
from soak.core.errors import PlanError, SettingError
from tests.support.paths import DATA

RECORDED = DATA / "recorded" / "logs"


def events_of(log: str) -> list[tuple[str, dict[str, object]]]:
    scan = Scanner(log_patterns.load(["kafka", "pulsar", "redpanda", "jvm_gc"]))
    text = (RECORDED / f"{log}.log").read_bytes()
    return [(found.pattern.kind, dict(found.fields)) for found in scan.found(text)]


@pytest.mark.parametrize("name", sorted(path.stem for path in log_patterns.FOLDER.glob("*.toml")))
def test_every_pattern_file_loads(name: str) -> None:
    """Found by listing the folder."""
    assert log_patterns.load([name])


def test_kafka_4_logs_rolls_deletions_unlinks_and_leaders() -> None:
    """Each with partition and offset; a quoted line in an exception has no timestamp."""
    found = events_of("kafka-4.3.1")

    assert found[0] == (
        "leader_change",
        {"broker": 1, "topic": "soak-x", "partition": 0, "epoch": 0},
    )
    assert found[1] == ("segment_roll", {"topic": "soak-x", "partition": 0, "offset": 1000})
    assert found[2] == ("log_start_moved", {"topic": "soak-x", "partition": 0, "offset": 1000})
    assert found[3] == (
        "segment_deletion",
        {
            "topic": "soak-x",
            "partition": 0,
            "offset": 0,
            "bytes": 1035989,
            "reason": "log retention time",
        },
    )
    assert found[6] == ("segment_unlink", {"topic": "soak-x", "partition": 1, "offset": 0})
    assert [kind for kind, _ in found[4:]] == [
        "log_start_moved",
        "segment_deletion",
        "segment_unlink",
        "segment_unlink",
        "leader_change",
        "isr_shrink",
        "segment_unlink",
    ]
    assert found[-3][1] == {"broker": 1, "topic": "soak-x", "partition": 1, "epoch": 1, "leader": 2}


def test_the_other_spelling_of_kafka_2_is_matched() -> None:
    """It leads to the same kinds of events."""
    assert [kind for kind, _ in events_of("kafka-2.8")] == [
        "segment_roll",
        "log_start_moved",
        "segment_deletion",
        "segment_unlink",
    ]


_DELETABLE = (
    "[2020-02-18 05:24:48,190] INFO [Log partition=kafkatesting-0, dir=/usr/local/var/lib/kafka-logs] "
    "Found deletable segments with base offsets [0] due to {} breach (kafka.log.Log)"
)
_DELETED = {"topic": "kafkatesting", "partition": 0, "offset": 0}
_NEW_LEADER = (
    "[2020-02-18 21:25:07,719] INFO [Partition __confluent.support.metrics-0 broker=1001] "
    "__confluent.support.metrics-0 starts at Leader Epoch 0 from offset 0. Previous Leader Epoch was: -1 "
    "(kafka.cluster.Partition)"
)


@pytest.mark.parametrize(
    ("line", "kind", "fields"),
    [
        pytest.param(
            _DELETABLE.format("retention time 604800000ms"),
            "segment_deletion",
            {**_DELETED, "reason": "retention time"},
            id="retention",
        ),
        pytest.param(
            _DELETABLE.format("HotsetRetention time 60000ms"),
            "segment_deletion",
            {**_DELETED, "reason": "HotsetRetention time"},
            id="Confluent's hotset",
        ),
        pytest.param(
            _NEW_LEADER,
            "leader_change",
            {
                "topic": "__confluent.support.metrics",
                "partition": 0,
                "broker": 1001,
                "epoch": 0,
            },
            id="a leader, in server.log",  # the state-change log has no such line at INFO
        ),
    ],
)
def test_kafka_before_2_7_has_other_lines(line: str, kind: str, fields: dict[str, object]) -> None:
    (found,) = Scanner(log_patterns.load(["kafka"])).found(line.encode())

    assert (found.pattern.kind, found.fields) == (kind, fields)


_PLACE = "[2024-05-07 10:55:52,043] INFO [UnifiedLog partition=ingest-3, dir=/bitnami/kafka/data]"
_MANY = range(10**9, 10**9 + 500_000, 1000)
_SOME = range(0, 23_000, 1000)
_FOUND = "Found deletable segments with base offsets [{}] due to retention size 2048 breach (kafka.log.Log)"
_BREACH = "Deleting segments due to log start offset{} breach: {} (kafka.log.UnifiedLog)"


def segments_of(offsets: range, separator: str) -> str:
    return separator.join(
        f"LogSegment(baseOffset={offset}, size=948, lastModifiedTime=1715059620420, "
        "largestRecordTimestamp=Some(1715059620372))"
        for offset in offsets
    )


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        (_FOUND.format(",".join(map(str, _SOME))), _SOME),
        (_FOUND.format(",".join(map(str, _MANY))), _MANY),
        (_BREACH.format("", segments_of(_SOME, ",")), _SOME),
        (_BREACH.format(" 23000", segments_of(_SOME, ",")), _SOME),
        (_BREACH.format(" 23000", segments_of(_SOME, ", ")), _SOME),
    ],
    ids=["2.4", "2.4, a long line", "3.0", "3.7", "4.2"],
)
def test_each_segment_of_a_list_is_a_deletion(text: str, offsets: range) -> None:
    """Brokers before 2.7 list what a check deletes, followers of all versions what the leader deleted."""
    found = found_in(f"{_PLACE} {text}")

    assert [kind for kind, _ in found] == ["segment_deletion"] * len(offsets)
    assert [(fields["partition"], fields["offset"]) for _, fields in found] == [
        (3, offset) for offset in offsets
    ]


@pytest.mark.parametrize(
    "text",
    [
        f"Deleting segment files {segments_of(_SOME, ',')} (kafka.log.LocalLog$)",
        f"Deleting segments {segments_of(_SOME, ',')} (kafka.log.Log)",
        f"Scheduling segments for deletion List({segments_of(_SOME, ',')}) (kafka.log.Log)",
        "Scheduling log segment [baseOffset 0, size 38425] for deletion. (kafka.log.Log)",
        f"Deleting segments as part of log truncation: {segments_of(_SOME, ',')} (kafka.log.LocalLog)",
        f"Deleting segments as the log has been deleted: {segments_of(_SOME, ',')} (kafka.log.LocalLog)",
        "Deleted producer state snapshot /d/ingest-3/00000000000000447969.snapshot.deleted (SnapshotFile)",
        "About to delete remote log segment RemoteLogSegmentId{id=y} due to retention time 1000ms breach",
    ],
)
def test_other_lines_about_a_deletion_do_not_count_it_again(text: str) -> None:
    """Nor are a truncation, a deleted topic and a copy in the tiered storage deletions by retention."""
    assert found_in(f"{_PLACE} {text}") == []


def test_a_drive_of_kafka_that_fails_is_an_event() -> None:
    """Once for all of its partitions."""
    text = "Stopping serving replicas in dir /data/1 with uuid 7x because the log directory has failed."

    assert found_in(f"[2026-11-21 18:32:57,027] WARN [ReplicaManager broker=1] {text} (k)") == [
        ("log_dir_failure", {"broker": 1, "directory": "/data/1"})
    ]


def test_pulsar_logs_ledgers_and_bundles() -> None:
    """The broker trims, the bookie frees space."""
    found = events_of("pulsar-4.2.4")

    assert [kind for kind, _ in found] == [
        "ledger_roll",
        "ledger_deletion",
        "leader_change",  # not of the bundle without topics
        "entry_log_deletion",
    ]
    assert found[1][1]["ledger"] == 48
    assert found[1][1]["bytes"] == 54411


def test_redpanda_logs_removed_segments() -> None:
    """The log file of a segment counts, not its indices."""
    assert events_of("redpanda-24") == [
        ("leader_change", {"topic": "soak", "partition": 0, "term": 2}),
        ("segment_roll", {"topic": "soak", "partition": 0, "offset": 2300, "term": 2}),
        (
            "segment_deletion",
            {"topic": "soak", "partition": 0, "offset": 0, "term": 1, "reason": "gc"},
        ),
    ]


_REMOVED = (
    "INFO  2023-07-07 09:40:12,429 [shard 1] storage - disk_log_impl.cc:1418 - Removing "
    '"/var/lib/redpanda/data/kafka/soak/2_18/233-12-v1.log" ({}, {{offset_tracker:{{term:12, '
    "base_offset:233, committed_offset:233}}, compacted_segment=0, "
    "reader={{/var/lib/redpanda/data/kafka/soak/2_18/233-12-v1.log, (524434 bytes)}}, writer=nullptr}})"
)


@pytest.mark.parametrize("reason", ["remove_prefix_full_segments", "gc[size_based_retention]"])
def test_redpanda_names_why_it_removes_a_segment(reason: str) -> None:
    """Retention cuts off the beginning of a log."""
    (found,) = Scanner(log_patterns.load(["redpanda"])).found(_REMOVED.format(reason).encode())

    assert found.fields == {
        "topic": "soak",
        "partition": 2,
        "offset": 233,
        "term": 12,
        "reason": reason,
        "bytes": 524434,
    }


@pytest.mark.parametrize(
    "reason", ["disk_log_impl::remove()", "remove_full_segments", "compact_adjacent_segments"]
)
def test_segments_of_a_deleted_truncated_or_compacted_log_are_no_deletions(reason: str) -> None:
    """Retention does not remove them."""
    assert Scanner(log_patterns.load(["redpanda"])).found(_REMOVED.format(reason).encode()) == []


@pytest.mark.parametrize(
    ("log", "first"),
    [
        (
            "gc-g1-21",
            {
                "gc": 0,
                "reason": "Pause Young (Normal) (G1 Evacuation Pause)",
                "pause_seconds": 0.003941,
            },
        ),
        ("gc-z-21", {"gc": 0, "reason": "Pause Mark Start", "pause_seconds": 1.3e-05}),
        (
            "gc-uptime-21",
            {
                "gc": 0,
                "reason": "Pause Young (Normal) (G1 Evacuation Pause)",
                "pause_seconds": 0.004268,
            },
        ),
    ],
)
def test_a_jvm_logs_its_pauses(log: str, first: dict[str, object]) -> None:
    """The event is the end of a pause, not its start."""
    pauses = [fields for kind, fields in events_of(log) if kind == "gc_pause"]

    assert pauses[0] == pytest.approx(first)
    text = (RECORDED / f"{log}.log").read_text()
    assert len(pauses) == sum("Pause" in one and one.endswith("ms") for one in text.splitlines())


def found_in(line: str) -> list[tuple[str, dict[str, object]]]:
    scan = Scanner(log_patterns.load(["kafka", "jvm_gc"]))
    return [(found.pattern.kind, dict(found.fields)) for found in scan.found(f"{line}\n".encode())]


_STATE_CHANGE = "[2026-11-21 18:33:02,811] INFO [Broker id=1] {} (state.change.logger)"
_PARTITION = (
    "[2020-02-18 21:25:07,719] INFO [Partition t-0 broker=1] t-0 {} (kafka.cluster.Partition)"
)


@pytest.mark.parametrize(
    "line",
    [
        _PARTITION.format("starts at Leader Epoch 4 from offset 23. Previous Leader Epoch was: -1"),
        _PARTITION.format(
            "starts at leader epoch 0 from offset 23 with high watermark 23. Previous leader epoch was -1."
        ),
        _STATE_CHANGE.format(
            "Leader t-0 starts at leader epoch 4 from offset 23 with high watermark 23 ISR [1,3] "
            "addingReplicas [] removingReplicas []. Previous leader epoch was -1."
        ),
        _STATE_CHANGE.format(
            "Follower t-0 starts at leader epoch 4 from offset 23 with high watermark 23. "
            "Previous leader epoch was -1."
        ),
        _STATE_CHANGE.format(
            "Follower t-0 starts at leader epoch 0 from offset 0 with partition epoch 2 and high watermark "
            "0. Current leader is 2. Previous leader epoch was -1."
        ),
        _STATE_CHANGE.format(
            "Follower t-0 starts at leader epoch 3 from offset 23 with partition epoch 9 and high watermark "
            "23. Current leader is 2. Previous leader Some(-1) and previous leader epoch was -1."
        ),
        _STATE_CHANGE.format(
            "Follower t-0 starts at leader epoch 3 from offset 23 with partition epoch 9 and high watermark "
            "23. Current leader is 2. Previous leader Some(2) and previous leader epoch was 3."
        ),
        _STATE_CHANGE.format(
            "Leader t-0 with topic id Some(x) starts at leader epoch 4 from offset 23 with partition epoch "
            "9, high watermark 23, ISR [1,3], adding replicas [] and removing replicas [] . "
            "Previous leader Some(1) and previous leader epoch was 3."
        ),
    ],
    ids=["2.3", "2.4", "2.8", "2.8, a follower", "3.3", "4.2", "3.6 to 4.1", "the leader stays"],
)
def test_replicas_that_a_started_broker_loads_are_no_elections(line: str) -> None:
    """Each is logged with the leader that it had all along. Nor is an epoch with the same leader one."""
    assert found_in(line) == []


@pytest.mark.parametrize(
    ("line", "epoch"),
    [
        (
            _PARTITION.format(
                "starts at leader epoch 0 from offset 0 with high watermark 0. "
                "Previous leader epoch was -1."
            ),
            0,
        ),
        (
            _PARTITION.format(
                "starts at leader epoch 4 from offset 0 with high watermark 0. "
                "Previous leader epoch was 3."
            ),
            4,
        ),
        (
            _STATE_CHANGE.format(
                "Leader t-0 starts at leader epoch 12 from offset 23 with high watermark 23 ISR [1,3] "
                "addingReplicas [] removingReplicas []. Previous leader epoch was 1."
            ),
            12,
        ),
        (
            _STATE_CHANGE.format(
                "Follower t-0 starts at leader epoch 5 from offset 23 with high watermark 23. "
                "Previous leader epoch was 4."
            ),
            5,
        ),
        (
            _STATE_CHANGE.format(
                "Follower t-0 starts at leader epoch 4 from offset 23 with partition epoch 9 and high "
                "watermark 23. Current leader is 2. Previous leader epoch was 3."
            ),
            4,
        ),
        (
            _STATE_CHANGE.format(
                "Follower t-0 starts at leader epoch 0 from offset 0 with partition epoch 0 and high "
                "watermark 0. Current leader is 2. Previous leader Some(2) and previous leader epoch was 0."
            ),
            0,
        ),
        (
            _STATE_CHANGE.format(
                "Leader t-0 with topic id Some(x) starts at leader epoch 4 from offset 23 with partition "
                "epoch 9, high watermark 23, ISR [1,3], adding replicas [] and removing replicas [] . "
                "Previous leader Some(2) and previous leader epoch was 3."
            ),
            4,
        ),
    ],
    ids=["2.4, the first", "2.4", "2.8", "2.8, a follower", "3.3", "3.6 to 4.1, the first", "4.2"],
)
def test_an_election_is_found_in_the_log_of_every_version(line: str, epoch: int) -> None:
    ((kind, fields),) = found_in(line)

    assert (kind, fields["epoch"]) == ("leader_change", epoch)


def test_generations_of_zgc_are_matched() -> None:
    """Since JDK 21 a letter names the collected generation."""
    line = "[2026-11-21T18:00:00.000+0000][info][gc,phases] GC(3) y: Pause Mark End 0.012ms"

    assert found_in(line) == [
        ("gc_pause", {"gc": 3, "reason": "Pause Mark End", "pause_seconds": pytest.approx(1.2e-5)})
    ]


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        # without decorations: -Xlog:gc::none
        ("GC(0) Pause Young (Normal) (G1 Evacuation Pause) 24M->3M(256M) 3.123ms", 0.003123),
        ("[12.3s][info][gc] GC(0) Pause Init Mark (unload classes) 0.123ms", 0.000123),
        (
            "[12.3s][info][gc] GC(1) Pause Degenerated GC (Mark) 1024M->100M(2048M) 830,12ms",
            0.83012,
        ),
        ("[12.3s][77][88][info][gc] GC(3) O: Pause Relocate Start 0.012ms", 1.2e-5),
        (
            "12.345: [GC (CMS Initial Mark) [1 CMS-initial-mark: 1K(2K)] 2K(3K), 0.0012 secs]",
            0.0012,
        ),
        ("12,345: [GC remark 12,346: [Finalize Marking, 0,0001 secs], 0,0123 secs]", 0.0123),
        ("12.345: [GC cleanup 10M->9M(20M), 0.0012 secs]", 0.0012),
        ("GC(7) Pause Full (Ergonomics) 24M->3M(256M) 123456.789ms", 123.456789),
        ("[Full GC (System.gc())  250M->90M(256M), 123.4567891 secs]", 123.4567891),
        # JDK 8: the end of a line that -XX:+PrintTenuringDistribution or others print into
        (", 0.0123456 secs]", 0.0123456),
        ("2026-11-21T18:00:00.000Z stdout F , 0.0123456 secs]", 0.0123456),
        (
            ": 9K->6K(10K), 0.0021 secs] 9K->4K(40K), 0.0023 secs] [Times: user=0.01, real=0.00 secs] ",
            0.0023,
        ),
        ("[PSYoungGen: 512K->64K(1024K)] 900K->452K(4096K), 0.0045 secs]", 0.0045),
        (
            "7.1: [Rescan (parallel) , 0.001 secs][1 CMS-remark: 9K(20K)] 10K(30K), 0.0456 secs]",
            0.0456,
        ),
        # Shenandoah of JDK 8, OpenJ9
        ("2026-11-21T18:00:00.000+0000: 7.1: [Pause Init Mark, 4.321 ms]", 0.004321),
        ("7.1: #3: [Pause Final Mark (process weakrefs) 9G->8G(16G), 4,321 ms]", 0.004321),
        (
            "7.1: [Pause Degenerated GC (Mark) 9M->8M(16M), 412.5 ms], [Metaspace: 1M->1M(2M)]",
            0.4125,
        ),
        (
            '<exclusive-end id="12" timestamp="2026-11-21T18:00:00.000" durationms="12.345" />',
            0.012345,
        ),
    ],
)
def test_a_pause_of_any_collector_is_read(line: str, seconds: float) -> None:
    """G1, Shenandoah, generational ZGC, OpenJ9, and what JDK 8 writes of CMS, G1 and Shenandoah."""
    ((kind, fields),) = found_in(line)

    assert (kind, fields["pause_seconds"]) == ("gc_pause", pytest.approx(seconds, rel=1e-12))


@pytest.mark.parametrize(
    "line",
    [
        "7.1: [GC concurrent-string-deduplication, 31.4K->7128.0B(24.5K), avg 67.3%, 0.0009 secs]",
        "   [Last Exec: 0.0009256 secs, Idle: 0.7833251 secs, Blocked: 1/0.0043273 secs]",
        "7.1: [weak refs processing, 0.0021 secs]",
        "7.1: [CMS-concurrent-mark: 0.010/0.012 secs] [Times: user=0.02 sys=0.00, real=0.01 secs]",
        "7.1: [GC pause (G1 Evacuation Pause) (young)",
        " [Times: user=0.02 sys=0.00, real=0.01 secs]",
        "7.1: [Pause Init Mark, start]",
        "7.1: [Concurrent marking 9M->8M(16M), 102.393 ms]",
        '<exclusive-start id="11" timestamp="2026-11-21T18:00:00.000" intervalms="76.020">',
        '<gc-end id="8" type="scavenge" durationms="25.007" timestamp="2026-11-21T18:00:00.000">',
    ],
)
def test_work_beside_the_threads_and_parts_of_a_pause_are_no_pause(line: str) -> None:
    """What JDK 8 and OpenJ9 write around the line of a pause."""
    assert found_in(line) == []


@pytest.mark.parametrize(
    ("log", "seconds"),
    [
        ("gc-comma-21", [0.00319, 0.880722, 0.000123, 0.0075]),
        ("gc-8", [0.0585007, 0.7654321, 0.0012, 0.0182341, 0.0021, 0.8812345]),
    ],
)
def test_pauses_of_every_jdk_and_locale_are_read(log: str, seconds: list[float]) -> None:
    """Some locales write a decimal comma, JDK 8 seconds in brackets; concurrent work is no pause."""
    pauses = [fields["pause_seconds"] for kind, fields in events_of(log) if kind == "gc_pause"]

    assert pauses == pytest.approx(seconds)


_FULL = "[77.061s][info][gc] GC(9) Pause Full (Allocation Failure) 116M->61M(123M) 61.242ms"


@pytest.mark.parametrize(
    ("following", "seconds"),
    [
        ("GC(8) Pause Young (Allocation Failure) 122M->61M(123M) 61.345ms", [0.061345]),
        ("GC(8) Pause Young (Allocation Failure) 122M->61M(123M) 5.000ms", [0.061242, 0.005]),
        ("GC(10) Pause Young (Allocation Failure) 90M->61M(123M) 61.345ms", [0.061242, 0.061345]),
    ],
)
def test_a_full_collection_inside_a_young_one_is_counted_once(
    following: str, seconds: list[float]
) -> None:
    """Serial and CMS of JDK 11 log it first, with the higher number; the threads stop once."""
    found = found_in(f"{_FULL}\n[77.061s][info][gc] {following}")

    assert [fields["pause_seconds"] for _, fields in found] == pytest.approx(seconds)


_REMARK = "33000K(511232K), 0.0130 secs]"
_SCAVENGE = "70000K->33000K(511232K), 0.0101 secs]"
_TIMES = " [Times: user=0.04 sys=0.00, real=0.01 secs] "


@pytest.mark.parametrize(
    ("scavenge", "remark"),
    [
        (
            (
                "7.1: [GC (CMS Final Remark) [YG occupancy: 50000 K (118016 K)]7.1: [GC (CMS Final Remark) "
                f"7.1: [ParNew: 50000K->13000K(118016K), 0.0100 secs] {_SCAVENGE}{_TIMES}"
            ),
            (
                "7.2: [Rescan (parallel) , 0.002 secs]7.2: [weak refs processing, 0.001 secs]"
                f"[1 CMS-remark: 20000K(393216K)] {_REMARK}{_TIMES}"
            ),
        ),
        (
            f"[GC (CMS Final Remark) [GC (CMS Final Remark)  {_SCAVENGE}",
            f" {_REMARK}",
        ),
        (
            "[7.1s][info][gc] GC(23) Pause Young (CMS Final Remark) 68M->32M(499M) 10.1ms",
            "[7.1s][info][gc] GC(7) Pause Remark 32M->32M(499M) 13.0ms",
        ),
    ],
    ids=["JDK 8", "JDK 8 without details", "JDK 11"],
)
def test_a_remark_that_collects_the_young_generation_is_one_pause(
    scavenge: str, remark: str
) -> None:
    """With -XX:+CMSScavengeBeforeRemark; the pause of the remark contains the collection."""
    pauses = [fields["pause_seconds"] for _, fields in found_in(f"{scavenge}\n{remark}")]

    assert pauses == pytest.approx([0.0130])


@pytest.mark.parametrize(
    "line",
    [
        (
            "7.1: [GC (CMS Final Remark) [YG occupancy: 26983 K (157248 K)]"
            "7.1: [Rescan (parallel) , 0.0002 secs]"
            f"7.1: [weak refs processing, 0.0001 secs][1 CMS-remark: 324149K(349568K)] {_REMARK}{_TIMES}"
        ),
        f"7.1: [GC (CMS Final Remark)  {_REMARK}",
    ],
    ids=["JDK 8", "JDK 8 without details"],
)
def test_a_remark_of_one_line_is_a_pause(line: str) -> None:
    """Without a collection before it."""
    ((_, fields),) = found_in(line)

    assert fields["pause_seconds"] == pytest.approx(0.0130)


def test_pauses_of_a_cycle_that_lasts_longer_than_a_young_collection_are_counted() -> None:
    """The pauses of G1's concurrent cycle have its number, which is lower."""
    young = (
        "[77.061s][info][gc] GC(9) Pause Young (Normal) (G1 Evacuation Pause) 24M->3M(256M) 3.123ms"
    )

    assert (
        len(found_in(f"{young}\n[77.093s][info][gc] GC(8) Pause Remark 90M->90M(256M) 5.000ms"))
        == 2
    )


def test_a_stop_of_jdk_8_is_a_safepoint() -> None:
    """With -XX:+PrintGCApplicationStoppedTime."""
    assert ("safepoint", {"pause_seconds": pytest.approx(0.0123)}) in events_of("gc-8")


def test_lines_are_found_in_what_collectors_wrap_around_them() -> None:
    """JSON of log4j and of Docker, of one in the other, the container runtime's prefix, syslog."""
    lines = (RECORDED / "wrapped.log").read_text().splitlines()

    assert events_of("wrapped") == [
        ("segment_roll", {"topic": "t", "partition": 3, "offset": 77}) for _ in lines
    ]


def test_words_with_quotes_are_found_in_json() -> None:
    """JSON escapes them."""
    line = (RECORDED / "redpanda-24.log").read_text().splitlines()
    removal = next(one for one in line if 'Removing "' in one)
    scan = Scanner(log_patterns.load(["redpanda"]))

    (found,) = scan.found(json.dumps({"log": f"{removal}\n", "stream": "stderr"}).encode())

    assert found.pattern.kind == "segment_deletion"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda line: f"2026-09-22T00:53:20.681757986Z stdout F {json.dumps({'message': line})}",
        lambda line: f"kafka-1  | {json.dumps({'message': line})}",
        lambda line: json.dumps(
            {"labels": {"pod": "rp-0"}, "line": line, "timestamp": "2026-09-22T00:53:20Z"}
        ),
        lambda line: json.dumps({"date": 1790038400.25, "log": json.dumps({"Body": line})}),
        lambda line: json.dumps({"textPayload": f"{line}\n", "timestamp": "2026-09-22T00:53:20Z"}),
    ],
    ids=[
        "of a container runtime",
        "of compose",
        "Loki",
        "OpenTelemetry in Fluent Bit",
        "Google Cloud",
    ],
)
@pytest.mark.parametrize(
    ("kind", "line"), [("gc_pause", _FULL), ("segment_deletion", _REMOVED.format("gc"))]
)
def test_a_line_in_json_is_found_behind_a_prefix_and_in_the_fields_of_any_collector(
    kind: str, line: str, wrap: Callable[[str], str]
) -> None:
    """Its quotes are escaped, and more follows it."""
    scan = Scanner(log_patterns.load(["redpanda", "jvm_gc"]))

    assert [found.pattern.kind for found in scan.found(wrap(line).encode())] == [kind]


_OF_CONTAINERS = [
    "2026-12-01T15:42:12.123456789Z stdout F {}",
    "2026-12-01T21:12:12.123456789+05:30 stderr F {}",
    "2026-12-01T15:42:12.123456789Z {}",
    "kafka-1  | {}",
    "[pod/kafka-0/kafka] {}",
    "[pod/kafka-0/kafka] 2026-12-01T15:42:12.123456789Z {}",
]
_OF_SYSLOG = [
    "Dec  1 15:42:12 b1 kafka[77]: {}",
    "<30>Dec  1 15:42:12 b1 kafka-server-start.sh: {}",
    "2026-12-01T15:42:12.123456+00:00 b1 kafka[77]: {}",
    "<165>1 2026-12-01T15:42:12.123Z b1 kafka 77 - - {}",
    '<165>1 2026-12-01T15:42:12.123Z b1 kafka 77 ID47 [ex@1 a="b"] {}',
]
_BARE_PAUSES = [
    ("GC(0) Pause Young (Normal) (G1 Evacuation Pause) 24M->3M(256M) 4.321ms", "gc_pause"),
    ("GC(7) Pause Full (Ergonomics) 24M->3M(256M) 4.321ms", "gc_pause"),
    ("GC(3) y: Pause Mark End 4.321ms", "gc_pause"),
    ("[Pause Init Mark, 4.321 ms]", "gc_pause"),
    ("[GC (Allocation Failure)  65536K->10740K(251392K), 0.004321 secs]", "gc_pause"),
    ("Allocation Stall (main) 4.321ms", "gc_stall"),
    ('Safepoint "Cleanup", Time since last: 9 ns, Reaching: 1 ns, Total: 4321000 ns', "safepoint"),
]


@pytest.mark.parametrize("prefix", [*_OF_CONTAINERS, *_OF_SYSLOG])
@pytest.mark.parametrize(("line", "kind"), _BARE_PAUSES)
def test_a_jvm_without_decorations_is_read_behind_any_prefix(
    line: str, kind: str, prefix: str
) -> None:
    """As with -Xlog:gc*:stdout:none, in a container or a service."""
    for wrapped in (prefix.format(line), json.dumps({"log": f"{prefix.format(line)}\n"})):
        ((found, fields),) = found_in(wrapped)

        assert (found, fields["pause_seconds"]) == (kind, pytest.approx(0.004321))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda line: {"log": f"{line}\n", "stream": "stdout", "time": "2026-12-01T15:42:12.1Z"},
        lambda line: {"message": line, "@timestamp": "2026-12-01T15:42:12.1Z"},
        lambda line: {"MESSAGE": line, "__REALTIME_TIMESTAMP": "1796139732123456"},
    ],
    ids=["docker", "Filebeat", "the journal"],
)
@pytest.mark.parametrize(("line", "kind"), _BARE_PAUSES)
def test_a_jvm_without_decorations_is_read_in_json(
    line: str, kind: str, wrap: Callable[[str], dict[str, str]]
) -> None:
    assert [found for found, _ in found_in(json.dumps(wrap(line)))] == [kind]


@pytest.mark.parametrize(
    "line",
    [
        "2026-12-01T15:42:12.123456789Z stdout F the log said GC(0) Pause Full (x) 1M->1M(2M) 4.3ms",
        "Dec  1 15:42:12 b1 kafka[77]: seen: GC(0) Pause Full (x) 1M->1M(2M) 4.321ms",
    ],
)
def test_a_pause_that_is_quoted_behind_a_prefix_is_no_pause(line: str) -> None:
    """Only what the program itself wrote."""
    assert found_in(line) == []


def test_an_exception_beside_a_message_is_no_event() -> None:
    """It may quote anything; without JSON it would be lines of its own."""
    body = {
        "message": "Uncaught exception in scheduled task",
        "stack_trace": "java.io.IOException: Deleted log /d/t-0/00000000000000000000.log.deleted",
    }

    assert found_in(json.dumps(body)) == []
    assert found_in(json.dumps({"log": f"{json.dumps(body)}\n", "stream": "stdout"})) == []


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("gc_pause", _FULL),
        ("segment_deletion", 'Removing "/d/kafka/soak/0_1/0-1-v1.log" (gc, 23 bytes)'),
    ],
)
def test_a_line_in_a_long_json_object_is_found(kind: str, line: str) -> None:
    """Fluent Bit and Filebeat write labels of Kubernetes around it."""
    labels = {f"app.kubernetes.io/label-{at}": "x" * 63 for at in range(100)}
    wrapped = json.dumps({"kubernetes": {"labels": labels}, "log": f"{line}\n", "stream": "stderr"})
    scan = Scanner(log_patterns.load(["redpanda", "jvm_gc"]))

    assert [found.pattern.kind for found in scan.found(wrapped.encode())] == [kind]


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        (
            "segment LogSegment(baseOffset=7, size=9, x) due to local log retention time 5ms breach",
            "local log retention time",
        ),
        (
            "segments due to log start offset 99 breach: LogSegment(baseOffset=7, size=9),LogSegment(b",
            "log start offset",
        ),
    ],
)
def test_deletions_on_followers_and_of_tiered_topics_are_matched(why: str, reason: str) -> None:
    """A follower learns the log start from its leader; a tiered topic has a local limit."""
    place = "INFO [UnifiedLog partition=soak-x-3, dir=/data]"
    ((kind, fields),) = found_in(f"[2026-11-21 18:32:57,027] {place} Deleting {why}")

    assert kind == "segment_deletion"
    assert (fields["partition"], fields["offset"], fields["reason"]) == (3, 7, reason)


def test_a_thread_that_waits_for_memory_is_an_event() -> None:
    """ZGC stalls a thread where other collectors pause all."""
    assert events_of("gc-z-21")[-1] == (
        "gc_stall",
        {"thread": "main", "pause_seconds": pytest.approx(0.012345)},
    )


@pytest.mark.parametrize(
    "thread", ["main", "data-plane-kafka-network-thread-1-ListenerName(PLAINTEXT)-PLAINTEXT-0"]
)
@pytest.mark.parametrize("what", ["Allocation", "Relocation"])
def test_a_stall_of_any_thread_is_an_event(what: str, thread: str) -> None:
    """The network threads of a broker have parentheses in their names."""
    line = f"[2026-11-21T18:00:00.000+0000][info][gc] {what} Stall ({thread}) 12.345ms"

    assert found_in(line) == [
        ("gc_stall", {"thread": thread, "pause_seconds": pytest.approx(0.012345)})
    ]


@pytest.mark.parametrize(
    ("text", "kind", "fields"),
    [
        (
            "Created new ledger {ledgerId=23, managedLedger=public/default/persistent/soak-0}",
            "ledger_roll",
            {"ledger": 23, "topic": "public/default/persistent/soak-0"},
        ),
        (
            "Removing ledger {ledgerId=23, managedLedger=public/default/persistent/soak-0, size=4600}",
            "ledger_deletion",
            {"ledger": 23, "topic": "public/default/persistent/soak-0", "bytes": 4600},
        ),
        (
            "Removing ledger {ledgerId=23, managedLedger=public/default/persistent/soak-0}",
            "ledger_deletion",
            {"ledger": 23, "topic": "public/default/persistent/soak-0"},
        ),
        (
            "Deleting entryLogId as it has no active ledgers! {entryLogId=7}",
            "entry_log_deletion",
            {"entry_log": 7},
        ),
        (
            'Deleting entryLogId as it has no active ledgers! {"entryLogId":7,"event":"gc"}',
            "entry_log_deletion",
            {"entry_log": 7},
        ),
        (
            "Unloading namespace-bundle completed {bundle=public/default/0x0_0x4, unloadedTopics=3}",
            "leader_change",
            {"bundle": "public/default/0x0_0x4", "topics": 3},
        ),
    ],
)
def test_what_a_message_is_about_may_follow_it(
    text: str, kind: str, fields: dict[str, object]
) -> None:
    """As in Pulsar 5, and in bookies from 4.18 on."""
    scan = Scanner(log_patterns.load(["pulsar"]))
    line = (
        f"2026-11-21T18:00:00,250+0000 [ml-0] INFO  o.a.b.mledger.impl.ManagedLedgerImpl - {text}\n"
    )

    (found,) = scan.found(line.encode())

    assert (found.pattern.kind, found.fields) == (kind, fields)


def test_a_ledger_that_was_copied_to_the_tiered_storage_is_deleted_once() -> None:
    """Its bookies delete it; a line that says so when they have is no further deletion."""
    start = "2026-11-21T18:00:00,250+0000 [ml-0] INFO  o.a.b.m.impl.ManagedLedgerImpl - [a/b/persistent/t]"
    lines = (
        f"{start} Deleting offloaded ledger 23 from bookkeeper - size: 4600\n"
        f"{start} Deleted and invalidated offloaded ledger 23 from bookkeeper - size: 4600\n"
    )

    (found,) = Scanner(log_patterns.load(["pulsar"])).found(lines.encode())

    assert found.pattern.kind == "ledger_deletion"
    assert found.fields == {"topic": "a/b/persistent/t", "ledger": 23, "bytes": 4600}


def test_what_a_message_is_about_may_be_in_other_fields_of_json() -> None:
    """By the shipped layout of a bookie for OpenTelemetry."""
    body = {
        "Timestamp": "2026-11-21T18:00:00.250Z",
        "Body": "Deleting entryLogId as it has no active ledgers!",
        "Attributes": {"thread.name": "GarbageCollectorThread-1", "entryLogId": "7"},
    }

    (found,) = Scanner(log_patterns.load(["pulsar"])).found(f"{json.dumps(body)}\n".encode())

    assert (found.pattern.kind, found.fields) == ("entry_log_deletion", {"entry_log": 7})


@pytest.mark.long
@given(st.lists(st.binary(max_size=80), max_size=20))
def test_any_bytes_in_a_log_are_scanned_without_an_error(lines: list[bytes]) -> None:
    """Also after the words of each pattern."""
    patterns = log_patterns.load(["kafka", "pulsar", "redpanda", "jvm_gc"])
    text = b"".join(
        one.words.encode() + junk + b"\n" for one, junk in zip(patterns, lines, strict=False)
    )

    for found in Scanner(patterns).found(text + b"".join(lines)):
        for value in found.fields.values():
            assert not isinstance(value, str) or (value.isprintable() and len(value) <= 200)


@pytest.mark.parametrize(
    "words", ["partition=", "GC(0) Pause ", 'Removing "/', "[", "Deleted log /"]
)
def test_a_hostile_line_does_not_keep_an_expression_busy(words: str) -> None:
    """Expressions see a bounded part of a line."""
    patterns = log_patterns.load(["kafka", "pulsar", "redpanda", "jvm_gc"])
    ends = [one.words for one in patterns]
    text = "".join(f"{words * 300} {end} {words * 300}\n" for end in ends for _ in range(5))

    assert len(list(Scanner(patterns).found(text.encode()))) <= len(ends) * 5


def test_invalid_patterns_are_refused(tmp_path: Path) -> None:
    """A misspelt name, an invalid expression, a factor without its group."""
    with pytest.raises(SettingError, match="did you mean 'kafka'"):
        probe.check_settings(Config(patterns=("kafak",)))
    own = tmp_path / "own.toml"
    for row, message in (
        ("expression = '('", "the expression is invalid"),
        ("expression = 'x'\nfactors = { y = 2.0 }", "has no group 'y'"),
        ("expression = 'x'\nmore = ')'", "the expression is invalid"),
        ("expression = 'x'\nmore = '(?P<y>x)'", "has no group 'y'"),
        ("expression = '(?P<y>x)'\nfactors = { y = nan }", "the factor of 'y' must be a number"),
    ):
        own.write_text(f"[[pattern]]\nkind = 'k'\nwords = 'w'\n{row}\n")
        with pytest.raises(PlanError, match=message):
            log_patterns.load([str(own)])
