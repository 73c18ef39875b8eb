"""The size of an incident: levels before, at the worst and after, and the messages that were slow."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from detectors.minimum_effect import Config as MinimumEffect
from soak.core.journal_format import Columns, columns_line, decode, encode
from soak.core.model import Column, Finding, Record
from soak.runtime.incident_size import IncidentSize, Level, incident_size
from soak.store.journal.history import History
from soak.store.journal.reader import segments
from tests.support.alerting.findings import finding
from tests.support.spark.synthetic_run import CONSUMER, Shape, write_synthetic_run

P99 = f'{CONSUMER}|end_to_end_latency_seconds{{quantile="0.99"}}'
P99_OF_LEADER = f'{CONSUMER}|end_to_end_latency_seconds{{leader="2",quantile="0.99"}}'
ONSET_K, END_K = 130, 190


def size_of(
    path: Path, resolved_k: int | None, before: float = 0.004, series: str = P99
) -> IncidentSize | None:
    folder = write_synthetic_run(
        path / "run", Shape(seconds=300, fault_k=ONSET_K, lifted_k=END_K)
    ).journal
    found = finding(
        "gone" if resolved_k else "confirmed",
        series=series,
        onset_k=ONSET_K,
        before=before,
        resolved_k=resolved_k,
    )
    return incident_size(History(folder), found, 250, MinimumEffect())


@pytest.mark.long
def test_levels_are_those_around_and_the_worst_in_it(tmp_path: Path) -> None:
    size = size_of(tmp_path, END_K)

    assert size is not None
    p99 = size.levels["p99"]
    assert size.seconds == END_K - ONSET_K
    assert p99.before == pytest.approx(p99.after, rel=0.3)
    assert 10 < p99.worst / p99.before < 20
    assert size.levels["max"].worst >= size.levels["p99.9"].worst
    assert len(size.lines()) == 5


def test_the_messages_above_the_level_before_are_counted_in_the_incident_alone(
    tmp_path: Path,
) -> None:
    size = size_of(tmp_path, END_K)
    assert size is not None
    (path,) = segments(tmp_path / "run" / "journal" / CONSUMER)
    lines = path.read_bytes().splitlines()
    names = next(found for found in map(decode, lines) if isinstance(found, Columns)).columns
    at = [
        i
        for i, one in enumerate(names)
        if one.metric == "end_to_end_latency_above_messages"
        and float(dict(one.labels)["threshold"]) == size.limit
    ]
    records = [found for found in map(decode, lines) if isinstance(found, Record)]
    expected = sum(
        np.nansum(np.array(one.values)[at]) for one in records if ONSET_K <= one.k < END_K
    )

    assert size.slow_messages == expected > 0
    assert 0.006 <= size.limit <= 0.008


def test_messages_are_counted_whatever_leader_the_headline_is_of(tmp_path: Path) -> None:
    """Their counts have no leader; none of them is no zero."""
    of_all = size_of(tmp_path / "all", END_K)
    folder = write_synthetic_run(
        tmp_path / "run", Shape(seconds=300, fault_k=ONSET_K, lifted_k=END_K)
    ).journal
    add_leader_column(folder / CONSUMER)
    found = finding("gone", series=P99_OF_LEADER, onset_k=ONSET_K, before=0.004, resolved_k=END_K)

    size = incident_size(History(folder), found, 250, MinimumEffect())

    assert of_all is not None
    assert size is not None
    assert size.slow_messages == of_all.slow_messages


def add_leader_column(source: Path) -> None:
    """Give each record the first quantile once more, as that of a leader."""
    added = Column("end_to_end_latency_seconds", (("leader", "2"), ("quantile", "0.99")), "seconds")
    (path,) = segments(source)
    new = b""
    for line in map(decode, path.read_bytes().splitlines()):
        if isinstance(line, Columns):
            columns = columns_line((*line.columns, added))
            new += encode(columns)
        elif isinstance(line, Record):
            values = (*line.values, line.values[0])
            new += encode(dataclasses.replace(line, columns_id=columns.id, values=values))
    path.write_bytes(new)


def test_what_no_source_counts_is_not_zero() -> None:
    level = Level(0.001, 0.01, 0.001)
    size = IncidentSize({"p99": level}, 0.002, None, 60)

    assert size.messages_text() == ""
    assert len(size.lines()) == 1


def test_an_open_incident_has_no_level_after(tmp_path: Path) -> None:
    size = size_of(tmp_path, None)

    assert size is not None
    assert np.isnan(size.levels["p99"].after)
    assert all("now" not in line for line in size.lines())
    assert size.to_json()["levels"]["p99"]["after"] is None  # type: ignore[index]


def test_what_has_no_histogram_or_no_records_has_no_size(tmp_path: Path) -> None:
    journal = write_synthetic_run(tmp_path / "run", Shape(seconds=130)).journal
    stopped = finding("confirmed", series=P99, kind="outage", onset_k=10)
    other = finding("confirmed", series="fsync@h|fsync_seconds", onset_k=10)
    later = finding("confirmed", series=P99, onset_k=5000)

    sizes = [
        incident_size(History(journal), one, 6000, MinimumEffect())
        for one in (stopped, other, later)
    ]
    assert sizes == [None, None, None]


@pytest.mark.long
def test_a_step_of_waits_alone_has_the_level_that_it_was_found_with(tmp_path: Path) -> None:
    """Nothing was acknowledged since its onset, so no quantile is known: only that it is at least this."""
    folder = write_synthetic_run(
        tmp_path / "run", Shape(seconds=300, fault_k=None, deletions_k=None)
    ).journal
    found = finding("confirmed", series=P99, onset_k=300, before=0.004, after=4.0)

    size = incident_size(History(folder), found, 310, MinimumEffect())

    assert size is not None
    assert size.levels["p99"].worst == 4.0
    assert any("p99 " in line and "4 s in the worst second" in line for line in size.lines())


def stopped_delivery() -> Finding:
    """Return an outage that is over, in which nothing was received for a minute."""
    return finding(
        "gone",
        series=f"{CONSUMER}|delivery_outage_seconds",
        kind="outage",
        onset_k=ONSET_K,
        before=0.0,
        after=60.0,
        resolved_k=END_K,
    )


def test_an_outage_has_the_latencies_of_what_waited_in_it(tmp_path: Path) -> None:
    """It is over, and its messages came late; while it lasts nothing is known of them."""
    journal = write_synthetic_run(
        tmp_path / "run", Shape(seconds=300, fault_k=ONSET_K, lifted_k=END_K)
    ).journal
    stopped = stopped_delivery()
    lasting = dataclasses.replace(stopped, state="confirmed", resolved_k=None)

    size = incident_size(History(journal), stopped, 250, MinimumEffect())

    assert size is not None
    assert 10 < size.levels["p99"].worst / size.levels["p99"].before < 30
    assert size.slow_messages
    assert incident_size(History(journal), lasting, 250, MinimumEffect()) is None


def test_messages_of_an_outage_are_said_to_be_of_the_seconds_in_which_they_were_counted(
    tmp_path: Path,
) -> None:
    """They came late: ten seconds after its end count too, or those that are recorded by then."""
    journal = write_synthetic_run(
        tmp_path / "run", Shape(seconds=300, fault_k=ONSET_K, lifted_k=END_K)
    ).journal
    stopped = stopped_delivery()
    last = dataclasses.replace(stopped, resolved_k=296)

    whole, short = (
        incident_size(History(journal), one, 300, MinimumEffect()) for one in (stopped, last)
    )

    assert whole is not None
    assert short is not None
    assert (whole.seconds, whole.later_seconds) == (60, 10)
    assert (short.seconds, short.later_seconds) == (166, 4)
    assert "messages in the 1 min 10 s from the onset on, 10 s of them after its end, took" in (
        whole.messages_text()
    )
