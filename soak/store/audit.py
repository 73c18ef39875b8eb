"""The audit of a run, computed from its journals."""

from __future__ import annotations

from collections.abc import Mapping

from soak.core.audit import Audit
from soak.core.header import instance_of
from soak.core.plan.load import process_index
from soak.core.plan.plan import Plan
from soak.store.journal.merged import MergedReader, MergedRecord
from soak.store.journal.reader import sources
from soak.store.run_folder import Run, RunFolder

_PRODUCER, _CONSUMER = "produce.", "consume."
_ACKS = {"acks", "request.required.acks"}


def audit_run(folder: RunFolder, run: Run, plan: Plan) -> Audit:
    """Return the audit of all records of a run.

    Raises:
        JournalError: a journal was written by a newer version.
    """
    names = sources(folder.journal)
    # Within an interval, acknowledgements come first: they name the offsets of the received messages.
    producers = [name for name in names if name.startswith(_PRODUCER)]
    consumers = [name for name in names if name.startswith(_CONSUMER)]
    audit = Audit(plan.consumers.subscriptions)
    reader = MergedReader(folder.journal, [*producers, *consumers])
    incomplete: set[tuple[str, int]] = set()
    for found in reader.read():
        if found.source.startswith(_CONSUMER):
            _add_received(audit, found, plan)
            continue
        if found.is_after_gap:
            incomplete.add((found.source, found.record.epoch))
        audit.add(found.record, found.columns)
    for source, epoch in reader.ended - incomplete:
        for client in range(plan.load.clients_per_producer):
            audit.ended(instance_of(run.id, source, client), epoch)
    return audit


def _add_received(audit: Audit, found: MergedRecord, plan: Plan) -> None:
    consumers = plan.consumers
    index = process_index(found.source)
    subscription = consumers.subscription_of(index)
    if found.is_after_gap:
        first, step = consumers.member_of(index), consumers.per_subscription
        audit.missed(subscription, range(first, plan.topic.total_partitions, step))
    audit.add(found.record, found.columns, subscription)


def is_loss_known(plan: Plan) -> bool:
    """Return False with acks=0: without acknowledgements, loss cannot be detected."""
    acks = [str(value) for name, value in _producer_settings(plan).items() if name in _ACKS]
    return not acks or acks[-1] != "0"  # the client uses the last of the two names of a setting


def is_order_guaranteed(plan: Plan) -> bool:
    """Return True where an idempotent producer guarantees that each message arrives once and in order."""
    return str(_producer_settings(plan).get("enable.idempotence")).lower() == "true"


def _producer_settings(plan: Plan) -> Mapping[str, str]:
    config = plan.broker_config
    return {**getattr(config, "common", {}), **getattr(config, "producer", {})}
