"""The detector inside Spark: one panel a (run, shard), and the objectives of a run as a key of their own.

A source belongs to one shard for good, and its changes follow from its own records. Objectives count
all clients of a run together: their records come a second time, under the shard `OBJECTIVES`.

There is no watermark: each source advances alone in the order of (epoch, k), and the panel ignores what it
has seen. No timer either: the state is deleted with the folder of its run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation has it
from pyspark.sql.functions import col
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from detectors import objectives, outage
from detectors import panel as detector_panel
from detectors.client_seconds import Second
from detectors.level_shift import Config
from detectors.panel import Panel
from soak.core import json_text
from soak.core.model import Change
from soak.core.model import Column as ColumnOf
from spark.sources.schema import CHANGES, columns_of
from spark.streaming import stored_panel
from spark.streaming.stored_panel import (
    ColumnTexts,
    Feeding,
    LivePanels,
    Row,
    SetAside,
    StoredPanel,
    without_failing,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.stateful_processor import TimerValues

OBJECTIVES = -1
"""The shard whose key counts the clients of a run; it has no panel."""
CLIENTS = ("produce.", "consume.")
"""How the names of sources begin that objectives count."""
_LABELS_TRIED = 64  # per shard, for one that the shuffle puts where it is wanted

_USED = (
    *("run", "shard", "source", "epoch", "k"),
    *("columns_id", "columns", "values", "trusted", "phase"),
)

Record = dict[str, Any]
"""One row of a frame, by the names of its columns."""

# Spark makes a processor for each task, and keeps its Python workers: what outlives a task is here.
_LIVE = LivePanels()


def layout(shards: int = 1) -> str:
    """Return a name that differs for states that this program, or so many shards, cannot go on from."""
    return f"{detector_panel.LAYOUT}.{stored_panel.VERSION}-{shards}"


def dealt_layout(shards: int) -> str:
    """Return that of one run, whose sources are dealt out by rank."""
    return layout(shards) if shards == 1 else f"{layout(shards)}.ranks"


def detect(
    rows: DataFrame,
    config: Config,
    outages: outage.Config | None = None,
    settings: objectives.Settings | None = None,
    labels: Sequence[int] = (0,),
) -> DataFrame:
    """Return the changes (`CHANGES`) in rows of `ROWS`; a stream, for it keeps state.

    `labels`: a number for each shard, all different and not negative, see `shard_labels`.
    """
    records = rows.where(col("gap").isNull()).select(*_USED)
    if len(labels) == 1:
        records = records.coalesce(1)  # one partition satisfies the grouping: nothing is shuffled
    counted = settings is not None and bool(settings.objectives)
    shards = shards_of(labels, with_objectives=counted)
    return (
        records.withColumn("shard", F.explode(shards) if counted else shards[0])
        .groupBy("run", "shard")
        .transformWithStateInPandas(
            PanelProcessor(config, outages, settings), CHANGES, "Append", "None"
        )
    )


def shards_of(labels: Sequence[int], *, with_objectives: bool) -> Column:
    """Return the shards that a row goes to as an array: that of its source, and `OBJECTIVES` of a client.

    Rows come with the rank of their source as their shard. A checksum of its name would put `probe@broker0`
    to `probe@broker3` together, and with them nine of ten series of a run.
    """
    known = F.array(*(F.lit(label).cast("long") for label in labels))
    own = F.get(known, F.pmod(col("shard"), F.lit(len(labels))).cast("int"))
    if not with_objectives:
        return F.array(own)
    is_client = F.lit(False)  # of SQL
    for prefix in CLIENTS:
        is_client |= col("source").startswith(prefix)
    both = F.array(own, F.lit(OBJECTIVES).cast("long"))
    return F.when(is_client, both).otherwise(F.array(own))


def shard_labels(session: SparkSession, run: str, shards: int) -> list[int]:
    """Return a label for each shard, such that each has a partition of the shuffle to itself.

    Spark chooses the partition by the hash of run and label, which would put some labels together. Sets the
    number of partitions, on which the labels depend, to that of shards: the state must find its labels again
    on a machine with more cores.
    """
    session.conf.set("spark.sql.shuffle.partitions", str(shards))
    if shards == 1:
        return [0]
    tried = session.range(shards * _LABELS_TRIED).select(
        "id", F.pmod(F.hash(F.lit(run), col("id")), F.lit(shards)).alias("partition")
    )
    by_partition: dict[int, int] = {}
    for row in sorted(tried.collect()):
        by_partition.setdefault(row["partition"], row["id"])
    return [by_partition[at] for at in range(shards)]


class PanelProcessor(StatefulProcessor):
    """Feeds the rows of a batch to the panel of their key, or to the objectives of their run."""

    def __init__(
        self,
        config: Config,
        outages: outage.Config | None = None,
        settings: objectives.Settings | None = None,
        live: LivePanels | None = None,
    ) -> None:
        """`live`: the panels that earlier tasks of this process left; by default those of the worker."""
        self._config = config
        self._outages = outages
        self._settings = settings or objectives.Settings()
        self._live = live

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._parts = handle.getMapState("parts", "name string", "bytes binary")

    def handleInputRows(  # noqa: N802  # Spark's name
        self,
        key: Any,  # noqa: ANN401  # the values of the grouping columns
        rows: Iterator[pd.DataFrame],  # type: ignore[override]  # the pandas flavour
        timerValues: TimerValues,  # noqa: ARG002, N803  # Spark's signature
    ) -> Iterator[pd.DataFrame]:
        """Take all frames, then write the state once; rows come in no order."""
        yield from self.take(key, records_of(rows))

    def take(self, key: Any, records: Sequence[Record]) -> Iterator[pd.DataFrame]:  # noqa: ANN401  # as above
        """Take the records of a batch; there is at least one."""
        run, shard = str(records[0]["run"]), int(records[0]["shard"])
        if shard == OBJECTIVES:
            changes, aside = self._counted(*ordered(records))
        else:
            changes, aside = self._detected((run, shard), *ordered(records))
        found = [change.to_row() for change in changes] + [aside_row(one) for one in aside]
        if found:
            # as objects: pandas would make floats of the seconds of a column that has none in a row
            yield pd.DataFrame([{"run": str(key[0]), **row} for row in found], dtype=object)

    def close(self) -> None:
        """Nothing is held between batches but live panels, which follow from the state."""

    def _detected(
        self, key: tuple[str, int], rows: Sequence[Row], texts: ColumnTexts
    ) -> tuple[list[Change], list[SetAside]]:
        name = (*key, self._config, self._outages)
        stored = StoredPanel(self._parts, self._new, self._read)
        panels = _LIVE if self._live is None else self._live
        live, changes, aside = stored.take(panels.take_out(name), rows, texts)
        panels.put(name, live)
        return changes, aside

    def _counted(
        self, rows: Sequence[Row], texts: ColumnTexts
    ) -> tuple[list[Change], list[SetAside]]:
        name = ("objectives",)
        state = self._parts.getValue(name)
        columns: dict[tuple[str, str], tuple[ColumnOf, ...]] = {}

        def attempt(
            rows: Sequence[Row], feeding: Feeding
        ) -> tuple[objectives.Objectives, list[Change]]:
            counted = objectives.Objectives(self._settings)
            if state is not None:
                counted.restore(json_text.loads(bytes(state[0])))
            for feeding.at, row in enumerate(rows):
                of = row.source, row.columns_id
                if of not in columns:
                    columns[of] = columns_of(texts[of])
                second = Second(row.k, row.values, row.is_valid, row.phase, row.epoch)
                counted.update(row.source, columns[of], second)
            return counted, counted.settle()

        (counted, changes), _ = without_failing(rows, attempt)  # the panel of the row names it
        text = json.dumps(counted.to_state(), separators=(",", ":"))
        self._parts.updateValue(name, (text.encode(),))
        return changes, []

    def _new(self) -> Panel:
        return Panel(self._config, outages=self._outages)

    def _read(self, blob: bytes) -> Panel:
        return Panel.from_bytes(blob, self._config, outages=self._outages)


SET_ASIDE = "set aside"
"""The state in a row of `CHANGES` that is no change but a record that was set aside."""


def aside_row(one: SetAside) -> dict[str, Any]:
    """Return a record that was set aside as a row of `CHANGES`: the driver counts it, see `take_apart`."""
    row = dict.fromkeys(CHANGES.fieldNames())
    del row["run"]
    series = f"{one.source}|{one.reason}"
    return {**row, "series": series, "raised_k": one.k, "onset_k": one.epoch, "state": SET_ASIDE}


def take_apart(rows: Iterable[Mapping[str, Any]]) -> tuple[list[Change], list[SetAside]]:
    """Return the changes in rows of `CHANGES`, and the records that were set aside."""
    changes, aside = [], []
    for row in rows:
        if row["state"] != SET_ASIDE:
            changes.append(Change.from_row(row))
            continue
        source, _, reason = row["series"].partition("|")
        aside.append(SetAside(source, row["onset_k"], row["raised_k"], reason))
    return changes, aside


def records_of(frames: Iterable[pd.DataFrame]) -> list[Record]:
    """Return the rows of frames by the names of their columns.

    A key of a fleet has a few rows in a batch, and every question to a frame costs more than all of these.
    """
    found: list[Record] = []
    for frame in frames:
        names = list(frame.columns)
        found += [dict(zip(names, row, strict=True)) for row in frame.to_numpy(object).tolist()]
    return found


def ordered(records: Sequence[Record]) -> tuple[list[Row], ColumnTexts]:
    """Return records, which come in any order, by source and in the order of their time."""
    texts = {
        (one["source"], one["columns_id"]): one["columns"]
        for one in records
        if isinstance(one["columns"], str)  # else it is null
    }
    return [
        Row(
            one["source"],
            int(one["epoch"]),
            int(one["k"]),
            one["columns_id"],
            bool(one["trusted"]),
            one["phase"],
            np.asarray(one["values"], np.float64),
        )
        for one in sorted(records, key=_place)
    ], texts


def rows_of(batch: pd.DataFrame) -> tuple[list[Row], ColumnTexts]:
    """Return the rows of a batch, which come in any order, by source and in the order of their time."""
    return ordered(records_of([batch]))


def _place(record: Record) -> tuple[str, int, int]:
    return record["source"], record["epoch"], record["k"]
