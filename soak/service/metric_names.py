"""What each column is called on a metrics page, of what type it is there, and its help text.

Names follow Prometheus: base units, `_total` for counters, `soak_` before what is ours, and node_exporter's
names for what it has too. A column is about one second, of which a scrape would see one in fifteen: where a
sum or a distribution over time is asked for, the page has counters and histograms that grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from soak.core.model import Column

Kind = Literal["gauge", "counter", "sum", "rate", "histogram", "summary"]
"""gauge:     the newest value.
counter:   the column itself grows.
sum:       the column counts one second; the page has a counter, the sum of these seconds.
rate:      the column is an amount a second since its last value; the page has a counter, as of a sum.
histogram: the page has the histogram that belongs to the column instead of the column's quantiles.
summary:   quantiles of one second, of what has no histogram.
"""

ADDED_UP = frozenset({"sum", "rate"})


@dataclass(frozen=True, slots=True)
class Shown:
    """How a metric is shown. `name` is without the `_total` of counters."""

    name: str
    kind: Kind
    help: str


_NODE = "as node_exporter counts it, since the daemon's start"
_TABLE = """
# producers
sent_messages sum - Messages that the client accepted.
acked_messages sum acknowledged_messages Messages that the brokers acknowledged.
failed_messages sum - Messages that the client gave up.
unplaced_messages sum - Messages that were acknowledged without an offset.
missed_messages sum skipped_messages Messages of the schedule that were never sent: it was too late.
queue_full_messages sum - Times that a message found the client's queue full.
held_back_messages sum backpressured_messages Messages sent late because the cluster accepted no more.
in_flight_messages gauge - Messages that were sent and are not yet acknowledged.
negative_latency_messages sum - Messages with a latency below zero: clocks differ. In no histogram.
overflow_messages sum - Messages with a latency above one hour.
publish_latency_seconds histogram - From the time at which a message was due to its acknowledgement.
publish_service_seconds histogram - From the time at which a message was sent to its acknowledgement.
schedule_lag_seconds histogram - From the time at which a message was due to the time at which it was sent.
publish_latency_above_messages sum - Messages with a publish latency at or above an objective's limit.
publish_waiting_seconds gauge - For how long the oldest message that is not acknowledged has been due.
callback_delay_seconds gauge - Longest pause of the last second in which no acknowledgement could be taken.
sender_busy_ratio gauge - Part of a core that the sending thread used in the last second.
throttle_seconds gauge - Longest wait that a broker's quota imposed on a client.
leader_info gauge - Address of each partition leader, by its name.
# consumers
end_to_end_latency_seconds histogram - From the time at which a message was due to its arrival.
end_to_end_latency_above_messages sum - Messages with an end-to-end latency at or above a limit.
received_messages sum - Messages of this run that arrived.
foreign_messages sum - Messages that are not of this run.
duplicated_messages sum - Messages that arrived twice.
reordered_messages sum - Messages that arrived after a later one of their producer and partition.
reread_messages sum - Messages that the consumer read again.
redelivered_messages sum - Messages that the brokers delivered again.
lag_messages gauge consumer_lag_messages Messages between the consumer and the end of its partitions.
consumer_pause_seconds gauge - Longest pause of the last second in which the consumer took no messages.
process_cpu_waiting_ratio rate process_cpu_waiting_seconds Time in which the process had no processor.
# the conductor
run_second gauge run_elapsed_seconds Seconds since the run's start.
run_phase gauge - 1 for the phase that the run is in.
run_folder_free_bytes gauge - Free space of the filesystem that holds the run folder.
broker_drive_free_bytes gauge - Free space of a filesystem on which the brokers store their log.
# the alert daemon
incidents gauge - Incidents of the cluster in this run, by whether they are over.
pending_notifications gauge - Messages about incidents that no receiver has taken yet.
alert_settled_messages_total counter - Messages that a receiver took, or refused for good.
# the streaming detector
detect_batch_seconds gauge - Duration of the newest batch.
detect_batch_rows gauge - Rows of the newest batch.
detect_rows_per_second gauge - Rows that the newest batch took in each second.
detect_state_rows gauge - Rows of the detector's state.
detect_state_memory_bytes gauge - Memory of the detector's state.
detect_state_bytes gauge - Files of the detector's state.
detect_state_written_bytes gauge - What the newest batch wrote into the detector's state.
detect_newest_second gauge - Newest second of the run that the detector took in.
detect_lag_seconds gauge - By how much the newest record is ahead of the newest that the detector took in.
detect_attribution_failures_total counter - Times that the search for causes failed; the log says why.
detect_damaged_lines_total counter - Lines of journals that the detector could not read.
detect_set_aside_records_total counter - Records that the detector could not take, since the run's start.
# the detector of a fleet
fleet_batch_seconds gauge - Duration of the newest batch.
fleet_batch_rows gauge - Rows of the newest batch.
fleet_rows_per_second gauge - Rows that the newest batch took in each second.
fleet_newest_record_age_seconds gauge - Age of the newest record that was taken in.
fleet_state_rows gauge - Rows of the detector's state.
fleet_state_memory_bytes gauge - Memory of the detector's state.
fleet_gaps_total counter - Gaps in the topic of samples.
# records that go from host to host
ship_sent_lines_total counter - Lines of journals that were sent.
ship_waiting_bytes gauge - Journals that are not yet sent.
ship_dropped_bytes_total counter - Journals that were removed before they were sent, for lack of space.
ship_too_large_lines_total counter - Lines that the topic does not take.
receive_records_total counter - Records of other hosts.
receive_refused_lines_total counter - Lines on the topic that are no records of this run.
receive_skipped_offsets_total counter - Messages that the topic deleted before they were read.
receive_repeated_records_total counter - Records that had been received before, and were skipped.
receive_set_aside_lines_total counter - Lines that were set aside, as processes died with them.
receive_unsigned_lines_total counter - Lines on the topic that were taken without a signature.
ship_refused_announcements_total counter - Announcements of runs that were refused.
receive_sources gauge - Sources whose records were received.
# probes
probe_success gauge - 1 if the probe's last reading succeeded.
probe_duration_seconds gauge - Cost of the last reading.
probe_lag_seconds gauge - How long after the end of its second a reading was there.
host_cpu_ratio gauge - Processor time in use, of all processors.
host_cpu_steal_ratio gauge - Processor time that other virtual machines took.
host_cpu_iowait_ratio gauge - Processor time idle while a drive was waited for.
host_cpu_count gauge host_cpus Processors of the host.
host_memory_available_bytes gauge - Memory that programs can still get.
host_swap_used_bytes gauge - Swap space in use.
host_swap_in_bytes rate - Read from swap space.
host_swap_out_bytes rate - Written to swap space.
host_network_received_bytes rate - Received by all network interfaces.
host_network_sent_bytes rate - Sent by all network interfaces.
host_network_drops rate - Packets that interfaces dropped.
host_network_errors rate - Packets with errors.
host_daemon_cpu_cores rate host_daemon_cpu_seconds Processor time of each daemon of the run.
host_daemon_resident_bytes gauge - Memory of each daemon of the run.
fsync_latency_seconds summary - Time of a write and its flush, over the last second.
fsync_hanging_seconds gauge - For how long the running flush has not returned.
fsync_schedule_lag_seconds gauge - By how much flushes began late.
disk_capacity_bytes gauge - Capacity of the drive.
disk_free_bytes gauge - Free space of the folder's filesystem.
disk_mount_info gauge - Where a drive, or a device on it, is mounted.
disk_queue_length gauge - Mean requests in flight in the last second.
disk_turnover_ratio gauge - How often the drive was written over since the probe began.
disk_device_turnover_ratio gauge - How often the drive was written over since the kernel knows it.
disk_read_await_seconds gauge - Mean time of a read in the last second.
disk_write_await_seconds gauge - Mean time of a write in the last second.
disk_discard_await_seconds gauge - Mean time of a discard in the last second.
disk_flush_await_seconds gauge - Mean time of a flush in the last second.
broker_round_trip_seconds gauge - Shortest answer of a broker in the last second.
broker_lone_delay_seconds gauge - By how much the last of several answers of one instant was late.
broker_stall_seconds gauge - Longest wait for the first of several answers of one instant.
broker_log_events sum - Lines of brokers' logs that tell an event.
clock_offset_bound_seconds gauge - By how much the host's clock may be wrong.
cluster_under_replicated_partitions gauge - Partitions whose copy on a broker is not in sync.
cluster_other_messages gauge cluster_other_messages_per_second Messages that others write.
retention_deletions sum - Deletions of the oldest messages.
retention_deleted_messages sum - Messages deleted, by offsets: too high if compacted or transactional.
retention_deleted_entries sum - Entries deleted.
retention_deleted_bytes sum - Bytes deleted.
retention_created_segments sum - Segments created.
retention_renamed_segments sum - Segments renamed, to be removed later.
retention_unlinked_segments sum - Segments removed.
retention_unlinked_bytes sum - Size of removed segments.
retention_held_bytes gauge - Size of the topic on disk.
retention_waiting_bytes gauge - Size of segments that are renamed and not yet removed.
retention_reclaimed_bytes sum - Bytes that a bookie freed.
retention_compacted_bytes sum - Bytes that a bookie freed by compaction.
retention_dropped_ledgers sum - Ledgers that a bookie found to be gone.
retention_dropped_events sum - Events beyond those that one reading records.
retention_poll_age_seconds gauge - Time since all brokers that were asked have answered.
retention_round_seconds gauge - Time between two looks at a folder.
broker_log_poll_age_seconds gauge - Time since the brokers' logs were read.
smart_passed gauge - 1 if the drive calls itself healthy.
smart_wear_ratio gauge - Used part of the drive's endurance.
smart_available_spare_ratio gauge - Unused part of the drive's spare blocks.
smart_free_blocks_ratio gauge - Erased part of the flash.
smart_media_errors counter - Errors of the medium.
smart_reallocated_sectors counter - Sectors that the drive has replaced.
smart_temperature_celsius gauge - Temperature.
smart_written_bytes counter - Written by the host.
smart_media_written_bytes counter - Written to the flash, garbage collection included.
smart_hot_seconds counter - Time above the temperature that the drive warns of.
smart_throttled_seconds counter - Time in which the drive slowed itself down for heat.
smart_throttle_events counter - Times that the drive slowed itself down.
smart_throttle_level gauge - 0: not throttled; 1 to 3.
smart_slow_requests gauge - Requests beyond the drive's own limits, in its present window.
"""
"""A line a column: column, kind, name without `soak_` and `_total` (-: that of the column), help text."""

# The names of node_exporter, without `_total`; a column is the growth a second.
_NODE_COUNTERS = {
    **{
        f"node_disk_{name}": f"Disk: {name.replace('_', ' ')}, {_NODE}."
        for name in (
            "reads_completed",
            "reads_merged",
            "read_bytes",
            "read_time_seconds",
            "writes_completed",
            "writes_merged",
            "written_bytes",
            "write_time_seconds",
            "io_time_seconds",
            "io_time_weighted_seconds",
            "discards_completed",
            "discards_merged",
            "discarded_sectors",
            "discard_time_seconds",
            "flush_requests",
            "flush_requests_time_seconds",
        )
    },
    **{
        f"node_pressure_{name}_seconds": f"Pressure: {name.replace('_', ' ')}, {_NODE}."
        for name in (
            "cpu_waiting",
            "io_waiting",
            "io_stalled",
            "irq_stalled",
            "memory_waiting",
            "memory_stalled",
        )
    },
}
_NODE_GAUGES = {
    "node_disk_io_now": ("node_disk_io_now", "Requests in flight."),
    "host_load_1m": ("node_load1", "1m load average."),
    "node_timex_sync_status": ("node_timex_sync_status", "Is clock synchronized to a server."),
    "node_timex_offset_seconds": ("node_timex_offset_seconds", "Offset of the clock."),
    "node_timex_maxerror_seconds": ("node_timex_maxerror_seconds", "Maximum error of the clock."),
    "node_timex_estimated_error_seconds": (
        "node_timex_estimated_error_seconds",
        "Estimated error of the clock.",
    ),
    "node_timex_frequency_adjustment_ratio": (
        "node_timex_frequency_adjustment_ratio",
        "Adjustment of the clock's frequency.",
    ),
}


def _shown_of(line: str) -> tuple[str, Shown]:
    metric, kind, name, text = line.split(maxsplit=3)
    stem = metric.removesuffix("_total") if name == "-" else name
    return metric, Shown(f"soak_{stem}", cast("Kind", kind), text)


SHOWN: dict[str, Shown] = {
    **dict(_shown_of(line) for line in _TABLE.strip().splitlines() if not line.startswith("#")),
    **{metric: Shown(metric, "rate", text) for metric, text in _NODE_COUNTERS.items()},
    **{metric: Shown(name, "gauge", text) for metric, (name, text) in _NODE_GAUGES.items()},
}
"""Each column of our own by its metric."""

_LEFT_OUT = frozenset({"process_cpu_ratio"})  # `process_cpu_seconds_total` is on each page
_FETCHED = "Fetched by the probe prometheus; rates a second where the page of the target counts."
_FROM_LOG = "Time that the lines of a broker's log tell."


def shown_as(column: Column) -> Shown | None:
    """Return how a column is shown; None: it is left out.

    What the probe `prometheus` has fetched, with the label `target`, keeps its name, and is never summed: not
    every second has a value.
    """
    metric, names = column.metric, [name for name, _ in column.labels]
    found = SHOWN.get(metric)
    if found is not None and not (found.kind in ADDED_UP and "target" in names):
        return found
    if metric in _LEFT_OUT:
        return None
    if "target" in names:
        name = f"soak_probe_{metric}" if _is_reserved(metric) else metric
        return Shown(name.removesuffix("_total"), _kind(metric, names), _FETCHED)
    if "log" in names:
        return Shown(f"soak_{metric}", "sum", _FROM_LOG)
    stem = metric.removesuffix("_total")
    words = stem.replace("_", " ").capitalize()
    return Shown(f"soak_{stem}", _kind(metric, names), f"{words}, in {column.unit or 'numbers'}.")


def _kind(metric: str, labels: list[str]) -> Kind:
    if "quantile" in labels:
        return "summary"
    return "counter" if metric.endswith("_total") else "gauge"


def _is_reserved(metric: str) -> bool:
    """True for names that a scraper gives to metrics of its own; a probe may have fetched such metrics."""
    return metric == "up" or metric.startswith("scrape_")
