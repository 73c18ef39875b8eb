"""Compaction of a bookie's entry logs during the load, after half of their entries were deleted."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pulsar
from pydantic.dataclasses import dataclass

from soak.clients.pulsar_admin import connect_admin, topic_path
from soak.core.errors import BrokerError, LabError
from soak.core.plan.config import STRICT
from soak.core.plan.plan import Lab
from soak.core.units import SECOND_NS, Duration, Size, duration_ns
from soak.lab.drive.block_device import drop_all_from_page_cache
from soak.lab.faults.active import Fault, ThreadedFault, drive_of, missing_drive, start_threaded
from soak.lab.ports import Target

KEPT_TOPIC = "persistent://public/default/drill-kept"
DELETED_TOPIC = "persistent://public/default/drill-deleted"
_NO_BOOKIE = "compaction needs a lab's Pulsar: only a bookie compacts"
_MESSAGE_BYTES = 16 * 1024
_REQUEST_SECONDS = 10.0
_FILL_REQUEST_SECONDS = 60
_ENTRY_LOGS = "**/current/*.log"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CompactionConfig:
    """Make a bookie compact its entry logs during the load, again and again.

    A load of some minutes leaves nothing to compact: `fill` writes messages first and deletes half of them.
    With `per_mib` the drive reads entry logs as slowly as if the page cache held nothing of them.

    Needs: a lab's Pulsar; `per_mib` needs it on an injected drive (`lab.drive`), so root and FUSE.
    """

    every: Duration = duration_ns("2s")
    after: Duration = 0  # from the injection to the first compaction
    fill: Size = 0  # written at the injection; half of it is deleted
    per_mib: Duration = 0  # of a read during compaction, while the drive writes nothing

    def __post_init__(self) -> None:
        if self.every <= 0:
            raise ValueError("every must be above 0s")
        if min(self.after, self.fill, self.per_mib) < 0:
            raise ValueError("after, fill and per_mib must not be below 0")


def _missing_bookie(lab: Lab, config: CompactionConfig) -> str:
    if not lab.broker.startswith("pulsar"):
        return _NO_BOOKIE
    return missing_drive(lab, 1) if config.per_mib else ""


def _inject_compaction(target: Target, config: CompactionConfig) -> ThreadedFault:
    """Fill the bookie now, and start to compact after `after`.

    Raises:
        LabError: the lab has no bookie, its drive is not injected, or it accepts no messages.
    """
    bookie = target.broker.addresses.get("bookie_urls", "")
    if not bookie:
        raise LabError(_NO_BOOKIE)
    drive = drive_of(target, 1) if config.per_mib else None
    if config.fill:
        write_half_deleted_ledgers(target.broker.addresses, config.fill)

    def compact(active: ThreadedFault) -> None:
        if active.wait_for_lift(config.after):
            return
        if drive is not None:
            drive.read_slowly(config.per_mib / SECOND_NS)
            drop_all_from_page_cache(target.broker.data_directory.glob(_ENTRY_LOGS))
            drive.drop_page_cache()
        try:
            _compact_every(config.every, bookie, target, active)
        finally:
            if drive is not None:
                drive.read_slowly(0.0)

    return start_threaded("compaction", target, compact)


def _compact_every(period_ns: int, bookie: str, target: Target, active: ThreadedFault) -> None:
    admin = connect_admin(bookie, _REQUEST_SECONDS, "", {})
    while True:
        at_wall_ns = target.clock.wall_ns()
        try:
            admin.put("/api/v1/bookie/gc", {"forceMajor": True, "forceMinor": True})
        except BrokerError as error:
            raise LabError(f"the bookie does not compact: {error}") from error
        active.note_onset(at_wall_ns)
        target.record({"at_wall_ns": at_wall_ns, "compaction": True})
        if active.wait_for_lift(period_ns):
            return


def write_half_deleted_ledgers(addresses: Mapping[str, str], size: int) -> None:
    """Write this many bytes to two topics in turn and delete one: half of each entry log is garbage.

    Raises:
        LabError: the cluster refuses.
    """
    try:
        _write(addresses["service_url"], size)
        admin = connect_admin(addresses["admin_url"], _FILL_REQUEST_SECONDS, "", {})
        admin.delete(f"{topic_path(DELETED_TOPIC)}?force=true")
    except (BrokerError, pulsar.PulsarException) as error:
        raise LabError(f"cannot fill the bookie: {error}") from error


def _write(service_url: str, size: int) -> None:
    client = pulsar.Client(
        service_url,
        operation_timeout_seconds=_FILL_REQUEST_SECONDS,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    try:
        # An unread subscription keeps the messages.
        client.subscribe(KEPT_TOPIC, "unread").close()
        producers = [
            client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
            for topic in (KEPT_TOPIC, DELETED_TOPIC)
        ]
        body = os.urandom(_MESSAGE_BYTES)
        for _ in range(size // (len(producers) * _MESSAGE_BYTES)):
            for producer in producers:
                producer.send_async(body, None)
        for producer in producers:
            producer.flush()
    finally:
        client.close()


FAULTS = {
    "compaction": Fault(
        config=CompactionConfig, inject=_inject_compaction, missing_from_lab=_missing_bookie
    )
}
