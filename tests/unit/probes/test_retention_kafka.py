"""Retention in Kafka: each change of a log start is one event with offsets, bytes and an interval."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest
from confluent_kafka.admin import ListOffsetsResultInfo  # type: ignore[attr-defined]  # its stubs
from hypothesis import given
from hypothesis import strategies as st

from probes.common.polling import MAX_EVENTS
from probes.retention_kafka import probe
from probes.retention_kafka import probe as retention_kafka
from probes.retention_kafka.log_starts import LogStarts
from probes.retention_kafka.offsets import offsets_of
from probes.retention_kafka.probe import Config, RetentionKafka
from soak.app import lifecycle
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.model import Event
from soak.core.plan import text as plan_text
from soak.core.units import SECOND_NS
from soak.store.run_folder import Run
from tests.support.fakes import FakeClock
from tests.support.probes.retention_watch import (
    SEGMENT,
    SEGMENT_BYTES,
    TOPIC,
    Watch,
    deletions,
    values,
)


def test_the_first_poll_has_no_changes() -> None:
    """The log start at that time says nothing about when it moved there."""
    watch = Watch()
    watch.delete(7)

    reading = watch.poll()

    assert reading.events == ()
    assert values(reading)["retention_deletions"] == 0


def test_twenty_three_deletions_are_twenty_three_events() -> None:
    """One segment a second, each with its offsets and bytes."""
    watch = Watch()
    watch.poll()
    events: list[Event] = []
    totals = dict.fromkeys(
        ("retention_deletions", "retention_deleted_messages", "retention_deleted_bytes"), 0.0
    )
    for _ in range(23):
        watch.delete()
        reading = watch.poll()
        events += deletions(reading)
        totals = {metric: total + values(reading)[metric] for metric, total in totals.items()}

    assert [event.fields["to_offset"] for event in events] == [SEGMENT * n for n in range(1, 24)]
    assert list(totals.values()) == [23, 23 * SEGMENT, 23 * SEGMENT_BYTES]


def test_twenty_three_segments_at_once_are_one_event_over_all() -> None:
    """Changes between two polls cannot be separated."""
    watch = Watch()
    watch.poll()
    watch.delete(23)

    (event,) = deletions(watch.poll())

    assert event.fields == {
        "topic": TOPIC,
        "partition": 0,
        "from_offset": 0,
        "to_offset": 23 * SEGMENT,
        "messages": 23 * SEGMENT,
        "bytes": 23 * SEGMENT_BYTES,
        "segments": 23,
    }


def test_an_event_lies_between_the_previous_request_and_this_answer() -> None:
    """The interval holds the deletion for certain, however slow the broker is."""
    watch = Watch()
    start_ns = watch.clock.wall_ns()
    watch.cluster.answer_seconds = 0.25
    watch.poll()
    watch.delete()

    (event,) = deletions(watch.poll())

    assert event.since_ns == start_ns
    assert event.at_ns == start_ns + 3 * SECOND_NS // 2


def test_each_partition_has_its_own_event() -> None:
    """Two partitions that change in one poll are two deletions."""
    watch = Watch(partitions=3)
    watch.poll()
    watch.delete(1, partition=0)
    watch.delete(2, partition=2)

    reading = watch.poll()

    assert [event.fields["partition"] for event in deletions(reading)] == [0, 2]
    assert values(reading)["retention_deletions"] == 2
    assert values(reading)["retention_deleted_messages"] == 3 * SEGMENT


def test_held_bytes_are_the_bytes_of_the_folders() -> None:
    """Occupied on disk, over all partitions of a topic."""
    watch = Watch(partitions=2)
    watch.delete(23)

    assert values(watch.poll())["retention_held_bytes"] == (200 - 23) * SEGMENT_BYTES


def test_a_topic_has_no_size_until_all_its_folders_were_read() -> None:
    """With ten thousand partitions that takes seconds, in which a part would look like a topic that grows."""
    watch = Watch(partitions=23)
    watch.folders.answer_seconds = 0.03

    held = [values(watch.poll()).get("retention_held_bytes") for _ in range(23)]

    assert held[0] is None
    assert set(held) == {None, 2300 * SEGMENT_BYTES}


def test_a_topic_has_no_size_while_one_of_its_folders_cannot_be_read() -> None:
    """The last size of that folder is not measured."""
    watch = Watch(partitions=2)
    watch.poll()
    watch.folders.unreadable = {watch.path(1)}
    failing = values(watch.poll())
    watch.folders.unreadable = set()
    again = values(watch.poll())

    assert "retention_deletions" in failing
    assert {"retention_held_bytes", "retention_waiting_bytes"}.isdisjoint(failing)
    assert again["retention_held_bytes"] == 200 * SEGMENT_BYTES


def test_without_a_folder_there_are_no_sizes() -> None:
    """A broker on another host: offsets only, and no zeros."""
    watch = Watch(directory=None)
    watch.poll()
    watch.delete()

    reading = watch.poll()

    assert "bytes" not in reading.events[0].fields
    assert set(values(reading)) == {
        "retention_poll_age_seconds",
        "retention_deletions",
        "retention_deleted_messages",
    }


def test_a_second_without_a_poll_has_no_counts_but_an_age() -> None:
    """While the broker stalls, no deletion seen is not no deletion."""
    watch = Watch()
    watch.poll()
    watch.clock.advance(22)

    found = values(watch.probe.loop.buffer.take(watch.clock.mono_ns()))

    assert found == {"retention_poll_age_seconds": 23.0}


def test_a_log_start_that_falls_is_an_event_but_no_deletion() -> None:
    """The topic was created again, or a broker lost its disk."""
    watch = Watch()
    watch.delete(5)
    watch.poll()
    watch.cluster.starts[0] = 0

    reading = watch.poll()

    assert [event.kind for event in reading.events] == ["log_start_moved_back"]
    assert values(reading)["retention_deletions"] == 0


def test_a_segment_that_waits_to_be_unlinked_counts_once() -> None:
    """Kafka renames first, so the same segment is read before, meanwhile and after."""
    watch = Watch()
    watch.poll()
    watch.cluster.starts[0] = SEGMENT
    watch.folders.rename(watch.path(0), 0)
    first = deletions(watch.poll())
    watch.folders.unlink(watch.path(0), 0)
    watch.cluster.starts[0] = 2 * SEGMENT
    second = deletions(watch.poll())

    assert [event.fields["bytes"] for event in (*first, *second)] == [SEGMENT_BYTES] * 2


def test_creation_rename_and_unlink_of_a_segment_are_three_events() -> None:
    """The last one has the time between rename and unlink."""
    watch = Watch()
    start_ns = watch.clock.wall_ns()
    watch.poll()
    watch.folders.roll(watch.path(0), 100 * SEGMENT, 5)
    created = watch.poll()
    watch.folders.rename(watch.path(0), 0)
    renamed = watch.poll()
    watch.clock.advance(21)
    watch.folders.unlink(watch.path(0), 0)
    unlinked = watch.poll()

    where: dict[str, object] = {"topic": TOPIC, "partition": 0}
    segment = where | {"base_offset": 0, "bytes": SEGMENT_BYTES}
    found = [event for reading in (created, renamed, unlinked) for event in reading.events]
    assert [(event.kind, event.fields) for event in found] == [
        ("segment_created", where | {"base_offset": 100 * SEGMENT}),
        ("segment_renamed", segment),
        ("segment_unlinked", segment | {"lag_seconds": 22.0}),
    ]
    seconds = [(event.at_ns - start_ns) / SECOND_NS for event in found]
    assert seconds == [1, 2, 24]
    assert [values(one)["retention_unlinked_bytes"] for one in (created, renamed, unlinked)] == [
        0,
        0,
        SEGMENT_BYTES,
    ]
    assert values(renamed)["retention_waiting_bytes"] == SEGMENT_BYTES
    assert values(unlinked)["retention_waiting_bytes"] == 0


def test_columns_have_the_lag_of_the_effect_on_disk() -> None:
    """Kafka unlinks a minute after the log start moved, by default."""
    watch = Watch()

    lags = {column.metric: column.lag_seconds for column, _ in watch.poll().samples}

    assert lags["retention_deleted_bytes"] == 60.0
    assert lags["retention_held_bytes"] == 0.0


def test_without_a_broker_or_a_topic_it_is_not_available() -> None:
    """There is nothing to poll."""
    probe = RetentionKafka(Config(), FakeClock())
    probe.read()
    probe.loop.wait(20.0)

    with pytest.raises(NotAvailableError, match="bootstrap_servers"):
        probe.read()


def test_a_secret_is_read_when_the_client_is_created() -> None:
    """The plan holds a reference; a wrong one is an error that names the setting."""
    config = Config(bootstrap_servers="b:9", client={"sasl.password": "${env:SOAK_NO_SUCH}"})

    with pytest.raises(ProbeError, match=r"sasl\.password: .* no environment variable SOAK_NO"):
        retention_kafka.connect(config)


@pytest.mark.parametrize(
    ("client", "expected"),
    [("{}", {"security.protocol": "SSL"}), ("{client.id: own}", {"client.id": "own"})],
)
def test_it_uses_the_settings_of_the_brokers_clients(client: str, expected: dict[str, str]) -> None:
    """Unless it has settings of its own."""
    text = (
        "name: x\nbroker: {kafka: {bootstrap_servers: 'b:9', common: {security.protocol: SSL}}}\n"
        f"probes: {{retention_kafka: {{client: {client}}}}}\n"
    )
    run = Run("r1", 0, "host", {}, "running")

    probe = lifecycle.resolve_plan(plan_text.load(text, "p").plan, None, run).probes[
        "retention_kafka"
    ]

    assert probe.client == expected
    assert (probe.bootstrap_servers, probe.topics) == ("b:9", ("soak-r1",))


@given(starts=st.lists(st.integers(0, 50), min_size=1, max_size=30))
def test_changes_add_up_to_the_log_start(starts: list[int]) -> None:
    """First start plus all changes is the last one, and intervals never overlap."""
    log_starts, moves = LogStarts(), []
    for second, start in enumerate(starts):
        moves += log_starts.update({("t", 0): start}, lambda _: {}, second * 10, second * 10 + 1)

    assert starts[0] + sum(move.messages for move in moves) == starts[-1]
    assert all(move.at_ns - move.since_ns == 11 for move in moves)


def test_the_client_is_loaded_only_when_it_is_used() -> None:
    """A plan without Kafka needs no Kafka client in memory."""
    assert "confluent_kafka" not in vars(retention_kafka)


def test_a_failed_poll_is_covered_by_the_next() -> None:
    """Nothing is lost, and the interval is longer."""
    watch = Watch()
    start_ns = watch.clock.wall_ns()
    watch.poll()
    watch.delete()
    watch.cluster.error = ProbeError("cannot list offsets: timed out")
    with pytest.raises(ProbeError):
        watch.poll()
    watch.cluster.error = None
    watch.clock.advance(1)

    (event,) = deletions(watch.poll())

    assert event.since_ns == start_ns
    assert event.fields["messages"] == SEGMENT


def test_files_are_followed_while_the_cluster_does_not_answer() -> None:
    """The age of the last answer is still recorded."""
    watch = Watch()
    watch.poll()
    watch.folders.rename(watch.path(0), 0)
    watch.cluster.error = ProbeError("cannot list topics: timed out")
    watch.clock.advance(61)  # so that the partitions are to be listed again
    with pytest.raises(ProbeError):
        watch.poll()
    watch.probe.loop.buffer.failed(watch.cluster.error)
    watch.clock.advance(23)

    reading = watch.probe.loop.buffer.take(watch.clock.mono_ns())

    assert [event.kind for event in reading.events] == ["segment_renamed", "retention_failed"]
    assert values(reading)["retention_poll_age_seconds"] == 85


def test_a_reading_without_any_result_fails() -> None:
    """None of its values would be measured."""
    watch = Watch(directory=None)
    watch.poll()
    watch.probe.loop.buffer.failed(ProbeError("cannot list offsets: timed out"))

    with pytest.raises(ProbeError, match="timed out"):
        watch.probe.loop.buffer.take(watch.clock.mono_ns())


def test_the_offset_of_a_dead_leader_is_ignored() -> None:
    """The client returns a negative number and no error."""
    futures = {("t", at): Future[ListOffsetsResultInfo]() for at in range(2)}
    for future, offset in zip(futures.values(), (-1001, 23), strict=True):
        future.set_result(ListOffsetsResultInfo(offset, -1, -1))
    troubles: list[ProbeError] = []

    assert offsets_of(futures, troubles.append) == {("t", 1): 23}
    assert [str(error) for error in troubles] == [
        "cannot list offsets of t, partition 0: its leader does not answer"
    ]


def test_partitions_with_a_renamed_segment_are_polled_out_of_turn() -> None:
    """With ten thousand partitions their offsets would be a minute late."""
    watch = Watch(partitions=5, partitions_per_poll=2)
    for _ in range(2):
        watch.poll()
    watch.folders.rename(watch.path(4), 0)

    watch.poll()

    assert watch.cluster.asked[1:] == [[0, 1], [4, 2, 3]]


def test_many_partitions_are_polled_in_turn() -> None:
    """A bounded number in each poll, all of them in the first."""
    watch = Watch(partitions=5, partitions_per_poll=2)

    for _ in range(6):
        watch.poll()

    assert watch.cluster.asked == [[0, 1, 2, 3, 4], [0, 1], [2, 3], [4, 0], [1, 2], [3, 4]]


def test_deletions_in_one_go_are_reported_within_two_polls() -> None:
    """In turn, a thousand partitions would be reported seconds apart."""
    watch = Watch(partitions=1000, partitions_per_poll=200, directory=None)
    for _ in range(3):
        watch.poll()
    for at in range(1000):
        watch.delete(partition=at)

    deletions = [values(watch.poll())["retention_deletions"] for _ in range(3)]

    assert deletions == [200, 800, 0]


def test_all_partitions_are_polled_every_other_time_at_most() -> None:
    """Ten thousand partitions cost a hundred milliseconds each time."""
    watch = Watch(partitions=5, partitions_per_poll=2, directory=None)
    watch.poll()
    for _ in range(6):
        for at in range(5):
            watch.delete(partition=at)
        watch.poll()

    assert [len(asked) for asked in watch.cluster.asked] == [5, 2, 5, 2, 5, 2, 5]


def test_a_partition_without_a_leader_does_not_affect_the_others() -> None:
    """Its next answer covers the time in between, and the age is recorded."""
    watch = Watch(partitions=3)
    start_ns = watch.clock.wall_ns()
    watch.poll()
    watch.cluster.leaderless = {1}
    for at in (0, 1):
        watch.delete(partition=at)
    meanwhile = watch.poll()
    watch.cluster.leaderless = set()
    after = watch.poll()

    assert [event.fields["partition"] for event in deletions(meanwhile)] == [0]
    assert meanwhile.events[-1].kind == "retention_failed"
    assert values(meanwhile)["retention_poll_age_seconds"] == 2
    (event,) = deletions(after)
    assert (event.fields["partition"], event.since_ns) == (1, start_ns)


def test_a_lasting_failure_is_reported_once_a_minute() -> None:
    """Readings do not fail because of it, so their values are kept."""
    watch = Watch(partitions=3)
    watch.poll()
    watch.cluster.leaderless = {1}

    readings = [watch.poll() for _ in range(90)]

    assert all("retention_deletions" in values(reading) for reading in readings)
    said = [event.kind for reading in readings for event in reading.events]
    assert said == ["retention_failed"] * 2


def test_a_dead_cluster_costs_no_time_and_is_one_event_a_minute() -> None:
    """Where folders are local their sizes go on; each reading has the age of the last answer."""
    watch = Watch(partitions=3)
    watch.poll()
    watch.cluster.error = ProbeError("no broker of the cluster answers")
    readings = []
    for _ in range(90):
        with pytest.raises(ProbeError, match="no broker of the cluster"):
            watch.poll()
        watch.probe.loop.buffer.failed(watch.cluster.error)
        readings.append(watch.probe.loop.buffer.take(watch.clock.mono_ns()))
        watch.clock.advance(1)

    said = [event.kind for reading in readings for event in reading.events]
    assert said == ["retention_failed"] * 2
    assert all("retention_held_bytes" in values(reading) for reading in readings)
    watch.cluster.error = None
    assert "retention_deletions" in values(watch.poll())


def test_known_partitions_are_polled_if_they_cannot_be_listed() -> None:
    """The list is not requested again each second."""
    watch = Watch()
    watch.poll()
    watch.cluster.list_error = ProbeError("cannot list topics: timed out")
    watch.clock.advance(60)
    readings = []
    for _ in range(23):
        watch.delete()
        readings.append(watch.poll())

    assert [len(deletions(reading)) for reading in readings] == [1] * 23
    assert watch.cluster.listed == 2


def test_events_are_bounded_and_further_ones_counted() -> None:
    """Ten thousand partitions may change at once; the sums stay exact."""
    watch = Watch(partitions=MAX_EVENTS + 23, partitions_per_poll=5000, directory=None)
    watch.poll()
    for at in range(MAX_EVENTS + 23):
        watch.cluster.starts[at] = SEGMENT

    reading = watch.poll()

    assert len(reading.events) == MAX_EVENTS
    assert values(reading)["retention_dropped_events"] == 23
    assert values(reading)["retention_deletions"] == MAX_EVENTS + 23


def test_unreadable_folders_affect_sizes_only() -> None:
    """Offsets are recorded, and the error is reported."""
    watch = Watch()
    watch.poll()
    watch.delete()

    watch.folders.error = OSError(5, "Input/output error")
    reading = watch.poll()

    assert values(reading)["retention_deletions"] == 1
    assert [event.kind for event in reading.events] == ["retention_deletion", "retention_failed"]
    assert "Input/output error" in str(reading.events[-1].fields["reason"])


def test_a_directory_without_the_partitions_is_reported() -> None:
    """A wrong path would otherwise mean a day without sizes."""
    watch = Watch(directory="/elsewhere")
    watch.poll()

    reading = watch.poll()

    (event,) = reading.events
    assert event.kind == "retention_failed"
    assert event.fields["reason"] == "no partition's folder is in /elsewhere: no sizes"
    assert values(reading)["retention_deletions"] == 0


def test_an_unreadable_directory_is_reported_before_the_run(tmp_path: Path) -> None:
    """By `soak check`."""
    config = Config(directory=f"{tmp_path}, {tmp_path}/nowhere")

    (said,) = probe.preflight(config, FakeClock())

    assert said.startswith(f"the probe retention_kafka cannot list {tmp_path}/nowhere and")
