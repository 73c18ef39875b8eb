"""The streaming detector: reads journals, writes changes and findings, and resumes after any crash."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from detectors.objectives import settings_of
from soak.core.errors import RunFolderError
from soak.core.plan.plan import OUTAGE_DETECTOR, STREAM_DETECTOR, Plan
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.service.files import file_lock, write_atomically
from soak.service.metrics import MetricsPage, publish
from soak.service.scheduling import keep_present_objects
from soak.service.systemd import Notifier, notifier
from soak.store.admission import RefusedLines
from soak.store.journal.reader import has_ended, sources
from soak.store.run_folder import Run, RunFolder, read_phases, read_plan, read_run
from spark.cluster.executors import check_executors, shared_file
from spark.cluster.master import Cluster
from spark.cluster.session import build_session
from spark.sources.journals import NAME, JournalSource, caution_path
from spark.sources.offsets import newest, reached
from spark.streaming.attribution import Attribution
from spark.streaming.attribution_thread import AttributionThread
from spark.streaming.checkpoint import (
    Headway,
    Keeping,
    committed,
    deaths_noted,
    end_predecessor,
    held,
    is_all_read,
    location,
    planned,
)
from spark.streaming.discoveries import Discoveries
from spark.streaming.panel_state import dealt_layout, detect, shard_labels, take_apart
from spark.streaming.progress import Progress, observed

# --- Which layout the state in the detector's checkpoint has: one of another program is not read, but
# made anew.
# The journals hold all that made it, so the query begins at their first second again.

LAYOUT = "layout"
"""The file in `spark/` that notes it."""


def forget_other(folder: RunFolder, wanted: str) -> None:
    """Remove a checkpoint of another layout and what was found by it, and note the layout that comes now.

    Killed in between, the next start does the same again. No Spark may use the checkpoint.
    """
    note = folder.spark / LAYOUT
    known = note.read_text(errors="replace").strip() if note.exists() else ""
    if known == wanted:
        return
    Discoveries(folder.attribution).forget()
    if folder.checkpoint.exists():
        _LOG.warning("detector_state_rebuilt was=%s is=%s", known or "unknown", wanted)
        shutil.rmtree(folder.checkpoint)
    write_atomically(note, wanted + "\n")


# --- The streaming daemon: journals in, change points and findings out, across any number of kills.
# Reads the journals, the plan and what `conduct` decided; nothing else of the run folder.

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 1
DRAIN_NS = 10 * SECOND_NS
"""How long what is written already, and its causes, may take after a request to stop. With `FINISH_SECONDS`
it leaves some of the supervisor's grace for the last findings, which would be lost with a kill."""


def run(run_dir: Path, stop: threading.Event, clock: Clock, cluster: Cluster | None = None) -> int:
    """Detect until all sources have ended or `stop` is set; return the exit status.

    With a `cluster` its executors keep the state; findings are written here.

    Raises:
        RunFolderError: not a run folder, or another process detects in it.
    """
    folder = RunFolder(run_dir.resolve())
    known = read_run(folder)
    plan = read_plan(folder)
    manager = notifier()
    with file_lock(folder.spark / "lock", "the detector's checkpoint"):
        manager.ready()  # what is recorded from now on is taken in, however long Spark takes to start
        temporary = folder.spark / "tmp"
        end_predecessor(folder.spark, temporary, clock)
        manager.alive()  # each step of the start is progress, and so is each batch that is committed
        forget_other(folder, dealt_layout(plan.detection.shards))
        shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
        log = folder.logs / "spark.log"
        cores = plan.detection.shards
        if cluster is None:
            cores = min(cores, os.cpu_count() or 1)
        session = build_session(
            "soak detect-stream", temporary=temporary, cores=cores, log=log, cluster=cluster
        )
        manager.alive()
        try:
            with shared_file(folder.spark) as shared, held(session, folder.spark):
                if cluster is not None and not check_executors(
                    session.sparkContext, shared, clock, stop=stop, alive=manager.alive
                ):
                    return 0
                page = MetricsPage(
                    clock, {"run": known.id, "plan": plan.name, "daemon": "detect-stream"}
                )
                publish(page, folder.path, plan.metrics, plan.daemons, "detect-stream")
                seen = shared if cluster is not None else None
                _Stream(folder, known, plan, clock, page, manager, seen).run(session, stop)
        finally:
            session.stop()
    return 0


@dataclass(slots=True)
class _Stream:
    folder: RunFolder
    known: Run
    plan: Plan
    clock: Clock
    page: MetricsPage
    manager: Notifier
    shared: Path | None  # a `shared_file` that each executor has to see

    def run(self, session: SparkSession, stop: threading.Event) -> None:
        headway = Headway(self.folder.checkpoint, self.folder.journal, self.clock)
        attribution = Attribution(self.folder, self.known.id, self.plan, self.clock)
        thread = AttributionThread(attribution)
        progress = Progress(self.folder, self.clock, self.page)
        refused = RefusedLines(self.folder.refused / "detect-stream.json", self.clock)
        attribution.record(
            [], reached(self.folder.journal, committed(self.folder.checkpoint) or {})
        )
        thread.start()
        thread.wake()  # what an earlier process left may be due, though no batch comes
        places = self.folder.checkpoint, self.folder.journal, caution_path(self.folder.path)
        with deaths_noted(*places) as keeping:
            query = self._started(session, attribution, thread, refused, keeping)
            self.manager.alive()
            keep_present_objects()  # a look at thousands of findings would have them visited a dozen times
            try:
                while not stop.is_set() and (thread.is_behind or not self._is_over()):
                    if headway.has_progressed():
                        self.manager.alive()
                    if query.awaitTermination(_POLL_SECONDS):
                        break
                    progress.set_aside = refused.total
                    progress.show(
                        query.lastProgress, failures=thread.failures_total, is_running=True
                    )
                self.manager.stopping()
                end_ns = self.clock.mono_ns() + DRAIN_NS
                self._drain(query, end_ns)
            finally:
                query.stop()
        is_behind = not self._has_caught_up(thread, end_ns)
        if not thread.finish():
            raise RunFolderError(
                "the causes of what was found are still looked for; start it again"
            )
        has_seen = committed(self.folder.checkpoint) is not None
        if has_seen and (self._has_end() or not is_behind):
            attribution.conclude(is_hurried=is_behind)
        attribution.findings.close()
        progress.show(query.lastProgress, failures=thread.failures_total, is_running=False)

    def _started(
        self,
        session: SparkSession,
        attribution: Attribution,
        thread: AttributionThread,
        refused: RefusedLines,
        keeping: Keeping,
    ) -> StreamingQuery:
        session.dataSource.register(JournalSource)
        options = {
            "run_dir": str(self.folder.path),
            "run": self.known.id,
            "interval_ns": str(self.plan.detection.trigger),
            "tasks": str(self.plan.detection.shards),
            "shared": str(self.shared or ""),
        }
        rows = session.readStream.format(NAME).options(**options).load()
        detectors = self.plan.detection.detectors
        changes = detect(
            observed(rows),
            detectors[STREAM_DETECTOR],
            detectors[OUTAGE_DETECTOR],
            settings_of(self.plan),
            shard_labels(session, self.known.id, self.plan.detection.shards),
        )

        def on_batch(frame: DataFrame, batch: int) -> None:
            rows = [row.asDict() for row in frame.collect()]  # the one action
            found, aside = take_apart(rows)
            for one in aside:
                place = f"interval {one.k} of epoch {one.epoch}"
                refused.add(one.source, one.reason, place, position=("batches", batch))
            refused.store(is_due=True)
            for change in found:
                _LOG.info("change batch=%d %s", batch, change)
            with keeping.noted():
                planned_to = planned(self.folder.checkpoint, batch) or {}
                attribution.record(found, reached(self.folder.journal, planned_to))
            thread.wake()

        return (
            changes.writeStream.queryName("detect")
            .option("checkpointLocation", location(self.folder.checkpoint))
            .trigger(processingTime="0 seconds")  # the source keeps the interval, see `pacing`
            .foreachBatch(on_batch)
            .start()
        )

    def _is_over(self) -> bool:
        """True when the run ended, every source recorded its end, and all of it was taken in."""
        if not self._has_end():
            return False
        journal = self.folder.journal
        names = sources(journal)
        if not names or not all(has_ended(journal / name) for name in names):
            return False
        return is_all_read(self.folder.checkpoint, journal)

    def _has_end(self) -> bool:
        return read_phases(self.folder.phases).end_k is not None

    def _has_caught_up(self, thread: AttributionThread, end_ns: int) -> bool:
        """Wait for moments that are due; the next start goes on with what is left then."""
        while thread.is_behind and self.clock.mono_ns() < end_ns:
            self.clock.sleep_until(self.clock.mono_ns() + SECOND_NS // 10)
        return not thread.is_behind

    def _drain(self, query: StreamingQuery, end_ns: int) -> None:
        """Give what is on disk already a last chance; the rest waits for the next start."""
        wanted = newest(self.folder.journal, committed(self.folder.checkpoint) or {}, None)
        while self.clock.mono_ns() < end_ns:
            done = committed(self.folder.checkpoint) or {}
            if all(done.get(source, [-1, 0]) >= place for source, place in wanted.items()):
                return
            query.awaitTermination(_POLL_SECONDS)
