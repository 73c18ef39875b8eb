"""The load at the time of a message: rates, failures, and what is known of lost messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from soak.alerting.load_state import LoadState, lost_text, read_load, read_rate_before
from soak.core.journal_format import columns_line, encode
from soak.core.model import Column, Record
from soak.core.units import SECOND_NS
from soak.store.journal.history import History
from tests.support.spark.synthetic_run import START_WALL_NS

COLUMNS = columns_line(
    [Column(f"{name}_messages", (), "messages") for name in ("sent", "acked", "failed")]
)


def write_producer(journal: Path, number: int, *parts: tuple[range, float, float, float]) -> None:
    """Write the records of a producer: what it sent, had acknowledged and failed in each second of a part."""
    lines = [
        encode(
            Record(
                k=k,
                epoch=1,
                at_ns=START_WALL_NS + (k + 1) * SECOND_NS,
                length_ns=SECOND_NS,
                columns_id=COLUMNS.id,
                values=(sent, acked, failed),
            )
        )
        for ks, sent, acked, failed in parts
        for k in ks
    ]
    folder = journal / f"produce.{number}@h"
    folder.mkdir()
    (folder / "000000.jsonl").write_bytes(encode(COLUMNS) + b"".join(lines))


def write_consumer(journal: Path, number: int, k: int, lag: float) -> None:
    """Write the one record of a consumer: what waited for it in a second in which it received 1136."""
    columns = columns_line(
        [Column(f"{name}_messages", (), "messages") for name in ("received", "lag")]
    )
    record = Record(
        k=k,
        epoch=1,
        at_ns=START_WALL_NS + (k + 1) * SECOND_NS,
        length_ns=SECOND_NS,
        columns_id=columns.id,
        values=(1_136.0, lag),
    )
    folder = journal / f"consume.{number}@h"
    folder.mkdir()
    (folder / "000000.jsonl").write_bytes(encode(columns) + encode(record))


def load_of(journal: Path, onset_k: int, end_k: int, resolved_k: int | None = None) -> str:
    found = read_load(History(journal), onset_k, end_k, resolved_k)
    assert found is not None
    return found.text()


def test_rates_are_those_of_all_producers_and_failures_count_from_the_onset(tmp_path: Path) -> None:
    write_producer(tmp_path, 0, (range(100), 600, 590, 0))
    write_producer(tmp_path, 1, (range(100), 400.5, 23, 7))

    assert load_of(tmp_path, 50, 100) == (
        "1,000/s sent, 613/s acknowledged, so 388/s wait or fail; 350 messages failed since the onset"
    )


def test_a_producer_without_a_record_of_these_seconds_is_said_to_be_missing(tmp_path: Path) -> None:
    """Its failures since the onset are counted."""
    write_producer(tmp_path, 0, (range(100), 400, 0, 0))
    write_producer(tmp_path, 1, (range(80), 400, 400, 1))

    assert load_of(tmp_path, 79, 100) == (
        "400/s sent, 0/s acknowledged, so 400/s wait or fail; 1 message failed since the onset; "
        "1 of 2 producers are recorded"
    )


def test_of_a_long_incident_the_failures_of_its_last_minutes_are_counted(tmp_path: Path) -> None:
    write_producer(tmp_path, 0, (range(2000), 400, 400, 1))

    assert load_of(tmp_path, 20, 2000) == (
        "400/s sent, 400/s acknowledged; 900 messages failed in the last 15 min"
    )


def test_a_resolved_incident_has_the_rates_after_its_end_and_nothing_waits(tmp_path: Path) -> None:
    """Most of the ten seconds before the message lie in the outage, where nothing was acknowledged."""
    write_producer(tmp_path, 0, (range(98), 400, 0, 0), (range(98, 100), 400, 360, 0))

    assert load_of(tmp_path, 60, 100, resolved_k=98) == (
        "400/s sent, 360/s acknowledged; 0 messages failed since the onset"
    )
    assert read_load(History(tmp_path), 60, 98, 98) is None


def test_the_seconds_before_the_onset_do_not_count(tmp_path: Path) -> None:
    """An outage may be reported after a few seconds."""
    write_producer(tmp_path, 0, (range(95), 400, 400, 0), (range(95, 100), 400, 0, 0))

    assert load_of(tmp_path, 95, 100) == (
        "400/s sent, 0/s acknowledged, so 400/s pile up; 0 messages failed since the onset"
    )


@pytest.mark.parametrize(
    ("stalled", "clause"), [(1, ""), (5, ""), (6, ", so 240/s pile up"), (10, ", so 400/s pile up")]
)
def test_messages_pile_up_where_they_do_in_most_seconds(
    tmp_path: Path, stalled: int, clause: str
) -> None:
    """A stall of a few seconds whose messages are not acknowledged yet is none."""
    parts = (range(100 - stalled), 400, 400, 0), (range(100 - stalled, 100), 400, 0, 0)
    write_producer(tmp_path, 0, *parts)

    assert f"/s acknowledged{clause}; 0 messages failed" in load_of(tmp_path, 50, 100)


def test_a_load_that_is_acknowledged_but_for_a_few_does_not_pile_up(tmp_path: Path) -> None:
    """In ten seconds as many may come a moment later."""
    write_producer(tmp_path, 0, (range(100), 1000, 951, 0))
    write_producer(tmp_path, 1, (range(100), 0, 0, 0))

    assert load_of(tmp_path, 50, 100) == (
        "1,000/s sent, 951/s acknowledged; 0 messages failed since the onset"
    )


def test_the_rate_before_the_onset_is_that_of_all_producers(tmp_path: Path) -> None:
    """Later it may be less: clients that wait send less."""
    write_producer(tmp_path, 0, (range(50), 400, 400, 0), (range(50, 60), 4, 4, 0))
    write_producer(tmp_path, 1, (range(60), 600, 600, 0))

    history = History(tmp_path)

    assert [read_rate_before(history, k) for k in (50, 5, 0)] == [1000.0, 1000.0, 0.0]


def test_without_records_nothing_is_known_of_the_load(tmp_path: Path) -> None:
    """The journals are on another host, or the run began a moment ago."""
    write_producer(tmp_path, 0, (range(20), 400, 400, 0))

    found = [read_load(History(tmp_path / one), 0, k) for one, k in (("", 40), ("", 0), ("no", 9))]

    assert found == [None, None, None]


@pytest.mark.parametrize(
    ("audit", "expected"),
    [
        (None, "not known before the end of the run"),
        ({"lost": None, "duplicated": 3}, "not known"),
        ({"lost": 0, "duplicated": 0}, "0 messages, 0 duplicated"),
        ({"lost": 1, "duplicated": 1234}, "1 message, 1,234 duplicated"),
        ({"lost": 0}, "0 messages"),
    ],
)
def test_nothing_is_said_to_be_lost_or_not_before_it_is_known(
    audit: dict[str, Any] | None, expected: str
) -> None:
    """Without acknowledgements a lost message is never known."""
    assert lost_text(audit) == expected


def test_of_end_to_end_latency_the_load_has_what_consumers_received_and_what_waits(
    tmp_path: Path,
) -> None:
    """The rate is a mean, the backlog that of the last second of each consumer."""
    write_producer(tmp_path, 0, (range(100), 400, 400, 0))
    write_consumer(tmp_path, 0, 99, 20_000.0)
    write_consumer(tmp_path, 1, 99, 574.0)

    found = read_load(History(tmp_path), 50, 100, with_consumers=True)

    assert found is not None
    assert found.text() == (
        "400/s sent, 400/s acknowledged, 2,272/s received, 20,574 wait unread; 0 messages failed since the "
        "onset"
    )
    assert "received" not in load_of(tmp_path, 50, 100)


def test_what_waits_is_not_known_where_a_consumer_has_no_record_of_it(tmp_path: Path) -> None:
    """The most may wait for the one that died."""
    write_producer(tmp_path, 0, (range(100), 400, 400, 0))
    write_consumer(tmp_path, 0, 99, 574.0)
    write_consumer(tmp_path, 1, 80, 20_000.0)

    found = read_load(History(tmp_path), 50, 100, with_consumers=True)

    assert found is not None
    assert (found.received, found.unread) == (1_136.0, None)


def test_a_slow_load_keeps_its_fractions() -> None:
    slow = LoadState(0.5, 0.45, 0, 20, is_since_onset=True, producers=1, recorded=1, is_behind=True)

    assert slow.text() == (
        "0.5/s sent, 0.45/s acknowledged, so 0.05/s pile up; 0 messages failed since the onset"
    )
