"""Retention on many partitions and through troubles: who is asked when, and what one that fails costs."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest
from confluent_kafka.admin import ListOffsetsResultInfo  # type: ignore[attr-defined]  # its stubs

from probes import retention_kafka
from probes._handed_over import MAX_EVENTS
from probes._kafka_offsets import offsets_of
from probes.retention_kafka import Config
from soak.core.errors import ProbeError
from tests.fakes import FakeClock
from tests.retention_watch import SEGMENT, Watch, deletions, values


def test_a_poll_that_fails_is_covered_by_the_next() -> None:
    """Nothing is lost, and the interval says that it was longer."""
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
    """What the disk does then matters most; how old the last answer is shows all the same."""
    watch = Watch()
    watch.poll()
    watch.folders.rename(watch.path(0), 0)
    watch.cluster.error = ProbeError("cannot list topics: timed out")
    watch.clock.advance(61)  # so that the partitions are to be listed again
    with pytest.raises(ProbeError):
        watch.poll()
    watch.probe.rounds.handed.failed(watch.cluster.error)
    watch.clock.advance(23)

    reading = watch.probe.rounds.handed.take(watch.clock.mono_ns())

    assert [event.kind for event in reading.events] == ["segment_renamed", "retention_failed"]
    assert values(reading)["retention_poll_age_seconds"] == 85


def test_a_reading_fails_when_nothing_could_be_had() -> None:
    """No number of such a second is one that was measured."""
    watch = Watch(directory=None)
    watch.poll()
    watch.probe.rounds.handed.failed(ProbeError("cannot list offsets: timed out"))

    with pytest.raises(ProbeError, match="timed out"):
        watch.probe.rounds.handed.take(watch.clock.mono_ns())


def test_an_offset_of_a_leader_that_has_just_died_is_none() -> None:
    """The client gives a number below 0 and no error: neither a log start that fell nor then a deletion."""
    futures = {("t", at): Future[ListOffsetsResultInfo]() for at in range(2)}
    for future, offset in zip(futures.values(), (-1001, 23), strict=True):
        future.set_result(ListOffsetsResultInfo(offset, -1, -1))
    troubles: list[ProbeError] = []

    assert offsets_of(futures, troubles.append) == {("t", 1): 23}
    assert [str(error) for error in troubles] == [
        "cannot list offsets of t, partition 0: its leader does not answer"
    ]


def test_partitions_of_which_a_segment_was_renamed_are_asked_out_of_turn() -> None:
    """Of ten thousand partitions the offsets would else be a minute late."""
    watch = Watch(partitions=5, partitions_per_poll=2)
    for _ in range(2):
        watch.poll()
    watch.folders.rename(watch.path(4), 0)

    watch.poll()

    assert watch.cluster.asked[1:] == [[0, 1], [4, 2, 3]]


def test_many_partitions_take_turns() -> None:
    """Each poll asks a bounded number; all get their turn, and all are asked before the first."""
    watch = Watch(partitions=5, partitions_per_poll=2)

    for _ in range(6):
        watch.poll()

    assert watch.cluster.asked == [[0, 1, 2, 3, 4], [0, 1], [2, 3], [4, 0], [1, 2], [3, 4]]


def test_what_a_broker_deletes_in_one_go_is_told_within_two_polls_of_its_first_sign() -> None:
    """Of a thousand partitions each would else be told in its own turn, seconds apart."""
    watch = Watch(partitions=1000, partitions_per_poll=200, directory=None)
    for _ in range(3):
        watch.poll()
    for at in range(1000):
        watch.delete(partition=at)

    told = [values(watch.poll())["retention_deletions"] for _ in range(3)]

    assert told == [200, 800, 0]


def test_deletions_that_go_on_have_all_asked_every_other_time_at_most() -> None:
    """Ten thousand partitions cost a hundred milliseconds each time that all are asked."""
    watch = Watch(partitions=5, partitions_per_poll=2, directory=None)
    watch.poll()
    for _ in range(6):
        for at in range(5):
            watch.delete(partition=at)
        watch.poll()

    assert [len(asked) for asked in watch.cluster.asked] == [5, 2, 5, 2, 5, 2, 5]


def test_a_partition_without_a_leader_costs_itself_alone() -> None:
    """The others are told of meanwhile; its own next answer covers the time between, and the age shows it."""
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


def test_trouble_that_stays_is_told_once_a_minute_and_hides_no_reading() -> None:
    """A reading that failed each second would never hand over what was seen."""
    watch = Watch(partitions=3)
    watch.poll()
    watch.cluster.leaderless = {1}

    readings = [watch.poll() for _ in range(90)]

    assert all("retention_deletions" in values(reading) for reading in readings)
    said = [event.kind for reading in readings for event in reading.events]
    assert said == ["retention_failed"] * 2


def test_partitions_that_are_known_will_do_where_the_cluster_cannot_list_them() -> None:
    """It is not asked for them again each second, and offsets come all the same."""
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


def test_events_are_bounded_and_those_beyond_are_counted() -> None:
    """Ten thousand partitions may move at once; the sums stay exact."""
    watch = Watch(partitions=MAX_EVENTS + 23, partitions_per_poll=5000, directory=None)
    watch.poll()
    for at in range(MAX_EVENTS + 23):
        watch.cluster.starts[at] = SEGMENT

    reading = watch.poll()

    assert len(reading.events) == MAX_EVENTS
    assert values(reading)["retention_dropped_events"] == 23
    assert values(reading)["retention_deletions"] == MAX_EVENTS + 23


def test_folders_that_cannot_be_read_cost_the_sizes_only() -> None:
    """The offsets are worth having without them; the error is told."""
    watch = Watch()
    watch.poll()
    watch.delete()

    watch.folders.error = OSError(5, "Input/output error")
    reading = watch.poll()

    assert values(reading)["retention_deletions"] == 1
    assert [event.kind for event in reading.events] == ["retention_deletion", "retention_failed"]
    assert "Input/output error" in str(reading.events[-1].fields["reason"])


def test_a_directory_without_the_partitions_is_told() -> None:
    """A wrong path would else mean a day without sizes, and not a word; the offsets are told all the same."""
    watch = Watch(directory="/elsewhere")
    watch.poll()

    reading = watch.poll()

    (event,) = reading.events
    assert event.kind == "retention_failed"
    assert event.fields["reason"] == "no partition's folder is in /elsewhere: no sizes"
    assert values(reading)["retention_deletions"] == 0


def test_a_directory_that_cannot_be_listed_is_told_before_the_run(tmp_path: Path) -> None:
    """By `soak check`."""
    config = Config(directory=f"{tmp_path}, {tmp_path}/nowhere")

    (said,) = retention_kafka.look(config, FakeClock())

    assert said.startswith(f"the probe retention_kafka cannot list {tmp_path}/nowhere, and")
