"""The detectors of many runs without a JVM: each run by what it announces, and gone after a silence."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.tws_tester import TwsTester

from detectors import outage
from detectors.level_shift import Config
from soak.core.errors import NotAvailableError, RunFolderError
from soak.core.model import Change
from soak.core.plan.plan import FleetPlan, Ship, Store
from soak.core.plan.text import load_fleet
from soak.core.units import SECOND_NS
from soak.service.metrics import MetricsPage
from soak.service.systemd import Notifier
from soak.store.findings.store import FindingsFile
from soak.store.run_folder import RunFolder
from spark.sources.journals import batches, rows
from spark.sources.offsets import ColumnsIndex, newest, spans
from spark.sources.topic_rows import ANNOUNCED
from spark.streaming.fleet import FleetFindings, FleetOptions, FleetStream
from spark.streaming.fleet_state import OVER_SECONDS, FleetProcessor, announced_detectors
from spark.streaming.panel_state import take_apart
from spark.streaming.stored_panel import SetAside
from tests.support.fakes import FakeClock
from tests.support.shipping.announced_runs import announcement
from tests.support.spark.synthetic_run import PRODUCER, Shape, write_synthetic_run

pytestmark = pytest.mark.long

RUN = "synthetic-1"
KEY = (RUN, 0)
SHAPE = Shape(seconds=320, deletions_k=200, fault_k=202)
EXPIRE_SECONDS = 600
PHASES = ((0, "warm-up"), (SHAPE.warm_up, "soak"), (315, "drain"), (320, "end"))
WARM = ((0, "warm-up"), (320, "end"))


@pytest.fixture(scope="module")
def frame(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """All rows of a run with one step, as the topic gives them: without phases."""
    folder = write_synthetic_run(tmp_path_factory.mktemp("run") / "r", SHAPE)
    listed = spans(folder.journal, {}, newest(folder.journal, {}, None), ColumnsIndex())
    parts: list[pd.DataFrame] = [
        batch.to_pandas() for batch in batches(rows(folder.path, RUN, listed))
    ]
    whole: pd.DataFrame = pd.concat(parts, ignore_index=True)
    return whole.assign(phase="")


class Fleet:
    """Feeds batches of one run to the processor, each with a processing time."""

    def __init__(self, expire_seconds: int = EXPIRE_SECONDS) -> None:
        self.tester = TwsTester(
            FleetProcessor(Config(), outage.Config(), expire_seconds),
            timeMode="ProcessingTime",
        )
        self.tester.setProcessingTime(1)
        self.aside: list[SetAside] = []  # of the last batch

    def take(self, batch: pd.DataFrame) -> list[Change]:
        answer = self.tester.testInPandas(KEY, batch)
        rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.to_numpy()]
        changes, self.aside = take_apart(rows)
        return changes

    @property
    def is_known(self) -> bool:
        return self.tester.peekValueState("run", KEY) is not None


def announced(frame: pd.DataFrame, at_ns: int = 1, **more: Any) -> pd.DataFrame:
    """Return rows with the row of an announcement behind them, sent at `at_ns`."""
    fields = asdict(announcement(RUN, **more))
    event = {"kind": ANNOUNCED, "at_ns": at_ns, "since_ns": at_ns, "fields": fields}
    row = {"run": RUN, "shard": 0, "source": "", "events": json.dumps([event])}
    return pd.concat([frame, pd.DataFrame([row])], ignore_index=True)


def confirmed(changes: list[Change]) -> set[int]:
    return {change.onset_k for change in changes if change.state == "confirmed"}


def steps(changes: list[Change]) -> set[str]:
    """Return the latencies that stepped."""
    return {one.series for one in changes if one.kind == "step" and "latency" in one.series}


def halves(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Give the rows in two batches, the columns in each."""
    texts = dict(frame.dropna(subset=["columns"])[["columns_id", "columns"]].to_numpy())
    whole = frame.assign(columns=frame["columns_id"].map(texts))
    yield whole[whole["k"] < 150]
    yield whole[whole["k"] >= 150]


def test_a_run_that_announces_nothing_is_judged_by_defaults(frame: pd.DataFrame) -> None:
    """All of it is soak."""
    found = Fleet().take(frame)

    assert any(abs(k - 202) <= 3 for k in confirmed(found))


def test_announced_phases_say_what_is_judged(frame: pd.DataFrame) -> None:
    """Also those of an earlier batch; a warm-up is not judged."""
    judged, warm = Fleet(), Fleet()
    first, second = halves(frame)

    found = judged.take(announced(first, phases=PHASES)) + judged.take(second)
    silent = warm.take(announced(first, phases=WARM)) + warm.take(second)

    assert any(abs(k - 202) <= 3 for k in confirmed(found))
    assert silent == []


def test_an_old_announcement_that_is_sent_again_says_nothing(frame: pd.DataFrame) -> None:
    """Whoever may write to the topic has those that were signed before."""
    fleet = Fleet()
    first, second = halves(frame)

    found = fleet.take(announced(announced(first, 5, phases=PHASES), 3, phases=WARM))
    found += fleet.take(announced(second, 4, phases=WARM))

    assert any(abs(k - 202) <= 3 for k in confirmed(found))


def test_an_announced_plan_says_how(frame: pd.DataFrame) -> None:
    """One that wants only larger steps gets only these; other runs have the fleet's own plan."""
    strict = '{"detectors": {"level_shift": {"smallest_step_ratio": 1000.0}}}'
    fleet = Fleet()
    first, second = halves(frame)

    found = fleet.take(announced(first, phases=PHASES, detection=strict)) + fleet.take(second)

    assert steps(found) == set()
    assert steps(Fleet().take(frame)) != set()


def test_a_plan_that_is_announced_late_begins_anew(frame: pd.DataFrame) -> None:
    """It may want another window than what was kept so far."""
    wide = '{"detectors": {"level_shift": {"baseline": "90s"}}}'
    fleet = Fleet()
    first, second = halves(frame)

    fleet.take(first)
    found = fleet.take(announced(second, phases=PHASES, detection=wide))

    assert all(change.raised_k >= 150 + 90 for change in found)


def test_rows_that_no_panel_can_take_stop_no_other(frame: pd.DataFrame) -> None:
    """They are set aside, all of them, and the run goes on with the rows after them."""
    fleet = Fleet()
    first, second = halves(frame)
    broken = first.assign(columns="[{}]")

    nothing, rejected = fleet.take(broken), len(fleet.aside)
    found = fleet.take(first) + fleet.take(second)

    assert nothing == []
    assert rejected == len(broken)
    assert any(abs(k - 202) <= 3 for k in confirmed(found))


@pytest.mark.parametrize("text", ["", "[", "[]", '{"later": 1}', '{"trigger": "never"}'])
def test_an_announced_plan_that_cannot_be_read_is_none(text: str) -> None:
    """A later program has written it, or anybody."""
    assert announced_detectors(text) is None


def test_a_silent_run_is_forgotten(frame: pd.DataFrame) -> None:
    """Not while it is heard of, be it by its announcements only."""
    fleet = Fleet()
    fleet.take(frame[frame["k"] < 23])
    for seconds in range(100, 1300, 100):
        fleet.tester.setProcessingTime((seconds + 1) * 1000)
        fleet.take(announced(frame[:0], phases=PHASES))
    is_known = fleet.is_known
    fleet.tester.setProcessingTime((1200 + 2 * EXPIRE_SECONDS) * 1000)

    assert is_known
    assert not fleet.is_known


def test_a_run_is_kept_for_all_of_the_silence(frame: pd.DataFrame) -> None:
    """Counted from its last row, of which the state need not have noted the time."""
    fleet, last_seconds = Fleet(), EXPIRE_SECONDS // 4 - 1
    fleet.take(frame[frame["k"] < 23])
    fleet.tester.setProcessingTime(last_seconds * 1000)
    fleet.take(frame[frame["k"] == 23])
    fleet.tester.setProcessingTime((last_seconds + EXPIRE_SECONDS) * 1000)
    is_known = fleet.is_known
    fleet.tester.setProcessingTime((last_seconds + 2 * EXPIRE_SECONDS) * 1000)

    assert is_known
    assert not fleet.is_known


@pytest.mark.parametrize("is_over", [True, False])
def test_a_run_that_is_over_is_forgotten_earlier(frame: pd.DataFrame, *, is_over: bool) -> None:
    """It may be resumed until then, and is kept as any other when it is."""
    fleet = Fleet(expire_seconds=4 * OVER_SECONDS)
    fleet.take(frame[frame["k"] < 23])
    fleet.take(announced(frame[:0], phases=PHASES, is_over=True))
    fleet.take(announced(frame[:0], phases=PHASES, is_over=is_over))
    fleet.tester.setProcessingTime(2 * OVER_SECONDS * 1000)
    is_known = fleet.is_known
    fleet.tester.setProcessingTime(8 * OVER_SECONDS * 1000)

    assert is_known is not is_over
    assert not fleet.is_known


def test_findings_are_stored_once(tmp_path: Path) -> None:
    """A batch that is delivered again changes nothing, and sinks are notified once."""
    clock, place = FakeClock(), FindingsFile(tmp_path / "findings.db")
    findings = FleetFindings(
        plan_of(sinks="{webhook: {url: 'http://h/x'}}"), clock, lambda _: place
    )
    step = Change(
        series=f'{PRODUCER}|publish_latency_seconds{{quantile="0.99"}}',
        raised_k=206,
        onset_k=202,
        interval=(201, 203),
        before=0.0026,
        after=0.038,
        state="confirmed",
        confidence=0.99,
    )

    findings.take("r1", [step])
    findings.take("r1", [step])
    findings.close()
    with place.open() as store:
        found, queued = store.findings("r1"), store.notifications("r1")

    assert [(one.key, one.state, one.is_settled) for one in found] == [
        ("r1-206", "confirmed", True)
    ]
    assert [(one.sink, one.kind) for one in queued] == [("webhook", "opened")]


def test_the_stores_that_are_open_are_bounded(tmp_path: Path) -> None:
    """The least used is closed."""
    open_places: set[str] = set()

    class Place(FindingsFile):
        def __init__(self, run: str) -> None:
            super().__init__(tmp_path / f"{run}.db")
            open_places.add(self.path.stem)

        def close(self) -> None:
            open_places.remove(self.path.stem)

    findings = FleetFindings(plan_of(), FakeClock(), Place)
    for run in range(23):
        findings.take(f"r{run}", [])

    assert open_places == {f"r{run}" for run in range(7, 23)}


def plan_of(sinks: str = "{}") -> FleetPlan:
    text = f"name: fleet\nship: {{bootstrap_servers: 'h:9'}}\nstore: kafka://h:9\nsinks: {sinks}\n"
    return load_fleet(text, "fleet.yaml")


def test_a_plan_of_a_fleet_has_defaults() -> None:
    plan = plan_of()

    assert plan.ship == Ship(bootstrap_servers="h:9")
    assert plan.store == Store(url="kafka://h:9")
    assert plan.detection.trigger == 5 * SECOND_NS


def test_where_the_folder_of_the_state_is_another_one_nothing_is_judged(tmp_path: Path) -> None:
    """An executor that joins later would begin with an empty state of its own."""
    elsewhere = FleetProcessor(Config(), outage.Config(), EXPIRE_SECONDS, shared=tmp_path / "seen")

    with pytest.raises(RunFolderError, match=r"executors do not share the state: .*: "):
        TwsTester(elsewhere, timeMode="ProcessingTime")


def stream_of(folder: Path) -> FleetStream:
    clock, silent = FakeClock(), Notifier("", is_watched=False)
    (folder / "spark").mkdir()
    options, page = FleetOptions(state=folder), MetricsPage(clock, {})
    return FleetStream(RunFolder(folder), plan_of(), options, clock, page, silent, folder / "seen")


def progress_of(batch: int, gaps: int, *, is_run: bool = True) -> SimpleNamespace:
    """Return what Spark reports of a trigger: of a batch that was run, or that there is none yet."""
    return SimpleNamespace(
        timestamp=f"{batch} {is_run}",
        batchId=batch,
        durationMs={"triggerExecution": 23, **({"addBatch": 5} if is_run else {})},
        observedMetrics={"seen": {"at_ns": None, "gaps": gaps, "gap": "x"}} if is_run else {},
        stateOperators=[],
        numInputRows=gaps,
        processedRowsPerSecond=1.0,
    )


def test_gaps_of_each_batch_are_counted_once(tmp_path: Path) -> None:
    """Also of those between two looks, and of the first one, whose number Spark shows before there is one."""
    stream, reports = stream_of(tmp_path), [progress_of(7, 0, is_run=False)]
    totals, moves = [], []
    for more in [], [progress_of(7, 5)], [], [progress_of(8, 100), progress_of(9, 3)]:
        reports += more
        query: Any = SimpleNamespace(lastProgress=reports[-1], recentProgress=reports)
        moves.append(stream.show_progress(query))
        found = json.loads((tmp_path / "spark" / "progress.json").read_text())
        totals.append(found["fleet_gaps_total"])

    assert moves == [True, True, False, True]
    assert totals == [0, 5, 5, 108]


def test_gaps_of_the_last_batch_before_a_failure_are_counted(tmp_path: Path) -> None:
    class Failing:
        lastProgress = progress_of(0, 5)  # noqa: N815  # Spark's name
        recentProgress = (lastProgress,)  # noqa: N815  # Spark's name
        is_stopped = False

        def awaitTermination(self, _seconds: int) -> bool:  # noqa: N802  # Spark's name
            raise StreamingQueryException("the next batch failed")

        def stop(self) -> None:
            self.is_stopped = True

    stream, query = stream_of(tmp_path), Failing()
    with pytest.raises(StreamingQueryException):
        stream.follow(query, threading.Event())  # type: ignore[arg-type]  # what it uses of a query

    found = json.loads((tmp_path / "spark" / "progress.json").read_text())
    assert found["fleet_gaps_total"] == 5
    assert query.is_stopped


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_query_that_cannot_start_says_whether_spark_has_ended(
    tmp_path: Path, *, is_stopped: bool
) -> None:
    """The master may end the application while the query waits for its next try."""

    def fail(_name: str) -> None:
        raise Py4JJavaError("stopped", SimpleNamespace(_target_id="o1"))

    context = SimpleNamespace(isStopped=lambda: is_stopped)
    session: Any = SimpleNamespace(
        dataSource=SimpleNamespace(register=lambda _: None),
        readStream=SimpleNamespace(format=fail),
        sparkContext=SimpleNamespace(master="spark://h", _jsc=SimpleNamespace(sc=lambda: context)),
    )
    error = NotAvailableError if is_stopped else Py4JJavaError

    with pytest.raises(error):
        stream_of(tmp_path).run(session, threading.Event())
