"""The detectors of many runs inside Spark: a panel a (run, shard), as that run announces its phases and plan.

An announcement comes as a row of its own, which has no source. A run that is never announced is judged by
the defaults, all of it as soak. A run whose plan changes, or whose state cannot be read, begins again. The
state of a run of which nothing was heard for long is removed by a timer.
"""

from __future__ import annotations

import json
import logging
import socket
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.functions import col
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from detectors import outage
from detectors.level_shift import Config
from soak.core import json_text
from soak.core.errors import PlanError, RunFolderError
from soak.core.plan.plan import OUTAGE_DETECTOR, STREAM_DETECTOR
from soak.core.plan.text import load_detection
from spark.cluster.executors import fault_of_folder
from spark.sources.schema import CHANGES
from spark.streaming.panel_state import PanelProcessor, records_of
from spark.streaming.stored_panel import OF_THESE_ROWS, LivePanels

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

LOG = logging.getLogger(__name__)
VERSION = 3
"""Of the state that is kept here in addition to that of the panel."""
USED = (
    *("run", "shard", "source", "epoch", "k"),
    *("columns_id", "columns", "values", "trusted", "phase", "events"),
)
"""The columns that are used of a row."""
_SOAK = "soak"
_KNOWN = "run"
"""Name of the state that is not the panel's."""
OVER_SECONDS = 900
"""The state of a run that says it is over is removed after so long without a record, or earlier."""
_NOTED_AGAIN = 4  # the last sign of a run is stored four times before it would expire


def detect_all(
    rows: DataFrame,
    config: Config,
    outages: outage.Config,
    expire_seconds: int,
    shared: Path | None = None,
) -> DataFrame:
    """Return the changes (`CHANGES`) of all runs in rows of `ROWS` with announcements; keeps state.

    Runs are spread over the partitions of a shuffle. `expire_seconds`: how long after its last row the state
    of a run is removed. `shared`: a `shared_file` next to the state.
    """
    return (
        rows.where(col("gap").isNull())
        .select(*USED)
        .groupBy("run", "shard")
        .transformWithStateInPandas(
            FleetProcessor(config, outages, expire_seconds, shared=shared),
            CHANGES,
            "Append",
            "ProcessingTime",
        )
    )


@dataclass(frozen=True, slots=True)
class Announced:
    """What a run says of itself, as the state keeps it."""

    phases: tuple[tuple[int, str], ...] = ()
    detection: str = ""  # that section of its plan, as JSON
    is_over: bool = False
    sent_ns: int = field(default=0, compare=False)  # when the run first reported it

    def to_text(self) -> str:
        return json.dumps([self.phases, self.detection, self.is_over, self.sent_ns])

    @classmethod
    def of_text(cls, text: str) -> Announced:
        phases, detection, is_over, sent_ns = json_text.loads(text)
        return cls(tuple((k, name) for k, name in phases), detection, is_over, sent_ns)

    @classmethod
    def of_events(cls, text: str) -> Announced:
        """Return what the row of an announcement says in its `events`."""
        event = json_text.loads(text)[0]
        fields = event["fields"]
        phases = tuple((k, name) for k, name in fields["phases"])
        return cls(phases, fields["detection"], fields["is_over"], event["at_ns"])

    def newest(self, *others: Announced) -> Announced:
        """Return what was announced last; an old announcement that is sent again says nothing."""
        return max((*reversed(others), self), key=lambda one: one.sent_ns)

    def phase_at(self, k: int) -> str:
        """Return the phase of an interval; where none is announced, soak."""
        if not self.phases:
            return _SOAK
        at = bisect_right(self.phases, k, key=itemgetter(0))
        return self.phases[at - 1][1] if at else ""


class SharedStates:
    """A handle that gives the same state to all that ask for one name, so that they may take turns."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._states: dict[str, Any] = {}

    def getValueState(self, name: str, *more: Any) -> Any:  # noqa: ANN401, N802  # Spark's name
        return self._kept(name, self._handle.getValueState, more)

    def getMapState(self, name: str, *more: Any) -> Any:  # noqa: ANN401, N802  # Spark's name
        return self._kept(name, self._handle.getMapState, more)

    def getListState(self, name: str, *more: Any) -> Any:  # noqa: ANN401, N802  # Spark's name
        return self._kept(name, self._handle.getListState, more)

    def clear(self, *kept: str) -> None:
        """Remove all that is stored of the present key, but for these names."""
        for name, state in self._states.items():
            if name not in kept:
                state.clear()

    def _kept(self, name: str, make: Any, more: tuple[Any, ...]) -> Any:  # noqa: ANN401  # a state
        if name not in self._states:
            self._states[name] = make(name, *more)
        return self._states[name]


class FleetProcessor(StatefulProcessor):
    """Feeds the rows of a run to a panel with the settings of that run."""

    def __init__(
        self,
        config: Config,
        outages: outage.Config,
        expire_seconds: int,
        live: LivePanels | None = None,
        shared: Path | None = None,
    ) -> None:
        """`live`: the panels that earlier tasks of this process left; by default those of the worker.

        `shared`: a `shared_file` next to the state, which would be another one where it is not seen.
        """
        self._shared_file = shared
        self._live = live
        self._config = config
        self._outages = outages
        self._expire_ms = expire_seconds * 1000

    def init(self, handle: StatefulProcessorHandle) -> None:
        fault = fault_of_folder(self._shared_file) if self._shared_file is not None else ""
        if fault:
            raise RunFolderError(
                f"executors do not share the state: {socket.gethostname()}: {fault}"
            )
        self._handle = handle
        self._shared = SharedStates(handle)
        # what is announced, and when a row of the run was last noted
        self._known = self._shared.getValueState(_KNOWN, "announced string, heard_ms bigint")
        self._panels: dict[tuple[Config, outage.Config], PanelProcessor] = {}
        self._panel(Announced())  # Spark wants to know of all states now

    def handleInputRows(  # noqa: N802  # Spark's name
        self,
        key: Any,  # noqa: ANN401  # the values of the grouping columns
        rows: Iterator[pd.DataFrame],  # type: ignore[override]  # the pandas flavour
        timerValues: TimerValues,  # noqa: N803  # Spark's signature
    ) -> Iterator[pd.DataFrame]:
        """Take what the run announces first, then all its records."""
        batch = records_of(rows)
        announcements = [one["events"] for one in batch if one["source"] == ""]
        records = [one for one in batch if one["source"] != ""]
        state = self._known.get()
        known = Announced() if state is None else announced_of(state[0])
        newest = known.newest(*map(Announced.of_events, announcements)) if announcements else known
        self._note(state, known, newest, timerValues.getCurrentProcessingTimeInMs())
        if not records:
            return
        if newest.detection != known.detection and self._detectors(newest) != self._detectors(
            known
        ):
            self._shared.clear(_KNOWN)  # what one plan has made another may not be able to read
        try:
            for one in records:
                one["phase"] = newest.phase_at(int(one["k"]))
            yield from self._panel(newest).take(key, records)
        except OF_THESE_ROWS as error:
            # Of its state: a panel sets rows aside that it cannot take. Other runs must not stop for it.
            LOG.warning("run_not_judged run=%s rows=%d error=%r", key[0], len(records), error)
            self._shared.clear(_KNOWN)

    def handleExpiredTimer(  # noqa: N802  # Spark's name
        self,
        key: Any,  # noqa: ANN401  # the values of the grouping columns
        timerValues: TimerValues,  # noqa: N803  # Spark's signature
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: ARG002, N803  # Spark's signature
    ) -> Iterator[pd.DataFrame]:
        """Remove the state of a run that was silent for long, or is over, or look again later."""
        state = self._known.get()
        if state is None:
            return iter(())
        kept_ms = self._kept_ms(announced_of(state[0]))
        due_ms = state[1] + kept_ms + kept_ms // _NOTED_AGAIN  # so much later may be its last sign
        if timerValues.getCurrentProcessingTimeInMs() < due_ms:
            self._handle.registerTimer(due_ms)
        else:
            LOG.info("run_expired run=%s", key[0])
            self._shared.clear()
        return iter(())

    def close(self) -> None:
        """Nothing is held between batches."""

    def _note(self, state: Any, known: Announced, newest: Announced, now_ms: int) -> None:  # noqa: ANN401  # a row or None
        """Store what is announced when it is new, and now and then that the run goes on."""
        kept_ms = self._kept_ms(newest)
        if state is None or kept_ms < self._kept_ms(known):
            self._handle.registerTimer(now_ms + kept_ms)
        elif newest == known and now_ms - state[1] < kept_ms // _NOTED_AGAIN:
            return
        self._known.update((newest.to_text(), now_ms))

    def _kept_ms(self, announced: Announced) -> int:
        """Return how long the state of a run is kept after its last sign."""
        return min(self._expire_ms, OVER_SECONDS * 1000) if announced.is_over else self._expire_ms

    def _detectors(self, announced: Announced) -> tuple[Config, outage.Config]:
        return announced_detectors(announced.detection) or (self._config, self._outages)

    def _panel(self, announced: Announced) -> PanelProcessor:
        config = self._detectors(announced)
        if config not in self._panels:
            panel = PanelProcessor(*config, live=self._live)
            panel.init(self._shared)  # type: ignore[arg-type]  # it only asks for states
            self._panels[config] = panel
        return self._panels[config]


@lru_cache(maxsize=1024)
def announced_of(text: str) -> Announced:
    """Return what `Announced.to_text` described; most runs of most batches are as they were."""
    return Announced.of_text(text)


@lru_cache(maxsize=1024)
def announced_detectors(text: str) -> tuple[Config, outage.Config] | None:
    """Return the detectors of an announced plan; None where there is none that this program can read."""
    if not text:
        return None
    try:
        detectors = load_detection(text, "an announcement").detectors
    except PlanError as error:
        LOG.warning("announced_plan_not_read error=%.300s", error)
        return None
    return detectors[STREAM_DETECTOR], detectors[OUTAGE_DETECTOR]
