"""What the cluster was given to do around a step: by us, and by all as far as its brokers tell."""

from __future__ import annotations

from detectors.causes._moves import Move, moves
from detectors.nearby import Nearby
from soak.core.model import Change

_TAKEN_IN = (
    "kafka_server_brokertopicmetrics_bytesin",
    "vectorized_storage_log_written_bytes",
    "bookie_journal_JOURNAL_WRITE_BYTES",
    "pulsar_in_bytes",
)
_GIVEN_OUT = (
    "kafka_server_brokertopicmetrics_bytesout",
    "vectorized_io_queue_total_read_bytes",
    "pulsar_out_messages",
)
_BACKLOGS = (
    "lag_messages",
    "backlog_messages",
    "pulsar_subscription_back_log",
    "pulsar_storage_backlog_size_bytes",
    "pulsar_ml_NumberOfMessagesInBacklog",
)
_MORE = 1.3


def sent(change: Change, nearby: Nearby) -> list[Move]:
    return moves("sent_messages", change, nearby)


def taken_in(change: Change, nearby: Nearby) -> list[Move]:
    """Return what the brokers say they wrote."""
    return [one for metric in _TAKEN_IN for one in moves(metric, change, nearby)]


def given_out(change: Change, nearby: Nearby) -> list[Move]:
    """Return what the brokers say they read for others."""
    return [one for metric in _GIVEN_OUT for one in moves(metric, change, nearby)]


def backlogs(nearby: Nearby) -> tuple[str, ...]:
    """Return the series of all backlogs, ours and those that a broker tells."""
    return tuple(name for metric in _BACKLOGS for name in nearby.named(metric))


def has_grown(found: list[Move]) -> bool:
    return any(not one.is_calm and one.ratio >= _MORE for one in found)
