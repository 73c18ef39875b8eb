"""Fills a bookie with messages of two topics in turn and deletes one of them: half of each file is wanted.

Such files are what a bookie compacts; a load of some minutes leaves none.
"""

from __future__ import annotations

import os

import pulsar

from soak.clients.pulsar_admin import admin_at, path_of
from soak.core.errors import BrokerError, LabError
from soak.lab.ports import Target

KEPT = "persistent://public/default/drill-kept"
DELETED = "persistent://public/default/drill-deleted"
_MESSAGE_BYTES = 16 * 1024
_ASK_SECONDS = 60


def fill(target: Target, size: int) -> None:
    """Write so many bytes, and delete half of them; returns when that is done.

    Raises:
        LabError: the cluster refuses.
    """
    try:
        _write(target.broker.addresses["service_url"], size)
        admin = admin_at(target.broker.addresses["admin_url"], _ASK_SECONDS, "", {})
        admin.delete(f"{path_of(DELETED)}?force=true")
    except (BrokerError, pulsar.PulsarException) as error:
        raise LabError(f"cannot fill the bookie: {error}") from error


def _write(service_url: str, size: int) -> None:
    client = pulsar.Client(
        service_url,
        operation_timeout_seconds=_ASK_SECONDS,
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
