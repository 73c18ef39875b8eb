"""Fills what a plan leaves to the run: the broker's address, its folder, the run's topic, the mail server."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import NoneType
from typing import Any, get_args, get_type_hints

from soak.core.plan import Plan
from soak.core.plan_base import PluginConfigs
from soak.core.plan_probe import AnyPlan


def filled(plan: Plan, section: str, values: Mapping[str, object]) -> Plan:
    """Return the plan with `values` set in each plug-in of a section whose *first* named field is empty.

    A field that a plug-in does not have is passed over: `{"host": h, "port": p}` sets both where no
    host is named, and touches nothing else.
    """
    configs: PluginConfigs = {
        name: _filled(config, values) for name, config in getattr(plan, section).items()
    }
    changes: dict[str, Any] = {section: configs}
    return dataclasses.replace(plan, **changes)


def lacking(plan: AnyPlan, section: str, field: str) -> list[str]:
    """Return the plug-ins of a section that need this field and were not given it.

    A field that may be None is one that the plug-in can do without.
    """
    return [
        name
        for name, config in getattr(plan, section).items()
        if getattr(config, field, None) in ("", ())
        and NoneType not in get_args(get_type_hints(type(config))[field])
    ]


def with_ship_target(plan: Plan) -> Plan:
    """Return the plan with the measured cluster as where records go, unless it names another."""
    config, ship = plan.broker_config, plan.ship
    if ship is None or ship.bootstrap_servers:
        return plan
    client = ship.client or getattr(config, "common", {})
    servers = config.addresses.get("bootstrap_servers", "")
    ship = dataclasses.replace(ship, bootstrap_servers=servers, client=client)
    return dataclasses.replace(plan, ship=ship)


def _filled(config: Any, values: Mapping[str, object]) -> Any:  # noqa: ANN401  # a plug-in's Config
    if getattr(config, next(iter(values)), None) not in ("", (), {}):
        return config
    known = {item.name for item in dataclasses.fields(config)}
    return dataclasses.replace(
        config, **{name: value for name, value in values.items() if name in known}
    )
