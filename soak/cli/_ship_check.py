"""Whether the cluster that a plan ships its records to answers."""

from __future__ import annotations

from soak.core.errors import BrokerError
from soak.core.plan_records import Ship
from soak.core.ports import Clock
from soak.store.samples_clients import Clients


def unshipped(ship: Ship | None, clock: Clock) -> list[str]:
    """Return that it does not, if so; one that is measured was asked already. No topic is made."""
    if ship is None or not ship.bootstrap_servers:
        return []
    try:
        Clients(ship, "soakd", clock).ask()
    except BrokerError as error:
        return [f"ship: {error}; until one does, records wait on this host's disk"]
    return []
