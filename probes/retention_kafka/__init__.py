"""Retention in Kafka: which partitions lost their oldest segments, when, and when the disk space was freed.

Source:   earliest offsets of the run's topics (AdminClient.list_offsets), once every `period` on a thread of
          its own. Partition folders, where `directory` is on this host: a segment's file is created, is
          renamed to `.deleted` when the log start moves, and is unlinked `effect_lag` later. What else the
          cluster has to do: see `cluster`.
Overhead: one request a poll, 2 to 5 ms of CPU for 200 partitions; two stat calls a folder, 5 ms at most.
Caveats:  Several deletions of a partition between two polls are one event. Without the folder there are
          neither bytes nor files; Redpanda's folders have another layout and are not read. If there are more
          partitions than `partitions_per_poll`, they are polled in turn until the log start of one moves, and
          then all at once: what a broker deletes in one go is reported within two polls of its first sign. If
          there are more folders than can be read in 5 ms, each is read every `retention_round_seconds`.
          Deleted messages are a difference of offsets: too high for a compacted or transactional log. A topic
          has no size until each of its folders was read once, and while one of them cannot be read.

Open `probe` first; it follows `log_starts` by the answers of `offsets`, files by `segments`, and copies and
the topics of others by `cluster`.
"""

from probes.retention_kafka.probe import Config, build, check_settings, preflight

__all__ = ["Config", "build", "check_settings", "preflight"]
