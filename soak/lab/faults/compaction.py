"""Compaction of a bookie's entry logs beside the load, on entry logs that are half deleted."""

from __future__ import annotations

import json
import os
import urllib.request

import pulsar
from pydantic.dataclasses import dataclass

from soak.clients.pulsar_admin import connect_admin, topic_path
from soak.core.errors import BrokerError, LabError
from soak.core.plan.config import STRICT
from soak.core.plan.plan import Lab
from soak.core.units import SECOND_NS, Duration, Size, duration_ns
from soak.lab.drive import block_device
from soak.lab.faults.active import drive_of, lacking_drive
from soak.lab.faults.stopping import Stopping
from soak.lab.ports import Target

KEPT = "persistent://public/default/drill-kept"
DELETED = "persistent://public/default/drill-deleted"
_MESSAGE_BYTES = 16 * 1024
_FILL_TIMEOUT_SECONDS = 60


def write_half_deleted_ledgers(target: Target, size: int) -> None:
    """Write so many bytes, and delete half of them; returns when that is done.

    Raises:
        LabError: the cluster refuses.
    """
    try:
        _write(target.broker.addresses["service_url"], size)
        admin = connect_admin(target.broker.addresses["admin_url"], _FILL_TIMEOUT_SECONDS, "", {})
        admin.delete(f"{topic_path(DELETED)}?force=true")
    except (BrokerError, pulsar.PulsarException) as error:
        raise LabError(f"cannot fill the bookie: {error}") from error


def _write(service_url: str, size: int) -> None:
    client = pulsar.Client(
        service_url,
        operation_timeout_seconds=_FILL_TIMEOUT_SECONDS,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    try:
        client.subscribe(KEPT, "nobody").close()  # what it has not read is kept
        producers = [
            client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
            for topic in (KEPT, DELETED)
        ]
        body = os.urandom(_MESSAGE_BYTES)
        for _ in range(size // (len(producers) * _MESSAGE_BYTES)):
            for producer in producers:
                producer.send_async(body, None)
        for producer in producers:
            producer.flush()
    finally:
        client.close()


# --- Has a bookie compact its entry logs, beside the load, again and again.
# Where there is nothing to compact, `fill` writes something before; `per_mib` has the drive read it as slowly
# as one that the kernel keeps nothing of.
# Needs: a lab's Pulsar; `per_mib` needs it on an injected drive (`lab.drive`), so root and FUSE.

_NO_BOOKIE = "compaction needs a lab's Pulsar: only a bookie compacts"
_ASK_SECONDS = 10.0
_ENTRY_LOGS = "**/current/*.log"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CompactionConfig:
    every: Duration = duration_ns("2s")
    after: Duration = 0  # from the injection to the first compaction
    fill: Size = 0  # written at the injection, half of it deleted again
    per_mib: Duration = 0  # that is read while it compacts, in which the drive writes nothing

    def __post_init__(self) -> None:
        if self.every <= 0:
            raise ValueError("every must be above 0s")
        if min(self.after, self.fill, self.per_mib) < 0:
            raise ValueError("after, fill and per_mib must not be below 0")


def compaction_lacks(lab: Lab, config: CompactionConfig) -> str:
    """Return what the lab of a plan lacks, or ""."""
    if not lab.broker.startswith("pulsar"):
        return _NO_BOOKIE
    return lacking_drive(lab, 1) if config.per_mib else ""


def inject_compaction(target: Target, config: CompactionConfig) -> Stopping:
    """Begin when it is filled and `after` is over.

    Raises:
        LabError: the lab has no bookie, its drive is not injected, or it takes no messages.
    """
    bookie = target.broker.addresses.get("bookie_urls", "")
    if not bookie:
        raise LabError(_NO_BOOKIE)
    drive = drive_of(target, 1) if config.per_mib else None
    if config.fill:
        write_half_deleted_ledgers(target, config.fill)
    request = urllib.request.Request(  # noqa: S310  # loopback
        f"{bookie}/api/v1/bookie/gc",
        json.dumps({"forceMajor": True, "forceMinor": True}).encode(),
        {"Content-Type": "application/json"},
        method="PUT",
    )

    def compact(active: Stopping) -> None:
        if active.is_lifted_in(config.after):
            return
        if drive is not None:
            drive.read_slowly(config.per_mib / SECOND_NS)
            block_device.drop_folder_from_page_cache(target.broker.data_directory.glob(_ENTRY_LOGS))
            drive.forget()
        try:
            again_and_again(active)
        finally:
            if drive is not None:
                drive.read_slowly(0.0)

    def again_and_again(active: Stopping) -> None:
        while True:
            at_wall_ns = target.clock.wall_ns()
            with urllib.request.urlopen(request, timeout=_ASK_SECONDS):  # noqa: S310  # as above
                active.has_begun(at_wall_ns)
            target.record({"at_wall_ns": at_wall_ns, "compaction": True})
            if active.is_lifted_in(config.every):
                return

    active = Stopping("compaction", target, compact)
    active.begin()
    return active
