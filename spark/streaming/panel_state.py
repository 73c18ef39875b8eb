"""The detector inside Spark: one panel a (run, shard), its state one blob.

There is no watermark: each source advances alone in the order of (epoch, k), and the panel ignores what it
has seen. No timer either: the state is deleted with the folder of its run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from pyspark.sql.functions import col
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from detectors import objectives, outage
from detectors.level_shift import Config
from detectors.panel import Panel
from soak.core.model import Change
from spark.sources.schema import CHANGES, columns_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import TimerValues

_USED = (
    *("run", "shard", "source", "epoch", "k"),
    *("columns_id", "columns", "values", "trusted", "phase"),
)

_FED = ("source", "epoch", "k", "columns_id", "values", "trusted", "phase")


def detect(
    rows: DataFrame,
    config: Config,
    outages: outage.Config | None = None,
    settings: objectives.Settings | None = None,
) -> DataFrame:
    """Return the changes (`CHANGES`) in rows of `ROWS`; a stream, for it keeps state."""
    records = rows.where(col("gap").isNull()).select(*_USED)
    # One partition satisfies the grouping, so nothing is shuffled. `detect` of a fleet will shard.
    return (
        records.coalesce(1)
        .groupBy("run", "shard")
        .transformWithStateInPandas(
            PanelProcessor(config, outages, settings), CHANGES, "Append", "None"
        )
    )


class PanelProcessor(StatefulProcessor):
    """Feeds the rows of a batch to the panel of their key."""

    def __init__(
        self,
        config: Config,
        outages: outage.Config | None = None,
        settings: objectives.Settings | None = None,
    ) -> None:
        self._config = config
        self._outages = outages
        self._settings = settings

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("panel", "blob binary")

    def handleInputRows(  # noqa: N802  # Spark's name
        self,
        key: Any,  # noqa: ANN401  # the values of the grouping columns
        rows: Iterator[pd.DataFrame],  # type: ignore[override]  # the pandas flavour
        timerValues: TimerValues,  # noqa: ARG002, N803  # Spark's signature
    ) -> Iterator[pd.DataFrame]:
        """Take all frames, then write the state once; rows come in no order."""
        batch = pd.concat(list(rows), ignore_index=True)
        state = self._state.get()
        if state is None:
            panel = Panel(self._config, outages=self._outages, settings=self._settings)
        else:
            panel = Panel.from_bytes(
                bytes(state[0]), self._config, outages=self._outages, settings=self._settings
            )
        changes = fed(panel, batch)
        self._state.update((panel.to_bytes(),))
        if changes:
            # as objects: pandas would make floats of the seconds of a column that has none in a row
            yield pd.DataFrame(
                [{"run": str(key[0]), **change.to_row()} for change in changes], dtype=object
            )

    def close(self) -> None:
        """Nothing is held between batches."""


def fed(panel: Panel, batch: pd.DataFrame) -> list[Change]:
    """Give rows, in any order, to the panel; return the changes in the order of their discovery."""
    named = batch.dropna(subset=["columns"])
    columns = {
        (source, name): columns_of(text)
        for source, name, text in zip(
            named["source"], named["columns_id"], named["columns"], strict=True
        )
    }
    changes = []
    ordered = batch.sort_values(["source", "epoch", "k"])
    for source, epoch, k, name, values, valid, phase in zip(
        *(ordered[name] for name in _FED), strict=True
    ):
        taken = np.asarray(values, dtype=np.float64)
        changes += panel.update(
            source, columns[source, name], int(k), taken, bool(valid), phase, epoch=int(epoch)
        )
    return [*changes, *panel.settle()]
