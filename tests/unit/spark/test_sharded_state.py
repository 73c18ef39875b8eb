"""However sources are dealt out to shards, cut into batches and resumed, a run has the same changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.tws_tester import TwsTester

from detectors.level_shift import Config
from detectors.objectives import Settings
from detectors.panel import Panel
from soak.core.model import Change, Column
from soak.core.plan.objectives import parse_objective
from soak.core.units import SECOND_NS
from spark.sources.schema import columns_text
from spark.streaming.panel_state import CLIENTS, OBJECTIVES, PanelProcessor, rows_of
from spark.streaming.stored_panel import LivePanel, LivePanels, Row, StoredPanel, decode, encode

pytestmark = pytest.mark.long

CONFIG = Config(baseline=25 * SECOND_NS, false_alarms=3600 * SECOND_NS, panel_size=5)
OBJECTIVE = Settings((parse_objective("p99 publish <= 50ms for 99% of minutes"),), 600)
SECONDS = 360
KEY = ("r", 0)
SOURCES = ("produce.0@a", "produce.1@b", "consume.0@a", "probe@b1", "probe@b2")
LATENCY, ABOVE = "publish_latency_seconds", "publish_latency_above_messages"


def columns(source: str) -> tuple[Column, ...]:
    if source.startswith("probe"):
        return tuple(Column(f"disk_{at}_seconds", (), "seconds") for at in range(3))
    counts = ("sent_messages", "acked_messages", "failed_messages", "in_flight_messages")
    if source.startswith("consume"):
        counts = ("received_messages", "duplicated_messages", "reread_messages", "lag_messages")
    return (
        *(Column(name, (), "messages") for name in counts),
        *(Column(ABOVE, (("threshold", at),), "messages") for at in ("0.05", "1", "10")),
        *(Column(LATENCY, (("quantile", at),), "seconds") for at in ("0.5", "0.99", "0.999")),
    )


@cache
def run() -> pd.DataFrame:
    """Return the rows of a run: a step of all latencies, an outage of one producer, a silent probe."""
    rng, found = np.random.default_rng(5), []
    for source in SOURCES:
        own = columns(source)
        for k in range(SECONDS):
            level = 0.004 if k < 200 else 0.09
            noise = 10.0 ** rng.normal(0.0, 0.05, 3)
            values = level * np.array([0.3, 1.0, 2.0]) * noise
            if not source.startswith("probe"):
                above = 0.0 if k < 200 else 300.0
                counts = [1000.0, 1000.0, 0.0, 0.0]
                if source == "produce.1@b" and 250 <= k < 270:
                    counts, values = [1000.0, 0.0, 0.0, 500.0], np.full(3, np.nan)
                values = np.array([*counts, above, 0.0, 0.0, *values])
            elif source == "probe@b2" and 100 <= k < 150:
                continue
            text = columns_text(own)
            found.append((source, 1, k, f"id {len(own)}", text, values, True, "soak"))
    names = ("source", "epoch", "k", "columns_id", "columns", "values", "trusted", "phase")
    return pd.DataFrame(found, columns=list(names)).assign(run="r")


@dataclass(frozen=True)
class Course:
    """How a run is taken in: where batches end, and what becomes of the processes that work on them.

    By batch: `workers`: which Python worker has it; `deaths`: all are new before it; `failures`: it is done
    twice, for its first result was not committed.
    """

    cuts: tuple[int, ...] = ()
    workers: tuple[int, ...] = (0,)
    deaths: frozenset[int] = frozenset()
    failures: frozenset[int] = frozenset()


COURSES = st.builds(
    Course,
    cuts=st.sets(st.integers(1, SECONDS - 1), max_size=40).map(lambda found: tuple(sorted(found))),
    workers=st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple),
    deaths=st.frozensets(st.integers(0, 40), max_size=8),
    failures=st.frozensets(st.integers(0, 40), max_size=8),
)


def taken(course: Course, shards: int) -> list[list[Change]]:
    """Return the changes of each batch."""
    states: dict[int, dict[Any, Any]] = {}
    workers: dict[int, LivePanels] = {}
    answers = []
    for batch, (low, high) in enumerate(pairwise([0, *course.cuts, SECONDS])):
        if batch in course.deaths:
            workers = {}
        worker = course.workers[batch % len(course.workers)]
        for _ in range(2 if batch in course.failures else 1):
            before = {shard: dict(state) for shard, state in states.items()}
            rows = run()[run()["k"].between(low, high - 1)]
            answer = batch_of(rows, shards, before, workers.setdefault(worker, LivePanels()))
        states = before
        answers.append(answer)
    return answers


def batch_of(
    rows: pd.DataFrame, shards: int, states: dict[int, dict[Any, Any]], live: LivePanels
) -> list[Change]:
    """Return the changes of one batch, whose state replaces that in `states`."""
    own = rows["source"].map(lambda name: crc32(name.encode()) % shards)
    clients = rows[rows["source"].str.startswith(CLIENTS)]
    both = pd.concat([rows.assign(shard=own), clients.assign(shard=OBJECTIVES)])
    changes: list[Change] = []
    for shard in sorted(both["shard"].unique().tolist()):
        part = both[both["shard"] == shard]
        tester = TwsTester(PanelProcessor(CONFIG, settings=OBJECTIVE, live=live))
        tester.updateMapState("parts", KEY, states.get(shard, {}))
        answer = tester.testInPandas(KEY, part)
        states[shard] = dict(tester.peekMapState("parts", KEY))
        changes += [
            Change.from_row(dict(zip(answer.columns, row, strict=True)))
            for row in answer.to_numpy()
        ]
    return changes


def in_order(answers: Sequence[Sequence[Change]]) -> list[list[Change]]:
    """Return answers with the changes of each in one order, whichever shard came first."""
    return [sorted(answer, key=repr) for answer in answers]


def breaches(answers: Sequence[Sequence[Change]]) -> list[tuple[int | None, Change]]:
    """Return the changes of objectives with when each was discovered."""
    found = [one for answer in answers for one in answer if one.kind == "objective"]
    return [(one.discovered_k, one) for one in found]


@cache
def of_one_panel() -> list[Change]:
    """What a panel says that takes all rows at once and is never stored."""
    rows, texts = rows_of(run())
    return sorted(LivePanel(Panel(CONFIG)).take(rows, texts), key=repr)


@given(COURSES, st.sampled_from([1, 2, 8]))
@settings(max_examples=8)
def test_shards_batches_workers_and_failures_change_nothing(course: Course, shards: int) -> None:
    """Bit for bit what one panel says; objectives, which it does not know, as of one shard."""
    answers = taken(course, shards)
    ours = [one for answer in answers for one in answer if one.kind != "objective"]

    assert sorted(ours, key=repr) == of_one_panel()
    assert in_order(answers) == in_order(taken(Course(course.cuts), 1))


@given(COURSES)
@settings(max_examples=4)
def test_objectives_are_missed_alike_however_a_run_is_cut(course: Course) -> None:
    """Each bad minute is reported, as discovered when the run had passed it."""
    ours, whole = (breaches(taken(Course(cuts), 2)) for cuts in (course.cuts, ()))

    assert ours == whole
    assert len(whole) > 1


def test_little_is_written_while_no_base_is_due() -> None:
    """A batch of a second writes its values, and seldom more; the state does not grow."""
    state: dict[Any, Any] = {}
    live, written, totals = LivePanels(), [], []
    for k in range(SECONDS):
        before = {name: value[0] for name, value in state.items()}
        states = {0: state}
        batch_of(run()[run()["k"] == k], 1, states, live)
        state = states[0]
        sizes = {name: len(value[0]) for name, value in state.items()}
        written.append(
            sum(size for name, size in sizes.items() if state[name][0] != before.get(name))
        )
        totals.append(sum(sizes.values()))
    base = len(state["base",][0])

    assert float(np.median(written)) < 0.1 * base
    assert np.mean(written) < 0.25 * base
    assert max(totals[SECONDS // 2 :]) < 2 * base


class CountedParts:
    """The parts of one key, and how often each kind of them was read."""

    def __init__(self) -> None:
        self.kept: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self.reads: Counter[str] = Counter()

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:  # noqa: N802  # Spark's name
        self.reads[key[0].split()[0]] += 1
        return self.kept.get(key)

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:  # noqa: N802  # Spark's name
        self.kept[key] = value

    def removeKey(self, key: tuple[Any, ...]) -> None:  # noqa: N802  # Spark's name
        del self.kept[key]


def test_a_worker_that_missed_batches_takes_only_their_rows() -> None:
    """The base is read where a worker has no panel, or one of before the base."""
    parts = CountedParts()
    stored = StoredPanel(parts, partial(Panel, CONFIG), partial(Panel.from_bytes, config=CONFIG))
    rows, texts = rows_of(run())
    by_time = sorted(rows, key=lambda row: row.k)
    live: list[LivePanel | None] = [None, None]
    changes: list[Change] = []
    bases = 0
    for k in range(SECONDS):
        own = [row for row in by_time if row.k == k]
        before = parts.kept.get(("base",))
        live[k // 3 % 2], found, _ = stored.take(live[k // 3 % 2], own, texts)
        changes += found
        bases += before != parts.kept["base",]

    assert sorted(changes, key=repr) == of_one_panel()
    assert 0 < parts.reads["base"] <= bases + 1
    assert stored.panel().to_bytes() == whole_panel().to_bytes()


def whole_panel() -> Panel:
    """Return the panel that took all rows at once."""
    live = LivePanel(Panel(CONFIG))
    live.take(*rows_of(run()))
    return live.panel


def test_rows_survive_their_bytes() -> None:
    values = np.array([1.0, np.nan, -0.0, np.inf])
    row = Row("probe@ü", 2, -3, "id", is_valid=False, phase="soak", values=values)

    (found,) = decode(encode([row]))

    assert replace(found, values=values) == row
    assert np.array_equal(found.values, values, equal_nan=True)


def test_parts_that_do_not_belong_together_are_refused() -> None:
    """Never gone on from: what they would say could be anything."""
    states: dict[int, dict[Any, Any]] = {}
    for k in range(30):
        batch_of(run()[run()["k"] == k], 1, states, LivePanels())
    state = states[0]
    blocks = sorted(name for name in state if name[0].startswith("rows "))
    state[blocks[0]] = state[blocks[1]]

    with pytest.raises(ValueError, match="not those that made it"):
        batch_of(run()[run()["k"] == 30], 1, states, LivePanels())
