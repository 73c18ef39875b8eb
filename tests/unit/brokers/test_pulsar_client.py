"""Parts of the Pulsar broker port without a cluster: offsets, settings, reports, logs."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from typing import Any

import _pulsar
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.brokers import pulsar
from soak.brokers.pulsar import client, partition_log, topics
from soak.brokers.pulsar.client import ClientLogPipe
from soak.brokers.pulsar.partition_log import PartitionLog, log_of
from soak.brokers.pulsar.producer import SendReports, partition_of
from soak.core.clock import SystemClock
from soak.core.errors import BrokerError, SettingError
from soak.core.ports import FAILED_OFFSET, UNKNOWN_OFFSET, ReceiveError
from soak.core.units import SECOND_NS
from tests.support.fakes import FakeClock
from tests.support.pages import serving

PLACES = st.tuples(
    st.integers(0, 2**partition_log.LEDGER_BITS - 1),
    st.integers(0, 2**partition_log.ENTRY_BITS - 1),
    st.integers(0, partition_log.MAX_BATCH_MESSAGES - 1),
)


@given(first=PLACES, second=PLACES)
def test_offsets_rise_as_message_ids_do_and_tell_them_again(
    first: tuple[int, int, int], second: tuple[int, int, int]
) -> None:
    packed = [partition_log.pack_offset(*place) for place in (first, second)]

    assert (packed[0] < packed[1]) == (first < second)
    assert [partition_log.unpack_offset(offset) for offset in packed] == [first, second]
    assert max(packed) < 2**63


@given(places=st.lists(PLACES, max_size=20))
def test_many_offsets_are_packed_as_one_is(places: list[tuple[int, int, int]]) -> None:
    """The slow twin is the function for one."""
    ledger, entry, index = np.array(places, dtype=np.int64).reshape(-1, 3).T

    assert partition_log.pack_offsets(ledger, entry, index).tolist() == [
        partition_log.pack_offset(*one) for one in places
    ]


def test_a_message_outside_a_batch_is_its_entrys_first() -> None:
    assert partition_log.pack_offset(7, 3, -1) == partition_log.pack_offset(7, 3, 0)


@pytest.mark.parametrize(
    ("place", "what"),
    [((2**27, 0, 0), "ledgers"), ((0, 2**24, 0), "entries"), ((0, 0, 4096), "messages a batch")],
)
def test_a_message_id_that_does_not_fit_is_an_error(place: tuple[int, int, int], what: str) -> None:
    with pytest.raises(BrokerError, match=what):
        partition_log.pack_offsets(*(np.array([part]) for part in place))


def test_settings_are_converted_for_the_client() -> None:
    """Numbers, booleans and choices, all written as text."""
    found = client.convert_settings(
        "producer",
        {"batching_enabled": "true", "compression_type": "LZ4", "max_pending_messages": "7"},
    )

    assert found["batching_enabled"] is True
    assert found["compression_type"].name == "LZ4"
    assert found["max_pending_messages"] == 7


@pytest.mark.parametrize(
    ("where", "name", "text", "said"),
    [
        ("producer", "batching_enable", "true", "did you mean 'batching_enabled'"),
        ("producer", "block_if_queue_full", "true", "is fixed by soakd"),
        ("producer", "batching_max_messages", "5000", "at most 4096"),
        ("producer", "batching_enabled", "yes", "true, false"),
        ("producer", "schema", "x", "no such setting"),
        ("client", "io_threads", "many", "whole number"),
        ("consumer", "consumer_type", "Shared", "Exclusive or Failover"),
        ("consumer", "consumer_type", "exclusive", "must be one of Exclusive"),
        ("client", "token", "abc", "must not stand in a plan"),
        ("client", "authentication", "tls", "must be token"),
        ("client", "authentication", "token", "go together"),
    ],
)
def test_a_wrong_setting_is_named_with_its_place(
    where: str, name: str, text: str, said: str
) -> None:
    """Before any request to a cluster."""
    sections: dict[str, Any] = {where: {name: text}}
    broker = pulsar.connect(pulsar.Config(**sections), SystemClock())

    with pytest.raises(SettingError, match=said) as caught:
        broker.check_settings()

    assert caught.value.place == (where, name)


def test_every_wrong_setting_is_named() -> None:
    """Of each section, and the address that is missing."""
    config = pulsar.Config(
        service_url="pulsar://b1:6650",
        client={"authentication": "tls", "io_threads": "many"},
        producer={"schema": "x", "batching_enabled": "yes", "use_tls": "true"},
        consumer={"consumer_type": "Shared"},
    )

    with pytest.raises(SettingError) as caught:
        pulsar.connect(config, SystemClock()).check_settings()

    assert [one.place for one in (caught.value, *caught.value.others)] == [
        ("admin_url",),
        ("client", "authentication"),
        ("client", "io_threads"),
        ("producer", "use_tls"),
        ("producer", "schema"),
        ("producer", "batching_enabled"),
        ("consumer", "consumer_type"),
    ]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, ""), (40, "40 s ahead of this host's"), (-40, "39 s behind this host's")],
)
def test_a_clock_apart_from_that_of_the_brokers_is_a_warning(seconds: int, said: str) -> None:
    """By the date of an answer of the admin interface, whatever it answers."""
    clock = FakeClock()
    at = datetime.fromtimestamp(clock.wall_ns() // SECOND_NS + seconds, UTC)

    class Page(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(404)
            self.end_headers()

        def date_time_string(self, timestamp: float | None = None) -> str:
            del timestamp
            return format_datetime(at, usegmt=True)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's
            """Say nothing."""

    with serving(Page) as url:
        config = pulsar.Config(service_url="pulsar://127.0.0.1:1", admin_url=url)
        warnings = pulsar.connect(config, clock).cluster_warnings()

    assert [f"the clock of {url} is {said}" in warning for warning in warnings] == [True] * bool(
        said
    )


def test_the_default_settings_are_known() -> None:
    """A reference to a token is not a secret in the plan."""
    by_name = {"authentication": "token", "token": "${env:NOT_READ_YET}"}

    pulsar.connect(pulsar.Config(client=by_name), SystemClock()).check_settings()


def test_a_token_that_no_header_can_carry_is_refused_without_showing_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PULSAR_TOKEN", "eyJhbGciOi\nJIUzI1NiJ9")
    by_name = {"authentication": "token", "token": "${env:PULSAR_TOKEN}"}
    config = pulsar.Config(admin_url="http://127.0.0.1:1", client=by_name)
    broker = pulsar.connect(config, SystemClock())

    with pytest.raises(BrokerError, match="line break") as caught:
        broker.existing(["t"])

    assert "eyJ" not in str(caught.value)


def test_a_setting_of_the_producer_leaves_our_others_as_they_were() -> None:
    config = pulsar.Config(
        producer={"compression_type": "LZ4", "batching_max_publish_delay_ms": "5"}
    )

    assert config.producer == {
        "batching_enabled": "true",
        "batching_max_publish_delay_ms": "5",
        "compression_type": "LZ4",
    }


def test_chunking_turns_batches_off() -> None:
    """The client refuses both together."""
    assert pulsar.Config(producer={"chunking_enabled": "true"}).producer == {
        "chunking_enabled": "true"
    }


def test_topic_settings_become_policies() -> None:
    """Each is posted where the admin interface has it; quorums follow the replication."""
    found = topics.policies_of(
        3, {"retentionSizeInMB": "8", "messageTTL": "60", "deduplicationEnabled": "true"}
    )

    assert found["retention"] == {"retentionTimeInMinutes": -1, "retentionSizeInMB": 8}
    assert found["messageTTL?messageTTL=60"] is None
    assert found["deduplicationEnabled"] is True
    persistence = found["persistence"]
    assert isinstance(persistence, dict)
    assert [persistence[f"bookkeeper{kind}"] for kind in ("Ensemble", "WriteQuorum")] == [3, 3]
    assert persistence["bookkeeperAckQuorum"] == 2


def test_a_key_goes_where_the_java_client_sends_it() -> None:
    """String.hashCode of known words, from Java's own definition: sums of 31^k times a letter."""
    assert partition_of(b"hello", 2**31) == 99162322
    assert partition_of(b"", 7) == 0
    assert partition_of(b"polygenelubricants", 2**31) == 0  # hashes to the least integer there is


def log_stats(*entries: int, state: str = "LedgerOpened", last: str = "9:4") -> dict[str, Any]:
    """Return ledgers 5, 7, 9 ... with these entries; the open one is listed with 0, as brokers do."""
    ledgers = [{"ledgerId": 5 + 2 * at, "entries": held} for at, held in enumerate(entries)]
    if state == "LedgerOpened":
        ledgers[-1]["entries"] = 0
    return {
        "ledgers": ledgers,
        "state": state,
        "currentLedgerEntries": entries[-1],
        "lastConfirmedEntry": last,
    }


def test_a_log_reaches_from_its_first_ledger_to_behind_its_last_entry() -> None:
    assert log_of(log_stats(10, 10, 5)).bounds == (
        partition_log.pack_offset(5, 0),
        partition_log.pack_offset(9, 5),
    )
    assert log_of(log_stats(0, last="5:-1")).bounds == (
        partition_log.pack_offset(5, 0),
        partition_log.pack_offset(5, 0),
    )


@pytest.mark.parametrize(
    ("offset", "left"),
    [
        (-2, 25),
        (partition_log.pack_offset(4, 9), 25),  # in a ledger that is gone
        (partition_log.pack_offset(5, 0), 25),
        (partition_log.pack_offset(5, 0, 1), 24),  # an entry that was begun counts as read
        (partition_log.pack_offset(5, 9, 3), 15),
        (partition_log.pack_offset(6, 0), 15),
        (partition_log.pack_offset(9, 4), 1),
        (partition_log.pack_offset(9, 4, 1), 0),
        (partition_log.pack_offset(11, 0), 0),  # younger than the answer
    ],
)
def test_entries_are_counted_from_an_offset_over_all_ledgers(offset: int, left: int) -> None:
    assert PartitionLog((5, 7, 9), (10, 10, 5), (9, 4)).entries_from(offset) == left


class Id:
    """A message id as the client's callback gives it."""

    def __init__(self, ledger: int, entry: int, index: int) -> None:
        self._parts = ledger, entry, index

    def ledger_id(self) -> int:
        return self._parts[0]

    def entry_id(self) -> int:
        return self._parts[1]

    def batch_index(self) -> int:
        return self._parts[2]


def test_up_to_ten_lines_a_second_of_the_client_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A lost broker with thousands of partitions must not fill a disk."""
    clock = FakeClock()
    lines = ClientLogPipe(clock)

    for at in range(23):
        lines.log_line(f"2026-01-01 00:00:00.000 WARN  [140] ClientConnection:42 | line {at}")
    clock.advance(1.0)
    lines.log_line("2026-01-01 00:00:01.000 ERROR [140] ProducerImpl:7 | the next")

    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "client_log line=line 0"
    assert said[10:] == ["client_lines_skipped count=13", "client_log line=the next"]


def test_error_lines_of_the_client_are_counted_with_what_they_name() -> None:
    """It has no callback for errors: a consumer's are known from its lines alone."""
    lines = ClientLogPipe(FakeClock())
    place = "[persistent://public/default/soak-t-partition-3, audit-0, 0]"
    refused = "Failed to establish connection to 0.0.0.0:0: Connection refused"
    closed = "Connection closed with ConnectError"
    for text in (
        f"ERROR [140] ClientConnection:485 | [<none> -> pulsar://b1:6650] {refused}",
        f"ERROR [141] ClientConnection:485 | [<none> -> pulsar://b1:6650] {refused}",
        f"ERROR [140] ClientConnection:1288 | [10.0.0.9:4711 -> 10.0.0.2:6650] {closed} (refCnt: 2)",
        f"ERROR [140] ConsumerImpl:312 | {place} Failed to create consumer: AuthorizationError",
        "WARN  [140] ClientConnection:42 | [<none> -> pulsar://b1:6650] Forcing connection to close",
        "no line of the client's form",
    ):
        lines.log_line(text if text.startswith("no") else f"2026-01-01 00:00:00.000 {text}")

    assert lines.take_errors() == {
        ReceiveError(refused, broker="b1:6650"): 2,
        ReceiveError(closed, "ConnectError", "10.0.0.2:6650"): 1,
        ReceiveError(
            "Failed to create consumer: AuthorizationError",
            "AuthorizationError",
            partition="soak-t-3",
        ): 1,
    }
    assert lines.take_errors() == {}


def test_reports_distinguish_acknowledged_duplicate_and_failed_messages() -> None:
    """A message refused by a full queue has no report: it was not sent."""
    result = _pulsar.Result
    ticks = iter(range(100))
    notes = SendReports(lambda: next(ticks))
    nowhere = Id(-1, -1, -1)

    notes.note(1, result.Ok, Id(7, 3, 2))
    notes.note(2, result.Ok, nowhere)
    notes.note(3, result.Timeout, nowhere)
    refused = [(notes.refused, notes.was_queue)]
    for token, why in ((4, result.ProducerQueueIsFull), (5, result.MemoryBufferIsFull)):
        notes.note(token, why, nowhere)
        refused.append((notes.refused, notes.was_queue))

    assert len(notes) == 3
    assert notes.take().tolist() == [
        [1, 7, 3, 2, 0],
        [2, UNKNOWN_OFFSET, 0, 0, 1],
        [3, FAILED_OFFSET, 0, 0, 2],
    ]
    assert notes.take().shape == (0, 5)
    assert refused == [(-1, False), (4, True), (5, False)]
    assert notes.last_error == "Timeout"
