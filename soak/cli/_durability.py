"""Looks up what a plan's target promises, for `soak audit` and for the report of a run."""

from __future__ import annotations

import importlib
import json
import logging

from soak.core import durability
from soak.core.durability import Durability
from soak.core.errors import BrokerError
from soak.core.plan import Plan
from soak.core.yaml_text import Document, Place
from soak.store.run_folder import RunFolder, write_atomically

LOG = logging.getLogger("soak.cli.durability")


def look(plan: Plan, document: Document) -> Durability:
    """Ask the cluster that a plan names; the broker's file `_<name>_durability.py` knows what.

    `document` is the plan as it was written: what it leaves out is nobody's but our own word.

    Raises:
        BrokerError: the cluster does not answer.
    """
    module = importlib.import_module(f"soak.brokers._{plan.broker_kind}_durability")
    written = keys_of_broker(plan, document)
    found: Durability = module.read(plan.broker_config, plan.topic, written)
    return found


def keys_of_broker(plan: Plan, document: Document) -> frozenset[Place]:
    """Return which keys a plan's text has in its broker's section, such as `("producer", "acks")`."""
    section = ("broker", plan.broker_kind)
    return frozenset(place[2:] for place in document.lines if place[:2] == section)


def record(folder: RunFolder, plan: Plan, document: Document) -> None:
    """Write `durability.json` for a run whose topics are there; a cluster that does not tell ends no run."""
    try:
        found = look(plan, document)
    except BrokerError as error:
        LOG.warning("durability is unknown: %s", error)
        found = durability.unknown(plan.broker_kind, str(error))
    write_atomically(
        folder.durability, json.dumps(durability.to_json(found), indent=2, allow_nan=False) + "\n"
    )
