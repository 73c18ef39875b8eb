"""Whether a broker that was silent answers again when its incident is over."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path

import pytest

from soak.alerting.broker_state import read_broker_state
from soak.core.journal_format import columns_line, encode
from soak.core.model import Column, Explanation, Record
from soak.core.units import SECOND_NS
from soak.store.findings.store import FindingsStore
from soak.store.journal.history import History
from tests.support.alerting.daemon import DELIVERED, KEY, RUN, AlertWorld
from tests.support.alerting.findings import SERIES, finding
from tests.support.spark.synthetic_run import START_WALL_NS

ONSET_K, END_K = 60, 90
COLUMNS = columns_line(
    [
        Column("broker_round_trip_seconds", (("target", "b3:9092"),), "seconds"),
        Column("probe_lag_seconds", (("probe", "round_trip"),), "seconds"),
    ]
)


def write_answers(
    journal: Path,
    silent_k: Collection[int],
    recorded_k: Collection[int],
    unreported_k: Collection[int] = (),
    source: str = "probe@h",
) -> None:
    """Write what a probe records that has no answer in some seconds, or reports nothing."""
    lines = [
        encode(
            Record(
                k=k,
                epoch=1,
                at_ns=START_WALL_NS + (k + 1) * SECOND_NS,
                length_ns=SECOND_NS,
                columns_id=COLUMNS.id,
                values=(
                    math.nan if k in silent_k or k in unreported_k else 0.001,
                    math.nan if k in unreported_k else 0.001,
                ),
            )
        )
        for k in recorded_k
    ]
    place = journal / source
    place.mkdir(parents=True)
    (place / "000000.jsonl").write_bytes(encode(COLUMNS) + b"".join(lines))


def state(
    folder: Path,
    silent_k: Collection[int],
    suspect: str = "b3:9092",
    *,
    recorded_k: Collection[int] = range(END_K),
    unreported_k: Collection[int] = (),
    end_k: int = END_K,
    source: str = "probe@h",
) -> str:
    """Return what is said where the probe has no answer in some seconds, or reports nothing."""
    write_answers(folder, silent_k, recorded_k, unreported_k, source)
    return read_broker_state(History(folder), suspect, ONSET_K, end_k, START_WALL_NS)


@pytest.mark.parametrize(
    ("silent_k", "expected"),
    [
        (range(60, 80), "b3:9092 answers again since 14:14:40Z"),
        ((*range(60, 80), 85), "b3:9092 answers again since 14:14:40Z"),
        (range(60, END_K), "b3:9092 does not answer yet"),
        ((60, 70, 80), ""),
        ((), ""),
    ],
)
def test_a_broker_that_was_silent_answers_again_or_not_yet(
    tmp_path: Path, silent_k: Collection[int], expected: str
) -> None:
    """Single seconds without an answer are no silence."""
    assert state(tmp_path, silent_k) == expected


@pytest.mark.parametrize(
    ("end_k", "expected"), [(END_K + 4, "b3:9092 does not answer yet"), (END_K + 5, "")]
)
def test_a_broker_that_nobody_asked_of_late_may_answer_again(
    tmp_path: Path, end_k: int, expected: str
) -> None:
    assert state(tmp_path, range(60, END_K), end_k=end_k) == expected


def test_seconds_in_which_the_probe_reported_nothing_are_no_silence(tmp_path: Path) -> None:
    assert state(tmp_path, (), unreported_k=range(60, 80)) == ""


def test_a_silence_ends_before_seconds_in_which_the_probe_reported_nothing(tmp_path: Path) -> None:
    found = state(tmp_path, range(60, 70), unreported_k=range(70, 80))

    assert found == "b3:9092 answers again since 14:14:40Z"


@pytest.mark.parametrize("seconds", [7197, 7198, 7200, 7201])
def test_an_incident_may_last_as_long_as_a_window_or_longer(tmp_path: Path, seconds: int) -> None:
    end_k = ONSET_K + seconds
    recorded_k = range(end_k - 20, end_k)

    found = state(tmp_path, recorded_k, recorded_k=recorded_k, end_k=end_k)

    assert found == "b3:9092 does not answer yet"


def test_the_journals_of_clients_are_not_read_for_it(tmp_path: Path) -> None:
    assert state(tmp_path, range(60, 80), source="produce.0@h") == ""


@pytest.mark.parametrize("suspect", ["", "b1:9092", "consume.0@h"])
def test_nothing_is_said_of_what_is_not_asked(tmp_path: Path, suspect: str) -> None:
    assert state(tmp_path, range(60, 80), suspect) == ""


def test_each_of_several_suspects_has_its_state(tmp_path: Path) -> None:
    assert state(tmp_path, range(60, 80), "b1:9092, B3:9092") == (
        "B3:9092 answers again since 14:14:40Z"
    )


def test_a_mail_says_it_of_an_outage_of_hours_too(tmp_path: Path) -> None:
    """Only the last of them are read."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    world.daemon().poll()
    end_k = 3 * 3600
    down = (Explanation("broker_down", 0.9, (), suspect="b3:9092"),)
    series = SERIES.replace("@h", "@host")
    gone = finding("gone", key=KEY, run=RUN, resolved_k=end_k - 10, series=series, causes=down)
    write_answers(world.folder.journal, range(end_k - 60, end_k - 20), range(end_k - 60, end_k))
    world.clock.advance(end_k)
    with FindingsStore(world.folder.findings) as store:
        store.save_finding(gone, ["mail"], world.clock.wall_ns())
    for _ in range(2):
        world.daemon().poll()

    assert world.sink.messages[-1].text.startswith("now       b3:9092 answers again since ")
