"""The detector of many runs: reads the samples topic, writes changes and findings of each to the topic store.

State lives in the checkpoint of a folder of its own. The query begins again, from its last batch, when the
cluster was away for longer than a task waits.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.functions import col, count
from pyspark.sql.functions import max as greatest

from detectors.attribution import NO_CAUSE
from detectors.incidents import group, is_regression
from detectors.level_shift import Config
from soak.core.errors import NotAvailableError
from soak.core.model import Change, Column, Finding
from soak.core.plan.plan import OUTAGE_DETECTOR, STREAM_DETECTOR, FleetPlan
from soak.core.plan.text import load_fleet
from soak.core.ports import Clock
from soak.core.retry import Backoff
from soak.core.units import SECOND_NS
from soak.service.files import file_lock
from soak.service.metrics import MetricsPage, publish
from soak.service.systemd import Notifier, notifier
from soak.store.admission import RefusedLines
from soak.store.findings.port import Findings, FindingsPlace
from soak.store.findings.topic import FindingsTopics
from soak.store.findings.topic_log import KafkaFindingsLog
from soak.store.run_folder import RunFolder
from soak.store.samples_topic import SamplesClients
from spark.cluster.executors import check_executors, shared_file
from spark.cluster.master import Cluster
from spark.cluster.session import DETECTOR_MODULES, build_session
from spark.sources.samples_topic import NAME, SamplesSource, TopicOptions, fault_of_reading
from spark.streaming import fleet_state
from spark.streaming.attribution import finding_of, named
from spark.streaming.checkpoint import end_predecessor, held, location
from spark.streaming.fleet_state import detect_all
from spark.streaming.job import forget_other
from spark.streaming.panel_state import layout, take_apart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_LOG = logging.getLogger(__name__)
EXPIRE_SECONDS = 3600
"""After so long without a record, the state of a run is removed."""
BATCH_RECORDS = 100_000
"""Of a backlog, on a host that works that fast."""
MAX_PLACES = 16
"""Runs whose findings are open at once; each has a view of its own in memory."""
RESTART = Backoff(SECOND_NS, 60 * SECOND_NS)
MODULES = (
    *DETECTOR_MODULES,
    "confluent_kafka",
    "spark.sources.samples_topic",
    "spark.streaming.fleet_state",
)
"""What the planners and workers of a fleet's detector use."""
_SILENT_SECONDS = 60
_POLL_SECONDS = 1
_SEEN = "seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """How to run; `since_seconds`: from how long ago the first batch reads on, None for all."""

    state: Path
    since_seconds: int | None = 3600
    # Of the state; for good, a checkpoint with another number is started over. Spark gives them to its
    # workers in no order, and each worker takes the rows that others had before it: two share the work only
    # in part.
    partitions: int = 1
    cores: int = 2
    expire_seconds: int = EXPIRE_SECONDS


def run(
    plan_path: Path,
    options: FleetOptions,
    stop: threading.Event,
    clock: Clock,
    cluster: Cluster | None = None,
) -> int:
    """Detect in all runs of the topic until `stop` is set; return the exit status.

    With a `cluster` its executors read the topic and keep the state, in a folder that they see at the same
    path; findings are written here.

    Raises:
        PlanError: the plan has a fault.
        BrokerError: the cluster does not answer, or refuses to create the topic.
        NotAvailableError: the cluster of Spark does not answer, gives no executors, or ended the application;
            or its executors cannot read the topic.
        RunFolderError: another process uses the folder, or executors do not see it.
    """
    plan = load_fleet(plan_path.read_text(), str(plan_path))
    folder = RunFolder(options.state.resolve())
    folder.path.mkdir(parents=True, exist_ok=True)
    manager = notifier()
    with file_lock(folder.spark / "lock", "the detector's checkpoint"):
        SamplesClients(plan.ship, "soakd-fleet", clock).ensure_topic()
        manager.ready()
        temporary = folder.spark / "tmp"
        end_predecessor(folder.spark, temporary, clock)
        manager.alive()
        forget_other(folder, f"{layout(options.partitions)}.fleet-{fleet_state.VERSION}")
        shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
        log = folder.logs / "spark.log"
        session = build_session(
            "soak detect-fleet",
            temporary=temporary,
            cores=options.cores,
            log=log,
            cluster=cluster,
            modules=MODULES,
        )
        session.conf.set("spark.sql.shuffle.partitions", str(options.partitions))
        # `show_progress` reads all that are kept: more than end between two looks, and not 100
        session.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10")
        manager.alive()
        try:
            with shared_file(folder.spark) as shared, held(session, folder.spark):
                if cluster is not None and not check_executors(
                    session.sparkContext,
                    shared,
                    clock,
                    stop=stop,
                    alive=manager.alive,
                    fault_of=functools.partial(fault_of_reading, plan.ship),
                ):
                    return 0
                page = MetricsPage(clock, {"plan": plan.name, "daemon": "detect-fleet"})
                publish(page, folder.path, plan.metrics, plan.daemons, "detect-fleet")
                stream = FleetStream(folder, plan, options, clock, page, manager, shared)
                stream.run(session, stop)
        finally:
            session.stop()
    return 0


@dataclass(slots=True)
class FleetStream:
    """Runs the query, and runs it again after a failure."""

    folder: RunFolder
    plan: FleetPlan
    options: FleetOptions
    clock: Clock
    page: MetricsPage
    manager: Notifier
    shared: Path  # a `shared_file` that each executor has to see
    _gaps: int = 0  # of all batches so far
    _batch: int = -1  # the last one that was counted
    _timestamp: str = ""  # of the last progress

    def run(self, session: SparkSession, stop: threading.Event) -> None:
        """Detect until `stop`.

        Raises:
            NotAvailableError: Spark has ended.
        """
        session.dataSource.register(SamplesSource)
        findings = FleetFindings(self.plan, self.clock)
        failures = 0
        with closing(findings):
            while not stop.is_set():
                before = self._batch
                try:
                    self.follow(self._started(session, findings), stop)
                except StreamingQueryException as error:
                    _check_context(session, _reason(error))
                    failures = 1 if self._batch > before else failures + 1
                    _LOG.warning("query_failed failures=%d error=%.2000s", failures, _reason(error))
                    self._pause(RESTART.wait_ns(failures), stop)
                except (PySparkException, Py4JJavaError):
                    _check_context(session, "no query can be started")
                    raise
            self.manager.stopping()

    def _started(self, session: SparkSession, findings: FleetFindings) -> StreamingQuery:
        since = self.options.since_seconds
        options = TopicOptions(
            ship=self.plan.ship,
            since_ms=None if since is None else self.clock.wall_ns() // 10**6 - since * 1000,
            first_offset=self.folder.checkpoint / "first.json",  # goes with the checkpoint
            batch_records=BATCH_RECORDS,
            interval_ns=self.plan.detection.trigger,
            has_announcements=True,
            keeps_dead_letters=True,
        ).to_options()
        rows = session.readStream.format(NAME).options(**options).load()
        detectors = self.plan.detection.detectors
        changes = detect_all(
            observed(rows),
            detectors[STREAM_DETECTOR],
            detectors[OUTAGE_DETECTOR],
            self.options.expire_seconds,
            self.shared,
        )

        refused = RefusedLines(self.folder.refused / "detect-fleet.json", self.clock)

        def on_batch(frame: DataFrame, batch: int) -> None:
            by_run: dict[str, list[dict[str, Any]]] = {}
            for row in frame.collect():  # the one action
                by_run.setdefault(row["run"], []).append(row.asDict())
            for name, rows_ in sorted(by_run.items()):
                found, aside = take_apart(rows_)
                for one in aside:
                    place = f"run {name}, interval {one.k} of epoch {one.epoch}"
                    refused.add(one.source, one.reason, place, position=("batches", batch))
                for change in found:
                    _LOG.info("change batch=%d run=%s %s", batch, name, change)
                findings.take(name, found)
            refused.store(is_due=True)

        return (
            changes.writeStream.queryName("detect-fleet")
            .option("checkpointLocation", location(self.folder.checkpoint))
            .trigger(processingTime=f"{self.plan.detection.trigger // 10**6} milliseconds")
            .foreachBatch(on_batch)
            .start()
        )

    def follow(self, query: StreamingQuery, stop: threading.Event) -> None:
        """Watch the query until `stop`, and end it; every batch is a sign of life, one each trigger."""
        seen_ns, is_silent = self.clock.mono_ns(), False
        try:
            while not stop.is_set():
                if query.awaitTermination(_POLL_SECONDS):
                    return
                if self.show_progress(query):
                    seen_ns, is_silent = self.clock.mono_ns(), False
                    self.manager.alive()
                silent_ns = self.clock.mono_ns() - seen_ns - self.plan.detection.trigger
                if not is_silent and silent_ns > _SILENT_SECONDS * SECOND_NS:
                    is_silent = True
                    _LOG.warning("no_batch seconds=%d", silent_ns // SECOND_NS)
        finally:
            query.stop()
            self.show_progress(query)

    def show_progress(self, query: StreamingQuery) -> bool:
        """Count the gaps of batches that ended since the last call; return whether there is any progress.

        Spark also reports progress of a trigger without a batch, with the number of the next batch.
        """
        last = query.lastProgress
        if last is None or last.timestamp == self._timestamp:
            return False
        self._timestamp = last.timestamp
        for one in query.recentProgress:
            if one.batchId > self._batch and "addBatch" in one.durationMs:
                self._batch = one.batchId
                self._count_gaps(one)
        self._show(last)
        return True

    def _count_gaps(self, batch: Any) -> None:  # noqa: ANN401  # Spark's progress
        seen = batch.observedMetrics.get(_SEEN)
        if seen is not None and seen["gaps"]:
            self._gaps += seen["gaps"]
            _LOG.warning("not_all_was_read gaps=%d such_as=%.500s", seen["gaps"], seen["gap"])

    def _pause(self, wait_ns: int, stop: threading.Event) -> None:
        end_ns = self.clock.mono_ns() + wait_ns
        while self.clock.mono_ns() < end_ns and not stop.wait(_POLL_SECONDS):
            self.manager.alive()

    def _show(self, last: Any) -> None:  # noqa: ANN401  # Spark's progress
        seen = last.observedMetrics.get(_SEEN)
        newest_ns = None if seen is None else seen["at_ns"]
        states = last.stateOperators
        numbers = {
            "fleet_batch_seconds": last.durationMs.get("triggerExecution", 0) / 1000,
            "fleet_batch_rows": last.numInputRows,
            "fleet_rows_per_second": last.processedRowsPerSecond,
            "fleet_newest_record_age_seconds": (
                math.nan if newest_ns is None else (self.clock.wall_ns() - newest_ns) / SECOND_NS
            ),
            "fleet_state_rows": sum(one.numRowsTotal for one in states),
            "fleet_state_memory_bytes": sum(one.memoryUsedBytes for one in states),
            "fleet_gaps_total": self._gaps,
        }
        self.page.show([(Column(name), float(value)) for name, value in numbers.items()])
        body = {**numbers, "batch": last.batchId, "wall_ns": self.clock.wall_ns()}
        draft = self.folder.spark / ".progress.json"
        try:
            draft.write_text(json.dumps(body) + "\n")
            draft.replace(self.folder.spark / "progress.json")
        except OSError as error:
            _LOG.warning("progress_not_written error=%s", error)


def observed(rows: DataFrame) -> DataFrame:
    """Return the rows as they are, noting the newest record and the gaps for the progress."""
    return rows.observe(
        _SEEN,
        greatest(col("at_ns")).alias("at_ns"),
        count(col("gap")).alias("gaps"),
        greatest(col("gap")).alias("gap"),
    )


def _check_context(session: SparkSession, reason: str) -> None:
    """Raise `NotAvailableError` where the failure of a query is that of Spark itself."""
    context = session.sparkContext
    if context._jsc.sc().isStopped():  # noqa: SLF001  # the only way to the JVM
        raise NotAvailableError(f"{context.master} ended the application: {reason}")


def _reason(error: StreamingQueryException) -> str:
    """Return the last line of a failure that says something."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if "Error: " in line]
    return (causes or lines or ["unknown"])[-1].strip()


class FleetFindings:
    """Writes changes to the store of their run, and the findings that follow from all of them."""

    def __init__(
        self,
        plan: FleetPlan,
        clock: Clock,
        place_of: Callable[[str], FindingsPlace] | None = None,
    ) -> None:
        """`place_of` gives the store of a run; by default that of the plan."""
        self._plan = plan
        self._clock = clock
        self._place_of = place_of or self._topics
        self._places: dict[str, FindingsPlace] = {}  # the last used at the end

    def take(self, run: str, changes: Sequence[Change]) -> None:
        """Store the changes of a run; the same ones again change nothing.

        Raises:
            FindingsError: the store cannot be used.
        """
        config: Config = self._plan.detection.detectors[STREAM_DETECTOR]
        place = self._places.pop(run, None) or self._place_of(run)
        self._places[run] = place
        while len(self._places) > MAX_PLACES:
            self._places.pop(next(iter(self._places))).close()
        with place.open() as store:
            store.record_changes(run, changes)
            stored = {finding.key: finding for finding in store.findings(run)}
            for finding in _judged(run, store, stored, config):
                if finding != stored.get(finding.key):
                    store.save_finding(finding, list(self._plan.sinks), self._clock.wall_ns())

    def close(self) -> None:
        """Close all stores."""
        for place in self._places.values():
            place.close()
        self._places.clear()

    def _topics(self, run: str) -> FindingsPlace:
        store = self._plan.store
        log = KafkaFindingsLog(store, run, self._clock)
        return FindingsTopics(run, log, self._clock, store.keep)


def _judged(
    run: str, store: Findings, stored: Mapping[str, Finding], config: Config
) -> Iterable[Finding]:
    """Assign the changes of a run to incidents, and return these as findings.

    Causes are looked for on the host of the run, which has the journals; those that it found are kept.
    """
    known, assigned = store.changes(run), store.assigned(run)
    found = group(known, assigned, config.minimum_effect)
    incidents = named(run, found, {*stored, *assigned.values()})
    keys = {
        (change.series, change.raised_k): incident.key
        for incident in incidents
        for change in incident.changes
    }
    store.assign(run, {name: key for name, key in keys.items() if name not in assigned})
    for key in stored.keys() - {incident.key for incident in incidents}:
        store.drop_warning(key)
    for incident in incidents:
        before = stored.get(incident.key)
        finding = finding_of(run, incident, before)
        causes = before.causes if before is not None else ()
        if finding.state != "warning":
            causes = causes or NO_CAUSE
        yield replace(
            finding,
            causes=tuple(causes),
            is_about_cluster=is_regression(incident, causes),
            is_settled=finding.state != "warning",
        )
