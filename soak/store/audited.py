"""A run's audit, fed from its journals in order of time."""

from __future__ import annotations

from soak.core.audit import Audit
from soak.core.header import instance_of
from soak.core.plan import Plan
from soak.store.journal_reader import sources
from soak.store.merged_reader import MergedReader
from soak.store.run_folder import Run, RunFolder

_PRODUCER, _CONSUMER = "produce.", "consume."


def audited(folder: RunFolder, run: Run, plan: Plan) -> Audit:
    """Return the audit of all that has been recorded.

    Raises:
        JournalError: a journal was written by a newer version.
    """
    names = sources(folder.journal)
    # Of one second, acknowledgements come first: what they tell of offsets is met by what was received.
    producers = [name for name in names if name.startswith(_PRODUCER)]
    consumers = {
        name: plan.consumers.subscription_of(_index(name))
        for name in names
        if name.startswith(_CONSUMER)
    }
    audit = Audit(max([plan.consumers.subscriptions, *(1 + at for at in consumers.values())]))
    reader = MergedReader(folder.journal, [*producers, *consumers])
    for source, record, columns in reader.read():
        audit.add(record, columns, consumers.get(source, 0))
    for source, inc in reader.ended:
        for client in range(plan.load.clients_per_producer):
            audit.ended(instance_of(run.id, source, client), inc)
    return audit


def is_loss_known(plan: Plan) -> bool:
    """Return False where the client is told to wait for no acknowledgement: loss cannot be seen then."""
    config = plan.broker_config
    settings = {**getattr(config, "common", {}), **getattr(config, "producer", {})}
    return str(settings.get("acks", settings.get("request.required.acks", "all"))) != "0"


def _index(source: str) -> int:
    """Return the number of a process, as in `consume.3@host`."""
    return int(source.partition("@")[0].rpartition(".")[2])
