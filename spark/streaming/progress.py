"""How the query gets on, for the daemon's metrics page and for the live view of the run."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.functions import col, count
from pyspark.sql.functions import max as greatest
from pyspark.sql.types import LongType

from soak.core.model import Column
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.service.metrics import MetricsPage
from soak.store.journal.history import History
from soak.store.run_folder import RunFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.listener import StreamingQueryProgress

_LOG = logging.getLogger(__name__)
_SEEN = "seen"
LOOK_NS = 5 * SECOND_NS
"""How often the ends of the journals are read for the lag."""


def observed(rows: DataFrame) -> DataFrame:
    """Return the rows as they are, noting the newest second and the gaps for what is shown."""
    newest_k, damaged = greatest(col("k")).cast(LongType()), count(col("gap"))
    return rows.observe(_SEEN, newest_k.alias("k"), damaged.alias("damaged"))


@dataclass(slots=True)
class Progress:
    """Shows the last batch that had rows; one without is no news but for the lag."""

    folder: RunFolder
    clock: Clock
    page: MetricsPage
    set_aside: int = 0  # records, since the start of the run
    _damaged: int = 0  # lines, since the start of the process
    _batch: int = -1  # the last one that was counted
    _last: StreamingQueryProgress | None = None
    _seen_k: int | None = None
    _recorded_k: int | None = None
    _look_ns: int = 0
    _history: History = field(init=False)

    def __post_init__(self) -> None:
        self._history = History(self.folder.journal)

    def show(self, last: StreamingQueryProgress | None, *, failures: int, is_running: bool) -> None:
        """Show a query's last progress; `failures`: of attribution, since the start of the process."""
        if last is None:
            return
        if last.numInputRows or self._last is None:
            self._last = last
        seen = last.observedMetrics.get(_SEEN)
        if seen is not None and seen["k"] is not None:
            self._seen_k = max(int(seen["k"]), -1 if self._seen_k is None else self._seen_k)
        if seen is not None and last.batchId > self._batch:
            self._batch = last.batchId
            self._damaged += int(seen["damaged"])
        self._look()
        numbers = {
            **numbers_of(self._last),
            "detect_newest_second": math.nan if self._seen_k is None else self._seen_k,
            "detect_lag_seconds": self._lag_seconds(),
            "detect_attribution_failures_total": failures,
            "detect_damaged_lines_total": self._damaged,
            "detect_set_aside_records_total": self.set_aside,
        }
        self.page.show([(Column(name), float(value)) for name, value in numbers.items()])
        self._write(self._last, is_running=is_running)

    def _look(self) -> None:
        now_ns = self.clock.mono_ns()
        if now_ns >= self._look_ns:
            self._look_ns = now_ns + LOOK_NS
            self._recorded_k = max(self._history.latest().values(), default=None)

    def _lag_seconds(self) -> float:
        """Return by how much the newest record is ahead of the newest that was taken in."""
        if self._recorded_k is None or self._seen_k is None:
            return math.nan
        return max(0, self._recorded_k - self._seen_k)

    def _write(self, last: StreamingQueryProgress, *, is_running: bool) -> None:
        seen = last.observedMetrics.get(_SEEN)
        body = {
            "batch": last.batchId,
            "batch_seconds": last.durationMs.get("triggerExecution", 0) / 1000,
            "rows": last.numInputRows,
            "k": self._seen_k,
            "damaged": seen["damaged"] if seen is not None else 0,
            "is_running": is_running,
            "wall_ns": self.clock.wall_ns(),
        }
        # not flushed to disk: it is for the live view, and the drive may be the one under test
        draft = self.folder.spark / ".progress.json"
        try:
            draft.write_text(json.dumps(body) + "\n")
            draft.replace(self.folder.spark / "progress.json")
        except OSError as error:
            _LOG.warning("progress_not_written error=%s", error)


def numbers_of(last: StreamingQueryProgress) -> dict[str, float]:
    """Return what one batch cost, and the size of the state after it, by metric."""
    rate = last.processedRowsPerSecond or 0.0
    states = last.stateOperators
    custom: list[Any] = [one.customMetrics for one in states]
    return {
        "detect_batch_seconds": last.durationMs.get("triggerExecution", 0) / 1000,
        "detect_batch_rows": last.numInputRows,
        "detect_rows_per_second": rate if math.isfinite(rate) else math.nan,
        "detect_state_rows": sum(one.numRowsTotal for one in states),
        "detect_state_memory_bytes": sum(one.memoryUsedBytes for one in states),
        "detect_state_bytes": sum(one.get("rocksdbSstFileSize", 0) for one in custom),
        "detect_state_written_bytes": sum(one.get("rocksdbTotalBytesWritten", 0) for one in custom),
    }
