"""Looks up what a plan's target promises, for `soak audit` and for the report of a run."""

from __future__ import annotations

import importlib
import json
import logging

from soak.core import durability
from soak.core.durability import Durability
from soak.core.errors import BrokerError
from soak.core.plan import Plan
from soak.store.run_folder import RunFolder, write_atomically

LOG = logging.getLogger("soak.cli.durability")


def look(plan: Plan) -> Durability:
    """Ask the cluster that a plan names; the broker's file `_<name>_durability.py` knows what.

    Raises:
        BrokerError: the cluster does not answer.
    """
    module = importlib.import_module(f"soak.brokers._{plan.broker_kind}_durability")
    found: Durability = module.read(plan.broker_config, plan.topic)
    return found


def record(folder: RunFolder, plan: Plan) -> None:
    """Write `durability.json` for a run whose topics are there; a cluster that does not tell ends no run."""
    try:
        found = look(plan)
    except BrokerError as error:
        LOG.warning("durability is unknown: %s", error)
        found = durability.unknown(plan.broker_kind, str(error))
    write_atomically(
        folder.durability, json.dumps(durability.to_json(found), indent=2, allow_nan=False) + "\n"
    )
