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
    """Return the audit of all that has been recorded.

    Raises:
        JournalError: a journal was written by a newer version.
    """
    names = sources(folder.journal)
    # Of one second, acknowledgements come first: what they tell of offsets is met by what was received.
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
    who = plan.consumers
    index = process_index(found.source)
    subscription = who.subscription_of(index)
    if found.is_after_gap:
        mine = range(who.member_of(index), plan.topic.total_partitions, who.per_subscription)
        audit.missed(subscription, mine)
    audit.add(found.record, found.columns, subscription)


def is_loss_known(plan: Plan) -> bool:
    """Return False where the client is told to wait for no acknowledgement: loss cannot be seen then."""
    said = [str(value) for name, value in _producer_settings(plan).items() if name in _ACKS]
    return not said or said[-1] != "0"  # of one setting's two names the client takes the last


def is_order_guaranteed(plan: Plan) -> bool:
    """Return whether an idempotent producer sees to it that each message comes once and in order."""
    return str(_producer_settings(plan).get("enable.idempotence")).lower() == "true"


def _producer_settings(plan: Plan) -> Mapping[str, str]:
    config = plan.broker_config
    return {**getattr(config, "common", {}), **getattr(config, "producer", {})}
